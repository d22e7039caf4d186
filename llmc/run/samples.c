#include "samples.h"
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "llmc/base/buffer.h"
#include "llmc/base/files.h"
#include "llmc/base/format.h"
#include "llmc/base/terminal.h"
#include "llmc/checkpoint/hf_config.h"
#include "llmc/comm/watchdog.h"
#include "profile.h"
#include "stop.h"

/* ---- texts ---- */

typedef struct Text {
    Buffer bytes;
    bool ended;
} Text;

/* The samples of one call. One is shown as it comes; those behind it wait until it has ended. */
typedef struct Texts {
    Console *console;
    FILE *frames;             /* where their first and last lines go; NULL: nowhere */
    const SampleRates *rates; /* NULL: nothing is said of the prompt */
    int64_t step;
    int n, shown; /* shown -1: none yet */
    Text *all;    /* (n) */
} Texts;

static void show_first(Texts *texts) {
    if (texts->shown == texts->n) return;
    console_sample_begin(texts->console, texts->frames, texts->step, texts->shown + 1, texts->n);
    const Text *text = &texts->all[texts->shown];
    console_text(texts->console, text->bytes.data, text->bytes.length);
}

/* A prompt may have many pages: how much of it counts stands before them. */
static void show_prompt(Texts *texts) {
    const SampleRates *rates = texts->rates;
    char read[FORMAT_NUMBER], all[FORMAT_NUMBER];
    if (rates && rates->n_read < rates->n_prompt)
        console_row(stderr, "prompt", "the last %s of its %s tokens, all that the model's context holds",
                    format_integer(read, rates->n_read), format_integer(all, rates->n_prompt));
    texts->shown = 0;
    show_first(texts);
}

/* Between two texts the frame is where they are. */
static void end_shown(Texts *texts) {
    const bool last = texts->shown + 1 == texts->n;
    console_sample_end(texts->console, last ? texts->frames : texts->console->out);
}

static void take_text(int sample, const char *bytes, size_t n, void *user) {
    Texts *texts = user;
    Text *text = &texts->all[sample];
    watchdog_progress();
    if (texts->shown < 0) show_prompt(texts);
    text->ended = n == 0;
    if (sample == texts->shown) console_text(texts->console, bytes, n);
    while (texts->shown < texts->n && texts->all[texts->shown].ended) {
        end_shown(texts);
        texts->shown++;
        show_first(texts);
    }
    buffer_append(&text->bytes, bytes, n); /* where memory ends, what is logged or shown later does */
}

/* Draws and shows them; `stop` ends that early. close_texts follows. */
static bool draw_texts(Texts *texts, Run *run, const SampleOptions *options, bool (*stop)(void),
                       SampleRates *rates, Error *err) {
    bool (*const stop_of_run)(void) = run->model.stop;
    texts->n = options->n_samples;
    texts->shown = -1;
    texts->rates = rates;
    texts->all = calloc((size_t)texts->n, sizeof *texts->all);
    if (!texts->all) return fail(err, EXIT_RUN, "--samples %d: no memory for their texts", texts->n);
    run->model.stop = stop;
    const bool ok = sample(&run->model, run->tokenizer, options, take_text, texts, rates, err);
    run->model.stop = stop_of_run;
    if (texts->shown >= 0 && texts->shown < texts->n) end_shown(texts);
    return ok;
}

static void close_texts(Texts *texts) {
    for (int i = 0; texts->all && i < texts->n; i++) buffer_free(&texts->all[i].bytes);
    free(texts->all);
}

/* Rounded down: of ten equals --top-p 0.1 leaves one, and the float nearest to 0.1, which is above it, two. */
static float top_p_of(double p) {
    const float nearest = (float)p;
    return (double)nearest > p ? nextafterf(nearest, 0) : nearest;
}

static SampleOptions samples_options(const Run *run, int64_t step) {
    const Settings *s = &run->settings;
    return (SampleOptions){
        .prompt = setup_prompt_text(run),
        .n_samples = (int)s->samples,
        .n_tokens = (int)s->sample_tokens,
        .temperature = (float)s->temperature,
        .top_k = (int)s->top_k,
        .top_p = top_p_of(s->top_p),
        .min_p = (float)s->min_p,
        .stop = s->stop,
        .seed = (uint64_t)(s->seed + step),
        .graph = s->graph == GRAPH_ON,
    };
}

/* ---- in training ---- */

bool samples_in_training(Training *t, int64_t step, Error *err) {
    if (t->run->settings.sample_tokens == 0 || !ranks_leads(t->run->comm->ranks)) return true;
    const SampleOptions options = samples_options(t->run, step);
    Texts texts = {.console = &t->console, .frames = t->console.out, .step = step};
    stop_expect(STOP_IN_SAMPLE, INFINITY);
    watchdog_set(PHASE_SAMPLE, step);
    /* Steps of ranks end together, rank 0's samples when it is asked to. */
    const bool ok = draw_texts(&texts, t->run, &options, stop_now, NULL, err);
    for (int i = 0; i < texts.n && ok && !stop_requested(); i++)
        log_sample(&t->log, step, texts.all[i].bytes.data, texts.all[i].bytes.length);
    close_texts(&texts);
    return ok;
}

/* ---- alone ---- */

/* The memory's bandwidth is that of a large copy; what is read faster than that lies in a cache. */
void samples_print_rates(const Ops *ops, const SampleRates *rates) {
    char rate[40] = "", memory[64] = "", drawn[FORMAT_NUMBER];
    if (rates->n_tokens == 0) return;
    const double steps = (double)rates->n_steps, roof = steps > 0 ? profile_copy_roof(ops) : 0;
    const double tokens = (double)rates->n_tokens * steps / (steps + 1); /* those that steps made */
    const double share = roof > 0 ? rates->step_bytes / rates->step_seconds / roof : 0;
    if (roof > 0) snprintf(rate, sizeof rate, ", %.0f tokens/s", tokens / rates->step_seconds);
    if (share > 1)
        snprintf(memory, sizeof memory, ", the weights lie in a cache");
    else if (roof > 0)
        snprintf(memory, sizeof memory, ", %.0f %% of the memory bandwidth", 100 * share);
    console_row(stderr, "sampled", "%s tokens, the first after %.0f ms%s%s",
                format_integer(drawn, rates->n_tokens), 1e3 * rates->first_seconds, rate, memory);
}

static void say_what(const Settings *s) {
    char words[SAMPLING_WORDS];
    console_row(stderr, "sampling", "%s, seed %lld", console_sampling(words, s), (long long)s->seed);
}

/* Another's model may end its texts at more tokens than end-of-text. */
static void note_other_end(const Run *run) {
    if (!run->tokenizer) return;
    size_t n = 0;
    const int token = hf_config_other_end(run->model_path, tokenizer_vocab_size(run->tokenizer),
                                          tokenizer_eot(run->tokenizer));
    const char *bytes = token < 0 ? NULL : tokenizer_bytes(run->tokenizer, token, &n);
    if (!bytes) return;
    print_note_to(
        stderr,
        "by eos_token_id of the model's files a text also ends at token %d, \"%.*s\", here it goes on; "
        "hint: --stop \"%.*s\"",
        token, (int)n, bytes, (int)n, bytes);
}

/* Where the texts go elsewhere, frames on stderr would hold nothing. */
static FILE *frames_of_stdout(void) {
    struct stat out, said;
    const bool known = fstat(STDOUT_FILENO, &out) == 0 && fstat(STDERR_FILENO, &said) == 0;
    return known && is_same_file(&out, &said) ? stderr : NULL;
}

/* Text that arrives nowhere is not drawn on. */
static bool output_fails(void) {
    return ferror(stdout) != 0;
}

bool samples_alone(Run *run, int64_t step, Error *err) {
    const Settings *s = &run->settings;
    const SampleOptions options = samples_options(run, step);
    Console console;
    SampleRates rates;
    console_open(&console, stdout, 0, 0);
    say_what(s);
    if (!s->stop) note_other_end(run);
    if (s->chat) return chat(run, &console, options, err);
    Texts texts = {.console = &console, .frames = frames_of_stdout(), .step = step};
    const bool ok =
        draw_texts(&texts, run, &options, output_fails, &rates, err) && console_text_arrived(&console, err);
    if (ok) samples_print_rates(run->ops, &rates);
    close_texts(&texts);
    return ok;
}
