/* Sampling with a cache of keys and values: the model's forward pass on rows of one sequence.
 *
 * The cache is the qkv activation, which keeps every row of every layer: a prompt fills all its rows at once, then
 * each token one row. Past queries stay there unread; that third is the price of one layout everywhere. */
#include "sampler.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "gpt2_pass.h"
#include "llmc/base/random.h"

typedef struct Sampler {
    GPT2 model;      /* the weights of the model that is sampled, activations of its own */
    char *memory;    /* one device allocation holds these activations */
    float *logits;   /* (V) after the last token fed */
    int32_t *window; /* (max_seq_len + 1) tokens in view */
    int n, n_cached; /* tokens in the window; of these, rows in the cache */
} Sampler;

/* ---- memory ---- */

/* Hands out parts of one allocation; with a NULL base it only counts. */
typedef struct Arena {
    char *base;
    size_t used;
} Arena;

static void *take(Arena *arena, size_t bytes) {
    char *part = arena->base && bytes ? arena->base + arena->used : NULL;
    arena->used += (bytes + 255) / 256 * 256;
    return part;
}

static size_t place_buffers(GPT2 *m, char *base) {
    Arena arena = {.base = base};
    const size_t bounds = m->config.documents ? (size_t)m->shape.T * sizeof *m->starts : 0;
    m->tokens = m->targets = take(&arena, (size_t)m->shape.T * sizeof *m->tokens);
    m->starts = take(&arena, bounds);
    m->ends = take(&arena, bounds);
    m->scratch =
        take(&arena, (size_t)attention_decode_scratch(m->shape.NH, m->shape.C / m->shape.NH) * sizeof(float));
    for (int id = 0; id < N_ACTIVATIONS; id++)
        m->activations[id].data = take(&arena, activation_bytes(&m->activations[id], &m->options));
    return arena.used;
}

/* The model for one sequence: feed_rows tokens at once at most, qkv of cache_rows positions, logits of one. */
static void sequence_model(GPT2 *m, const GPT2 *model, int feed_rows, int cache_rows) {
    *m = *model;
    m->options = (GPT2Options){.B = 1, .T = feed_rows, .attention = ATTENTION_FLASH};
    m->shape.B = 1;
    m->shape.T = feed_rows;
    m->shape.loss_rows = 1;
    activation_table(m->activations, m->ops, &m->shape, m->config.n_layer, &m->options);
    Activation *qkv = &m->activations[ACT_QKV];
    qkv->elems = (int64_t)cache_rows * 3 * m->shape.C;
    qkv->stride = (qkv->elems + 127) / 128 * 128;
    qkv->instances = m->config.n_layer;
}

static void sampler_close(Sampler *s) {
    s->model.ops->device->free(s->memory);
    free(s->logits);
    free(s->window);
}

/* Memory for a prompt of n_prompt tokens and n_tokens more. */
static bool sampler_open(Sampler *s, const GPT2 *model, int n_prompt, int n_tokens, Error *err) {
    const GPT2Config *c = &model->config;
    const int64_t longest = (int64_t)n_prompt + n_tokens;
    const bool slides = longest > c->max_seq_len;
    const int cache_rows = slides ? c->max_seq_len : (int)longest;
    const int feed_rows = slides && c->max_seq_len / 2 > n_prompt ? c->max_seq_len / 2 : n_prompt;
    *s = (Sampler){0};
    sequence_model(&s->model, model, feed_rows, cache_rows);
    const size_t bytes = place_buffers(&s->model, NULL);
    s->logits = malloc((size_t)c->vocab_size * sizeof *s->logits);
    s->window = malloc(((size_t)c->max_seq_len + 1) * sizeof *s->window);
    s->memory = model->ops->device->alloc(bytes);
    if (s->memory && s->logits && s->window) {
        place_buffers(&s->model, s->memory);
        return true;
    }
    sampler_close(s);
    return fail(err, EXIT_RUN,
                "sampling: out of memory: the cache for %d positions asks %.1f MiB on the device", cache_rows,
                (double)bytes / 1048576.0);
}

/* ---- the window ---- */

/* Where the document of the last token starts. */
static int document_start(const Sampler *s) {
    const GPT2Config *c = &s->model.config;
    int start = s->n - 1;
    while (c->documents && start > 0 && s->window[start - 1] != c->end_of_text) start--;
    return c->documents ? start : 0;
}

/* Feeds the tokens of the window that the cache lacks (all of it, or one). */
static void feed_window(Sampler *s) {
    GPT2 *m = &s->model;
    const int n = s->n - s->n_cached;
    Batch b = batch_of(m, 1, n);
    b.first = s->n_cached;
    b.document = document_start(s);
    if (b.first == 0) upload_documents(m, s->window, 1, n);
    m->ops->device->upload(m->tokens, s->window + b.first, (size_t)n * sizeof *m->tokens);
    forward_pass(m, &b);
    gpt2_logits(m, s->logits, n - 1, 1);
    s->n_cached = s->n;
}

/* A window longer than the context keeps its last half, whose positions then start from 0: the cache is void. */
static void slide_window(Sampler *s) {
    const int T = s->model.config.max_seq_len, keep = T > 1 ? T / 2 : 1;
    if (s->n <= T) return;
    memmove(s->window, s->window + s->n - keep, (size_t)keep * sizeof *s->window);
    s->n = keep;
    s->n_cached = 0;
}

/* ---- text ---- */

/* A token as its bytes; as its number where it has none, or where there is no tokenizer. */
static void emit(const Tokenizer *tokenizer, int token, SampleSink sink, void *user) {
    size_t length = 0;
    const char *bytes = tokenizer ? tokenizer_bytes(tokenizer, token, &length) : NULL;
    char number[16];
    if (!bytes) {
        length = (size_t)snprintf(number, sizeof number, tokenizer ? "[%d]" : "%d ", token);
        bytes = number;
    }
    sink(bytes, length, user);
}

/* The tokens that a sample starts from; at least one. malloc'ed. */
static bool encode_prompt(const SampleOptions *options, const Tokenizer *tokenizer, int V, int32_t **tokens,
                          size_t *n, Error *err) {
    enum { GPT2_EOT = 50256 };
    const bool empty = !options->prompt || !*options->prompt;
    *tokens = NULL;
    *n = 0;
    if (!empty && !tokenizer)
        return fail(err, EXIT_INPUT, "--prompt: there is no tokenizer to encode it; hint: --tokenizer");
    if (!empty && !tokenizer_encode(tokenizer, options->prompt, strlen(options->prompt), tokens, n, err))
        return false;
    for (size_t i = 0; i < *n; i++)
        if ((*tokens)[i] < 0 || (*tokens)[i] >= V)
            return fail(err, EXIT_INPUT,
                        "--prompt: the tokenizer gives token %d, the model's vocabulary is %d",
                        (int)(*tokens)[i], V);
    if (*n > 0) return true;
    const int start = tokenizer ? tokenizer_start(tokenizer) : GPT2_EOT;
    *tokens = malloc(sizeof **tokens);
    if (!*tokens) return fail(err, EXIT_RUN, "sampling: out of memory");
    **tokens = start < V ? start : 0;
    *n = 1;
    return true;
}

/* A model that has diverged, or whose files are damaged, has nothing to say. */
static bool check_logits(const Sampler *s, int i, Error *err) {
    const int V = s->model.config.vocab_size;
    int n_bad = 0;
    for (int v = 0; v < V; v++) n_bad += !isfinite(s->logits[v]);
    return n_bad == 0 ||
           fail(err, EXIT_RUN,
                "sampling: %d of the %d logits of token %d are NaN or infinite: the weights have "
                "diverged or are damaged",
                n_bad, V, i + 1);
}

static bool draw(GPT2 *model, const Tokenizer *tokenizer, const SampleOptions *options, const int32_t *prompt,
                 int n, SampleSink sink, void *user, Error *err) {
    enum { STREAM_SAMPLING = 1 };
    uint64_t rng = random_stream(options->seed, STREAM_SAMPLING);
    Sampler s;
    bool good = true;
    if (!sampler_open(&s, model, n, options->n_tokens, err)) return false;
    memcpy(s.window, prompt, (size_t)n * sizeof *s.window);
    s.n = n;
    for (int i = 0; i < options->n_tokens; i++) {
        feed_window(&s);
        if (gpt2_stops(model)) break;
        good = check_logits(&s, i, err);
        if (!good) break;
        int token =
            sample_token(s.logits, model->config.vocab_size, options->temperature, options->top_k, &rng);
        emit(tokenizer, token, sink, user);
        s.window[s.n++] = token;
        slide_window(&s);
    }
    sampler_close(&s);
    return good;
}

bool sample(GPT2 *model, const Tokenizer *tokenizer, const SampleOptions *options, SampleSink sink,
            void *user, Error *err) {
    const size_t T = (size_t)model->config.max_seq_len;
    int32_t *prompt;
    size_t n;
    bool good = encode_prompt(options, tokenizer, model->config.vocab_size, &prompt, &n, err);
    if (good) {
        if (options->prompt && *options->prompt) sink(options->prompt, strlen(options->prompt), user);
        const size_t used = n > T ? T : n; /* of a prompt longer than the context: its end */
        good = draw(model, tokenizer, options, prompt + (n - used), (int)used, sink, user, err);
    }
    free(prompt);
    return good;
}
