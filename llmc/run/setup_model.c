/* A run's model: whether it fits the device, what is said of it, its weights, where a resumed run goes on. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "llmc/base/files.h"
#include "llmc/base/terminal.h"
#include "llmc/checkpoint/checkpoint_directory.h"
#include "llmc/model/sampler.h"
#include "setup.h"

const char *setup_model_name(const Run *run) {
    return run->model_path[0] ? run->model_path : run->settings.model;
}

static GPT2Options model_options(const Run *run) {
    const Settings *s = &run->settings;
    const bool model_alone = settings_model_alone(s);
    return (GPT2Options){
        .B = model_alone ? 1 : (int)s->batch,
        .T = model_alone ? 1 : (int)s->seq,
        .recompute = s->recompute,
        .attention = s->attention,
        .training = !s->eval_only && !model_alone,
        .dropout_seed = (uint64_t)s->seed,
        .comm = run->comm,
        .context = model_alone ? NULL : run->context,
        .reproducible = (int)s->reproducible,
        .optimizer = s->optimizer,
        .graph = s->graph == GRAPH_ON && !s->profile,
    };
}

/* Ranks that have this device's memory between them: a host's CPU is one device for all of its ranks. */
static int n_sharing(const Run *run) {
    const int n_here = run->rendezvous.place.n_local; /* 0: they have not met */
    return run->ops != &ops_cpu ? 1 : n_here > 0 ? n_here : run->comm->ranks.n_ranks;
}

/* 256 MiB are left for kernels and library code that the driver loads on first use. */
static size_t budget(const Run *run, size_t free_bytes) {
    const size_t reserve = (size_t)256 << 20, share = free_bytes / (size_t)n_sharing(run);
    return share > reserve ? share - reserve : 0;
}

void setup_print_device(const Run *run) {
    const bool known =
        run->ops == &ops_cpu || cuda_available(); /* --memory plans for a card that is elsewhere, too */
    console_row(setup_header(run), "device", "%s: %s", run->ops->name,
                known ? run->ops->device->name() : "none on this machine");
    if (run->cpu_instead)
        print_note_to(setup_header(run),
                      "no CUDA device or no driver found: the CPU computes; hint: nvidia-smi");
}

/* A run's folder stands for its newest checkpoint. Whoever ran with --keep-best may want the best. */
static void note_best(const Run *run) {
    const char *out = run->settings.model;
    const bool is_newest = !run->checkpoint[0] && run->model_path[0] && strcmp(run->model_path, out) != 0;
    CheckpointEntry best;
    if (!is_newest || !checkpoint_kept_better(out, run->model_path, &best)) return;
    print_note_to(
        setup_header(run),
        "this is the newest checkpoint; --keep-best kept one of validation loss %.4f; hint: --model "
        "%s/%s",
        best.val_loss, out, best.name);
}

/* --model alone trains, on the default text: who wanted text of it, or its loss, would wait for nothing. */
static void note_default_data(const Run *run) {
    const Settings *s = &run->settings;
    if (!run->train || s->resume || s->profile || flags_was_set(s, "train") || !flags_was_set(s, "model"))
        return;
    if (run->model_path[0])
        print_note("--model without --train: this model is trained on %s; hint: --prompt TEXT samples from "
                   "it, --eval-only validates it",
                   s->train);
    else if (flags_was_set(s, "prompt") || s->prompt_file)
        print_note("--prompt and --model %s: a new model is trained, on %s; hint: --model DIR samples from a "
                   "trained one",
                   s->model, s->train);
}

void setup_print_model(const Run *run) {
    const GPT2Config *c = &run->config;
    char parameters[FORMAT_NUMBER];
    console_row(setup_header(run), "model",
                "%s: %d layers, %d heads, %d channels, context %d, vocabulary %d (padded %d), %s parameters",
                setup_model_name(run), c->n_layer, c->n_head, c->n_embd, c->max_seq_len, c->vocab_size,
                c->padded_vocab_size, format_count(parameters, (double)gpt2_n_parameters(c)));
    const int head_size = c->n_embd / c->n_head;
    if (run->ops == ops_cuda_bf16 && cuda_available() && !cuda_attention_tuned(head_size))
        print_note(
            "head size %d: attention runs on the kernels of older cards, 2 to 4 times slower than those of "
            "64, 80, 96, 112 and 128",
            head_size);
    setup_print_tokenizer(run);
    note_best(run);
    note_default_data(run);
}

/* Of saves between steps, which are rank 0's to write. */
static size_t planned_snapshot(const Run *run) {
    const Settings *s = &run->settings;
    const bool between = (s->save_every > 0 && s->save_every < s->steps) || s->keep_best;
    if (!s->out || !between || !model_options(run).training || !ranks_leads(run->comm->ranks)) return 0;
    return snapshot_bytes(&run->config, s->optimizer, s->model_only, run->comm->ranks.n_ranks);
}

/* A token of a prompt has at least a byte. */
static size_t planned_samples(const Run *run) {
    const Settings *s = &run->settings;
    const SampleOptions options = {.n_samples = (int)s->samples, .n_tokens = (int)s->sample_tokens};
    const char *prompt = setup_prompt_text(run);
    if (!s->memory || s->sample_tokens == 0 || s->eval_only || s->export_path) return 0;
    return sample_bytes(run->ops, &run->config, &options, prompt ? strlen(prompt) : 1);
}

static size_t planned_packing(const Run *run) {
    const Settings *s = &run->settings;
    return s->pack && model_options(run).training ? dataloader_packing_bytes(s->train, s->seq) : 0;
}

void setup_print_memory(const Run *run) {
    GPT2Options options = model_options(run);
    MemoryPlan plan;
    size_t free_bytes = 0, total_bytes = 0;
    gpt2_memory_plan(&plan, run->ops, &run->config, &options);
    int largest = -1;
    const bool has_batch = !settings_model_alone(&run->settings);
    if (run->ops == &ops_cpu || cuda_available()) {
        run->ops->device->memory_info(&free_bytes, &total_bytes);
        if (run->free_at_start)
            free_bytes = run->free_at_start; /* the model is open: what it had to fit in */
        if (has_batch)
            largest = gpt2_largest_batch(run->ops, &run->config, &options, budget(run, free_bytes));
    }
    console_memory(stdout, &plan, run->settings.memory, free_bytes, total_bytes, largest);
    console_more_memory(stdout, "samples", planned_samples(run), " more, while they are drawn");
    console_more_memory(stdout, "snapshot of a save", planned_snapshot(run),
                        " on the host, where it is free");
    console_more_memory(stdout, "packed sequences", planned_packing(run), " on the host");
}

static bool fits(const Run *run, GPT2Options options, int B, int T, Recompute recompute) {
    GPT2Config config = run->config;
    MemoryPlan plan;
    options.B = B;
    options.T = T;
    options.recompute = recompute;
    if (!run->model_path[0]) config.max_seq_len = T; /* a new model's positions are as many as --seq says */
    gpt2_memory_plan(&plan, run->ops, &config, &options);
    return plan.total_bytes <= budget(run, run->free_at_start);
}

/* The largest --batch that fits and of which a --tokens-per-step that was given is a multiple; 0: none. */
static int fitting_batch(const Run *run, const GPT2Options *options) {
    const Settings *s = &run->settings;
    const int64_t least = settings_least_step(s, run->comm->ranks.n_ranks) / s->batch;
    int B = gpt2_largest_batch(run->ops, &run->config, options, budget(run, run->free_at_start));
    if (flags_was_set(s, "tokens-per-step") && !s->one_micro_step)
        while (B > 1 && s->tokens_per_step % (B * least)) B--;
    return B;
}

/* What would make room for a plan that does not fit; only what the run can follow, and what is enough. */
static void room_hint(const Run *run, const GPT2Options *o, char *text, size_t size) {
    const Recompute block = RECOMPUTE_BLOCK;
    const bool model_alone = settings_model_alone(&run->settings),
               can_recompute = o->training && o->recompute < block;
    const int batch = fitting_batch(run, o);
    GPT2Options flash = *o;
    flash.attention = ATTENTION_FLASH;
    if (batch && !model_alone)
        snprintf(text, size, "; hint: --batch %d fits%s", batch,
                 can_recompute && fits(run, *o, o->B, o->T, block) ? ", or --recompute block" : "");
    else if (!model_alone && o->attention != ATTENTION_FLASH && fits(run, flash, 1, o->T, o->recompute))
        snprintf(text, size, "; even --batch 1 does not fit; hint: --batch 1 --attention flash");
    else if (can_recompute && fits(run, *o, 1, o->T, block))
        snprintf(text, size, "; even --batch 1 does not fit; hint: --batch 1 --recompute block");
    else if (!model_alone && fits(run, *o, 1, 1, can_recompute ? block : o->recompute))
        snprintf(text, size, "; even --batch 1 does not fit; hint: a shorter --seq%s",
                 can_recompute ? " and --recompute block" : "");
    else if (!run->model_path[0])
        snprintf(text, size,
                 "; not even one token fits; hint: a smaller model (--model, --layers, --channels)");
    else
        snprintf(text, size, "; not even one token fits%s",
                 run->ops == &ops_cpu ? "" : " beside the weights; hint: --device cpu");
}

/* A plan that does not fit stops here, before anything is allocated. */
static bool check_memory(Run *run, Error *err) {
    const GPT2Options options = model_options(run);
    const double GiB = 1073741824.0;
    MemoryPlan plan;
    size_t total_bytes;
    char hint[120], what[64], sharing[40] = "";
    run->ops->device->memory_info(&run->free_at_start, &total_bytes);
    run->free_at_start += run->ops->device->fixed_bytes() + /* open() took these, and the plan counts them */
                          run->exchange_bytes;
    gpt2_memory_plan(&plan, run->ops, &run->config, &options);
    run->planned_bytes = plan.total_bytes;
    if (plan.total_bytes <= budget(run, run->free_at_start)) return true;
    room_hint(run, &options, hint, sizeof hint);
    snprintf(what, sizeof what, "--batch %d --seq %d", options.B, options.T);
    if (n_sharing(run) > 1) snprintf(sharing, sizeof sharing, " for %d ranks", n_sharing(run));
    return fail(err, EXIT_RUN, "%s needs %.2f GiB, %.2f GiB are free%s%s",
                settings_model_alone(&run->settings) ? setup_model_name(run) : what,
                (double)plan.total_bytes / GiB, (double)run->free_at_start / GiB, sharing, hint);
}

bool setup_device(Run *run, Error *err) {
    return run->ops->device->open(0, err) && check_memory(run, err);
}

static bool names_order(const char *flag) {
    static const char *const of_order[] = {"train", "pack", "seq", "seed"};
    for (size_t i = 0; i < sizeof of_order / sizeof *of_order; i++)
        if (strcmp(flag, of_order[i]) == 0) return true;
    return false;
}

/* The order is a function of the place in the run, whatever was read before. */
static void note_new_order(const Run *run, const char *flag) {
    char number[FORMAT_NUMBER];
    print_note("the order of the data goes on at window %s of the new --%s: text that was read before may "
               "come again, and some may be left out",
               format_integer(number, run->resumed.data_position), flag);
}

/* By its length and samples of it, whatever its name is now. */
static bool has_same_text(const Run *run) {
    return run->resumed.data_tokens == dataloader_n_tokens(run->train) && run->resumed.data_fingerprint &&
           run->resumed.data_fingerprint == dataloader_fingerprint(run->train);
}

/* The same names may stand for other text: files that grew, more that a pattern matches, or one in place of another. */
static void note_new_text(const Run *run) {
    const int64_t before = run->resumed.data_tokens, now = dataloader_n_tokens(run->train);
    char number[2][FORMAT_NUMBER];
    if (before == now && run->resumed.data_fingerprint && !has_same_text(run))
        print_note(
            "the training data is other text than in the checkpoint, of the same length; the run goes on "
            "with it");
    if (!before || before == now) return;
    print_note("the training data had %s tokens in the checkpoint, the run goes on with %s",
               format_integer(number[0], before), format_integer(number[1], now));
    note_new_order(run, "train");
}

/* Another name for the same text; in a mixture the shares make the order, too. */
static bool is_renamed(const Run *run, const FlagDifference *d) {
    return strcmp(d->name, "train") == 0 && !strchr(d->saved, ',') && !strchr(d->now, ',') &&
           has_same_text(run);
}

/* Of files the weights are expected, and here they are the checkpoint's. */
static void note_unread_model(const Run *run) {
    if (run->unread_model)
        print_note(
            "--model %s is not read: the weights are the checkpoint's, of a run that began with --model "
            "%s; hint: another --out for a new run",
            run->unread_model, run->settings.model_of_run);
}

/* Names what changed since the checkpoint was written; the run goes on with the new values. */
static void note_differences(const Run *run, const char *saved_flags) {
    FlagDifference found[FLAGS_MAX];
    const int n = saved_flags ? flags_differences(saved_flags, &run->settings, found) : 0;
    bool orders = false, validates_anew = false;
    for (int i = 0; i < n; i++) {
        print_note("--%s was %s in the checkpoint, the run goes on with %s", found[i].name, found[i].saved,
                   found[i].now);
        validates_anew = validates_anew || strcmp(found[i].name, "val") == 0 ||
                         (strcmp(found[i].name, "train") == 0 && !run->settings.val);
        if (!names_order(found[i].name) || is_renamed(run, &found[i])) continue;
        note_new_order(run, found[i].name);
        orders = true;
    }
    if (!orders) note_new_text(run);
    if (validates_anew && run->settings.keep_best && isfinite(run->resumed.best_val_loss))
        print_note("--keep-best begins anew: the checkpoints that there are were validated on other data");
}

static bool resume(Run *run, Error *err) {
    bool is_gone = !directory_has(run->checkpoint, "config.json");
    run->comm->broadcast_on_host(run->comm, &is_gone, sizeof is_gone); /* hosts may see a shared disk late */
    if (is_gone) { /* it was aside and is back in its place */
        if (!setup_find_checkpoint(run, err)) return false;
        snprintf(run->model_path, sizeof run->model_path, "%s", run->checkpoint);
    }
    if (!checkpoint_resume(run->checkpoint, &run->model, &run->resumed, err)) return fail_flag("resume", err);
    dataloader_seek(run->train, run->resumed.data_position);
    run->model.step = run->resumed.step;
    note_unread_model(run);
    note_differences(run, run->resumed.flags);
    free((char *)run->resumed.flags);
    run->resumed.flags = NULL;
    return true;
}

/* The process's resident memory: on the CPU other programs make the free memory of the machine useless as a
 * measure. */
static size_t resident_bytes(void) {
    size_t pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file) return 0;
    if (fscanf(file, "%*u %zu", &pages) != 1) pages = 0;
    fclose(file);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

static void open_snapshot(Run *run) {
    const size_t bytes = planned_snapshot(run);
    char text[FORMAT_NUMBER];
    if (!bytes) return;
    if (!snapshot_open(&run->snapshot, &run->model, run->settings.model_only))
        print_note("the host has no %s to spare for a snapshot: training waits while a checkpoint is written",
                   format_bytes(text, (double)bytes));
    else if (run->ops == &ops_cpu)
        run->planned_bytes += bytes;
}

static bool load_model(Run *run, Error *err) {
    while (!checkpoint_load_weights(run->model_path, &run->model, err))
        if (!setup_model_moved(run)) return fail_flag("model", err);
    return true;
}

static bool open_model(Run *run, const GPT2Options *options, Error *err) {
    if (!check_memory(run, err)) return false; /* again: a text lies in the host's memory now */
    if (options->training && run->settings.schedule == SCHEDULE_CONSTANT &&
        flags_was_set(&run->settings, "final-lr-fraction"))
        print_note("--final-lr-fraction does nothing: --schedule constant stays at --lr");
    const char *lr_is_for = settings_lr_is_for(&run->settings);
    if (options->training && lr_is_for)
        print_note("--lr %g is the recipe's, for %s, and --optimizer is %s; hint: --lr, %s", run->settings.lr,
                   lr_is_for, flags_choice(&run->settings, "optimizer"),
                   run->settings.optimizer == OPTIMIZER_MUON ? "about five times that"
                                                             : "about a fifth of that");
    run->resident_at_start = resident_bytes();
    if (!gpt2_open(&run->model, run->ops, &run->config, options, err)) return false;
    if (run->checkpoint[0] && options->training) return resume(run, err);
    if (run->model_path[0]) return load_model(run, err);
    gpt2_init(&run->model, (uint64_t)run->settings.seed);
    return true;
}

/* Ranks may have opened two checkpoints of a run that saves and removes beside this one. All ranks, `ok` or not. */
static bool same_model(const Run *run, bool ok, Error *err) {
    enum { SIZE = sizeof run->model_path };
    Comm *comm = run->comm;
    const int n = comm->ranks.n_ranks;
    char *all = must_allocate((size_t)n * SIZE, "the names of all ranks' models"), name[RANK_NAME_BYTES];
    comm->gather_on_host(comm, all, run->model_path, SIZE);
    for (int i = 1; ok && i < n; i++) {
        const char *theirs = all + i * SIZE;
        if (strcmp(theirs, all) == 0) continue;
        ok = fail(
            err, EXIT_RUN,
            "--model %s: %s has loaded %s, rank 0 %s: a run beside has changed what is there; hint: name "
            "the checkpoint",
            run->settings.model, rank_name(name, &run->rendezvous, i), theirs, all);
    }
    free(all);
    return ok;
}

bool setup_model(Run *run, Error *err) {
    const GPT2Options options = model_options(run);
    if (!setup_same_data(run, err) || !same_model(run, open_model(run, &options, err), err)) return false;
    open_snapshot(run);
    return true;
}

static size_t difference(size_t more, size_t less) {
    return more > less ? more - less : 0;
}

size_t setup_memory_in_use(const Run *run) {
    size_t free_bytes, total_bytes;
    if (run->ops == &ops_cpu) return difference(resident_bytes(), run->resident_at_start);
    run->ops->device->memory_info(&free_bytes, &total_bytes);
    const size_t in_use = difference(run->free_at_start, free_bytes), plan = run->planned_bytes;
    return in_use < plan - plan / 16 ? 0 : in_use; /* less than was allocated: others gave theirs back */
}
