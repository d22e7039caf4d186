/* Sampling with a cache of keys and values.
 *
 * The cache of a layer is its packed qkv, (rows,3,NH,HD), so the linear op that fills it in training fills it
 * here too: for a prompt all rows at once, then one row a token. The queries of past rows are kept and never
 * read again; that third is the price of one layout everywhere. */
#include "sampler.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "llmc/base/random.h"

typedef struct Sampler {
    GPT2 *model;
    int C, NH, HD, L;
    int cache_rows;                /* rows of the cache of each layer: the longest window */
    int feed_rows;                 /* rows of the buffers below: the most tokens fed at once */
    char *memory;                  /* one device allocation holds all that follows */
    int32_t *tokens;               /* (feed_rows) */
    float *mean, *rstd;            /* (feed_rows) */
    float *lse;                    /* (NH,feed_rows) */
    char *residual;                /* (feed_rows,C) */
    char *normed, *branch, *heads; /* (feed_rows,C) */
    float *decode_scratch;
    char *fch, *fch_gelu; /* (feed_rows,4C) */
    char *cache;          /* (L,cache_rows,3,NH,HD) */
    char *logits;         /* (Vp) */
    char *host_logits;    /* (V) as downloaded, storage type */
    float *values;        /* (V) */
    int32_t *window;      /* (max_seq_len + 1) tokens in view */
    int n, n_cached;      /* tokens in the window; of these, rows in the cache */
} Sampler;

static size_t storage_bytes(const Sampler *s, int64_t elems) {
    return (size_t)elems * dtype_bytes(s->model->ops->dtype);
}

/* ---- memory ---- */

/* Hands out parts of one allocation; with a NULL base it only counts. */
typedef struct Arena {
    char *base;
    size_t used;
} Arena;

static void *take(Arena *arena, size_t bytes) {
    char *part = arena->base ? arena->base + arena->used : NULL;
    arena->used += (bytes + 255) / 256 * 256;
    return part;
}

static size_t place_buffers(Sampler *s, char *base) {
    const int64_t rows = s->feed_rows, C = s->C;
    Arena arena = {.base = base};
    s->tokens = take(&arena, (size_t)rows * sizeof *s->tokens);
    s->mean = take(&arena, (size_t)rows * sizeof *s->mean);
    s->rstd = take(&arena, (size_t)rows * sizeof *s->rstd);
    s->lse = take(&arena, (size_t)(rows * s->NH) * sizeof *s->lse);
    s->residual = take(&arena, storage_bytes(s, rows * C));
    s->normed = take(&arena, storage_bytes(s, rows * C));
    s->branch = take(&arena, storage_bytes(s, rows * C));
    s->heads = take(&arena, storage_bytes(s, rows * C));
    s->decode_scratch = take(&arena, (size_t)attention_decode_scratch(s->NH, s->HD) * sizeof(float));
    s->fch = take(&arena, storage_bytes(s, rows * 4 * C));
    s->fch_gelu = take(&arena, storage_bytes(s, rows * 4 * C));
    s->cache = take(&arena, storage_bytes(s, (int64_t)s->L * s->cache_rows * 3 * C));
    s->logits = take(&arena, storage_bytes(s, s->model->config.padded_vocab_size));
    return arena.used;
}

static void sampler_close(Sampler *s) {
    s->model->ops->release(s->memory);
    free(s->host_logits);
    free(s->values);
    free(s->window);
}

/* Memory for a prompt of n_prompt tokens and n_tokens more. */
static bool sampler_open(Sampler *s, GPT2 *model, int n_prompt, int n_tokens, Error *err) {
    const GPT2Config *c = &model->config;
    const int64_t longest = (int64_t)n_prompt + n_tokens;
    const bool slides = longest > c->max_seq_len;
    *s = (Sampler){
        .model = model, .C = c->n_embd, .NH = c->n_head, .HD = c->n_embd / c->n_head, .L = c->n_layer};
    s->cache_rows = slides ? c->max_seq_len : (int)longest;
    s->feed_rows = slides && c->max_seq_len / 2 > n_prompt ? c->max_seq_len / 2 : n_prompt;
    const size_t bytes = place_buffers(s, NULL);
    s->host_logits = malloc(storage_bytes(s, c->vocab_size));
    s->values = malloc((size_t)c->vocab_size * sizeof *s->values);
    s->window = malloc(((size_t)c->max_seq_len + 1) * sizeof *s->window);
    s->memory = model->ops->alloc(bytes);
    if (s->memory && s->host_logits && s->values && s->window) {
        place_buffers(s, s->memory);
        return true;
    }
    sampler_close(s);
    return fail(err, EXIT_RUN,
                "sampling: out of memory: the cache for %d positions asks %.1f MiB on the device",
                s->cache_rows, (double)bytes / 1048576.0);
}

/* ---- forward, rows [first, first+n) of the window ---- */

static char *cache_row(const Sampler *s, int layer, int row) {
    return s->cache + storage_bytes(s, ((int64_t)layer * s->cache_rows + row) * 3 * s->C);
}

/* residual += branch, then the norm that follows. */
static void join_branch(Sampler *s, TensorId weight, TensorId bias, int layer, int n) {
    s->model->ops->residual_layernorm_forward(s->residual, s->normed, s->mean, s->rstd, s->residual,
                                              s->branch, gpt2_weight(s->model, weight, layer),
                                              gpt2_weight(s->model, bias, layer), n, s->C);
}

static void linear(Sampler *s, void *out, void *pre_gelu, const void *x, TensorId weight, int layer, int n,
                   int OC, int IC) {
    s->model->ops->linear_forward(out, pre_gelu, x, gpt2_weight(s->model, weight, layer),
                                  gpt2_weight(s->model, weight + 1, layer), n, OC, IC);
}

static void block_forward(Sampler *s, int l, int first, int n) {
    const Ops *ops = s->model->ops;
    const int C = s->C;
    const bool last = l == s->L - 1;
    linear(s, cache_row(s, l, first), NULL, s->normed, C_ATTN_W, l, n, 3 * C, C);
    const AttentionMask mask = {.window = s->model->config.window};
    const int unseen = mask.window > 0 && first >= mask.window ? first + 1 - mask.window : 0;
    if (first > 0)
        ops->attention_decode(s->heads, cache_row(s, l, unseen), s->decode_scratch, first - unseen, s->NH,
                              s->HD);
    else
        ops->attention_forward(s->heads, s->lse, cache_row(s, l, 0), &mask, 1, n, s->NH, s->HD);
    linear(s, s->branch, NULL, s->heads, ATTN_PROJ_W, l, n, C, C);
    join_branch(s, LN_2_W, LN_2_B, l, n);
    linear(s, s->fch_gelu, s->fch, s->normed, C_FC_W, l, n, 4 * C, C);
    linear(s, s->branch, NULL, s->fch_gelu, MLP_PROJ_W, l, n, C, 4 * C);
    join_branch(s, last ? LN_F_W : LN_1_W, last ? LN_F_B : LN_1_B, last ? 0 : l + 1, n);
}

/* Feeds the tokens of the window that the cache lacks (all of it, or one); s->values = logits after the last. */
static void feed_window(Sampler *s) {
    GPT2 *model = s->model;
    const Ops *ops = model->ops;
    const int first = s->n_cached, n = s->n - s->n_cached, V = model->config.vocab_size;
    const char *positions = gpt2_weight(model, WPE, 0);
    ops->upload(s->tokens, s->window + first, (size_t)n * sizeof *s->tokens);
    ops->embedding_forward(s->residual, s->tokens, gpt2_weight(model, WTE, 0),
                           positions + storage_bytes(s, (int64_t)first * s->C), 1, n, s->C);
    ops->layernorm_forward(s->normed, s->mean, s->rstd, s->residual, gpt2_weight(model, LN_1_W, 0),
                           gpt2_weight(model, LN_1_B, 0), n, s->C);
    for (int l = 0; l < s->L && !gpt2_stops(model); l++) block_forward(s, l, first, n);
    ops->linear_forward(s->logits, NULL, s->normed + storage_bytes(s, (int64_t)(n - 1) * s->C),
                        gpt2_weight(model, WTE, 0), NULL, 1, model->config.padded_vocab_size, s->C);
    ops->download(s->host_logits, s->logits, storage_bytes(s, V));
    floats_from_storage(s->values, s->host_logits, V, ops->dtype);
    s->n_cached = s->n;
}

/* A window longer than the context keeps its last half, whose positions then start from 0: the cache is void. */
static void slide_window(Sampler *s) {
    const int T = s->model->config.max_seq_len, keep = T > 1 ? T / 2 : 1;
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
    const int V = s->model->config.vocab_size;
    int n_bad = 0;
    for (int v = 0; v < V; v++) n_bad += !isfinite(s->values[v]);
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
            sample_token(s.values, model->config.vocab_size, options->temperature, options->top_k, &rng);
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
