/* A training run written out over the model's calls (gpt2.h), read from the README alone: what ./train_gpt2 must do with a
 * line of flags, to the bit. Data order, schedule, accumulation and validation are this file's own, not those of llmc/. */
#pragma once
#include "program_case.h"

/* A run at hand: every field from its flags. */
typedef struct Direct {
    const char *flags;
    int B, T, n_micro, steps, warmup, eval_every, eval_batches;
    int64_t seed;
    double lr, final;
    bool overfit;
    unsigned char *train, *val;
    int64_t n_train, n_val;
    int64_t position; /* windows taken */
    GPT2 model;
    float loss, norm; /* of the last step */
    int64_t n_skipped;
    double best_val;           /* NAN before the first */
    int32_t *tokens, *targets; /* (B,T) */
    int save_every;
} Direct;

/* ---- the order of the data: a Feistel network of six rounds, walked until it falls into the range ---- */

static uint64_t direct_mix(uint64_t x) {
    x = 0xbf58476d1ce4e5b9 * (x ^ x >> 30);
    x = 0x94d049bb133111eb * (x ^ x >> 27);
    return x ^ x >> 31;
}

static uint64_t direct_stream(uint64_t seed, uint64_t purpose) {
    const uint64_t golden = 0x9e3779b97f4a7c15;
    return direct_mix(golden * (1 + purpose) + direct_mix(golden + seed));
}

static int64_t direct_permuted(int64_t index, int64_t n, uint64_t key) {
    uint64_t half = 2, x = (uint64_t)index; /* half = 2^h, the least with 4^h >= n */
    while (half * half < (uint64_t)n) half *= 2;
    do {
        uint64_t left = x / half, right = x % half;
        for (uint64_t round = 0; round < 6; round++) {
            const uint64_t next = left ^ direct_mix(direct_mix(key + round) ^ right) % half;
            left = right;
            right = next;
        }
        x = left * half + right;
    } while (x >= (uint64_t)n);
    return (int64_t)x;
}

/* Row `row` of the batch: window number `position` of the run; validation goes through its text in order. */
static void direct_window(Direct *d, bool training, int64_t position, int row) {
    const unsigned char *data = training ? d->train : d->val;
    const int64_t n_tokens = training ? d->n_train : d->n_val, n = (n_tokens - 1) / d->T;
    const uint64_t seed = (uint64_t)d->seed, epoch = (uint64_t)(position / n);
    int64_t start = position % n;
    if (training) start = direct_permuted(start, n, direct_stream(direct_stream(seed, 0x6f72646572), epoch));
    start *= d->T;
    if (training && epoch > 0)
        start += (int64_t)(direct_stream(direct_stream(seed, 0x6f6666736574), epoch) % (uint64_t)d->T);
    for (int t = 0; t < d->T; t++) {
        d->tokens[row * d->T + t] = data[(start + t) % n_tokens];
        d->targets[row * d->T + t] = data[(start + t + 1) % n_tokens];
    }
}

static void direct_batch(Direct *d, bool training, int64_t position) {
    for (int row = 0; row < d->B; row++) direct_window(d, training, position + row, row);
}

/* ---- steps ---- */

static double direct_lr(const Direct *d, int step) {
    const double s = step - 1, low = d->final * d->lr, part = (s - d->warmup) / (d->steps - d->warmup);
    if (step <= d->warmup) return d->lr * step / d->warmup;
    if (flag_is(d->flags, "--schedule", "cosine")) return low + (d->lr - low) * 0.5 * (1 + cos(M_PI * part));
    if (flag_is(d->flags, "--schedule", "linear")) return d->lr - (d->lr - low) * part;
    const double decay = fmax(0.8 * d->steps, d->warmup);
    if (flag_is(d->flags, "--schedule", "wsd") && s >= decay)
        return low + (d->lr - low) * (1 - sqrt((s - decay) / (d->steps - decay)));
    return d->lr;
}

static UpdateArgs direct_update(const Direct *d, int step) {
    return (UpdateArgs){
        .step = step,
        .lr = (float)direct_lr(d, step),
        .beta1 = (float)flag_number(d->flags, "--beta1"),
        .beta2 = (float)flag_number(d->flags, "--beta2"),
        .eps = (float)flag_number(d->flags, "--eps"),
        .weight_decay = (float)flag_number(d->flags, "--weight-decay"),
        .clip = (float)flag_number(d->flags, "--clip"),
        .momentum =
            d->model.options.optimizer == OPTIMIZER_MUON ? (float)flag_number(d->flags, "--momentum") : 0,
        .polynomial = flag_is(d->flags, "--muon-polynomial", "jordan") ? JORDAN : POLAR_EXPRESS,
    };
}

__attribute__((unused)) static void direct_step(Direct *d, int step) {
    const UpdateArgs update = direct_update(d, step);
    gpt2_begin_step(&d->model, d->n_micro);
    for (int i = 0; i < d->n_micro; i++) {
        if (d->overfit) d->position = 0;
        direct_batch(d, true, d->position);
        d->position += d->B;
        gpt2_micro_step(&d->model, d->tokens, d->targets, d->B, d->T, 1.0f / (float)d->n_micro);
    }
    gpt2_update(&d->model, &update);
    const StepStats stats = gpt2_step_stats(&d->model);
    d->loss = stats.loss;
    d->norm = stats.grad_norm;
    d->n_skipped += !isfinite(stats.loss) || !isfinite(stats.grad_norm);
}

__attribute__((unused)) static double direct_val(Direct *d) {
    double sum = 0;
    for (int i = 0; i < d->eval_batches; i++) {
        direct_batch(d, false, (int64_t)i * d->B);
        sum += gpt2_eval(&d->model, d->tokens, d->targets, d->B, d->T);
    }
    return sum / d->eval_batches;
}

/* ---- opening ---- */

static OptimizerKind direct_optimizer(const char *flags) {
    return flag_is(flags, "--optimizer", "muon") ? OPTIMIZER_MUON : OPTIMIZER_ADAMW;
}

/* The first nine tenths of FILE train, the rest validates. */
static void direct_data(Direct *d, const char *path) {
    char *text = read_text(path);
    const int64_t n = (int64_t)strlen(text), border = 9 * n / 10;
    CHECK(n > 0, "%s is empty", path);
    if (!(d->train = malloc((size_t)n + 1))) abort();
    memcpy(d->train, text, (size_t)n);
    d->val = d->train + border;
    d->n_train = border;
    d->n_val = n - border;
    free(text);
}

/* A model of program_config, its weights to be set, its moments zero. */
__attribute__((unused)) static void direct_open(Direct *d, const char *flags, const GPT2Config *size,
                                                const char *text) {
    Error err = {0};
    *d = (Direct){.flags = flags,
                  .B = (int)flag_number(flags, "--batch"),
                  .T = (int)flag_number(flags, "--seq"),
                  .steps = (int)flag_number(flags, "--steps"),
                  .warmup = (int)flag_number(flags, "--warmup"),
                  .eval_every = (int)flag_number(flags, "--eval-every"),
                  .eval_batches = (int)flag_number(flags, "--eval-batches"),
                  .seed = (int64_t)flag_number(flags, "--seed"),
                  .lr = flag_number(flags, "--lr"),
                  .final = flag_number(flags, "--final-lr-fraction"),
                  .overfit = flag_text(flags, "--overfit") != NULL,
                  .best_val = NAN,
                  .save_every = 3};
    d->n_micro = (int)flag_number(flags, "--tokens-per-step") / (d->B * d->T);
    d->tokens = malloc((size_t)(d->B * d->T) * sizeof *d->tokens);
    d->targets = malloc((size_t)(d->B * d->T) * sizeof *d->targets);
    if (!d->tokens || !d->targets) abort();
    direct_data(d, text);
    GPT2Config config = *size;
    config.window = (int)flag_number(flags, "--window");
    config.dropout = (float)flag_number(flags, "--dropout");
    const GPT2Options options = {.B = d->B,
                                 .T = d->T,
                                 .training = true,
                                 .attention = flag_is(flags, "--attention", "standard") ? ATTENTION_STANDARD
                                                                                        : ATTENTION_FLASH,
                                 .optimizer = direct_optimizer(flags),
                                 .dropout_seed = (uint64_t)d->seed};
    if (!ops_cpu.device->open(0, &err) || !gpt2_open(&d->model, &ops_cpu, &config, &options, &err)) {
        fprintf(stderr, "direct_open: %s\n", err.text);
        exit(1);
    }
    float *zeros = calloc((size_t)d->model.n_elements, sizeof *zeros);
    if (!zeros) abort();
    for (int i = 0; i < N_STATES; i++)
        if (d->model.states[i]) gpt2_set_state(&d->model, (StateId)i, zeros, 0, d->model.n_elements);
    free(zeros);
}

__attribute__((unused)) static void direct_close(Direct *d) {
    gpt2_close(&d->model);
    free(d->train);
    free(d->tokens);
    free(d->targets);
}

/* ---- a run of the program held to it ---- */

/* A state as the parameters lie, 0 for those that have none. */
static const float *direct_state(GPT2 *model, StateId id) {
    memset(model->grads, 0, (size_t)model->n_elements * sizeof(float));
    return gpt2_gather_state(model, id);
}

/* OUT/step_N holds what the direct run has, bit for bit, and its place in the data. */
static void check_checkpoint(const char *name, Direct *d, const char *out, int step) {
    char path[400];
    GPT2 saved;
    TrainerState state = {0};
    Error err = {0};
    const GPT2Options options = {.B = 1, .T = 1, .training = true, .optimizer = d->model.options.optimizer};
    snprintf(path, sizeof path, "%s/step_%08d", out, step);
    if (!CHECK(gpt2_open(&saved, &ops_cpu, &d->model.config, &options, &err), "%s", err.text)) return;
    if (CHECK(checkpoint_resume(path, &saved, &state, &err), "%s: %s", name, err.text)) {
        const size_t bytes = (size_t)saved.n_elements * sizeof(float);
        CHECK(memcmp(saved.master, d->model.master, bytes) == 0, "%s: weights of step %d differ in some bits",
              name, step);
        for (int i = 0; i < N_STATES; i++)
            CHECK(!saved.states[i] || memcmp(direct_state(&saved, (StateId)i),
                                             direct_state(&d->model, (StateId)i), bytes) == 0,
                  "%s: %s of step %d differ in some bits", name, optimizer_states[i].name, step);
        CHECK(state.step == step && state.seed == d->seed && state.n_skipped == d->n_skipped,
              "%s: the checkpoint says step %lld, seed %lld, %lld skipped", name, (long long)state.step,
              (long long)state.seed, (long long)state.n_skipped);
        CHECK(state.tokens_seen == (int64_t)step * d->n_micro * d->B * d->T &&
                  state.data_position == d->position,
              "%s: the checkpoint says %lld tokens seen, window %lld, not %lld", name,
              (long long)state.tokens_seen, (long long)state.data_position, (long long)d->position);
    }
    CHECK(isnan(d->best_val) ? isnan(state.best_val_loss) : state.best_val_loss == d->best_val,
          "%s: step %d: the checkpoint says best validation %.17g, not %.17g", name, step,
          state.best_val_loss, d->best_val);
    free((char *)state.flags);
    gpt2_close(&saved);
}

__attribute__((unused)) static bool near(double got, double want, double limit) {
    return isnan(want) ? isnan(got) : fabs(got - want) <= limit * fabs(want);
}

static bool same_or_nan(double logged_value, float value) {
    return isfinite(value) ? logged_value == (double)value : isnan(logged_value);
}

/* Steps first+1 to the last of the log, and the checkpoints of every save_every-th and of the last. */
__attribute__((unused)) static void check_direct(const char *name, Direct *d, const ProgramLog *log,
                                                 const char *out) {
    CHECK(log->last == d->steps, "%s: the log ends at step %d of %d", name, log->last, d->steps);
    for (int step = 1; step <= log->last; step++) {
        const LoggedStep *s = &log->steps[step];
        direct_step(d, step);
        CHECK(same_or_nan(s->loss, d->loss) && same_or_nan(s->norm, d->norm),
              "%s: step %d: loss %.9g, norm %.9g; over the model's calls %.9g, %.9g", name, step, s->loss,
              s->norm, (double)d->loss, (double)d->norm);
        CHECK(near(s->lr, direct_lr(d, step), 1e-14), "%s: step %d: learning rate %.17g, not %.17g", name,
              step, s->lr, direct_lr(d, step));
        CHECK(s->skipped == d->n_skipped, "%s: step %d: %lld skipped, not %lld", name, step,
              (long long)s->skipped, (long long)d->n_skipped);
        const bool due = step == d->steps || (d->eval_every > 0 && step % d->eval_every == 0);
        const double val = due ? direct_val(d) : NAN;
        if (due && !(val >= d->best_val)) d->best_val = val;
        CHECK(due ? s->val_loss == val : isnan(s->val_loss), "%s: step %d: validation %.17g, not %.17g", name,
              step, s->val_loss, val);
        if (step % d->save_every == 0 || step == d->steps) check_checkpoint(name, d, out, step);
    }
}
