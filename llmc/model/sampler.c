/* Sampling with a cache of keys and values: the model's forward pass, first on each sequence's window, which fills the
 * cache, then on one new token of each.
 *
 * Tokens, positions and random numbers stay on the device. The host queues steps and reads what was drawn in pieces of
 * READ_ROWS tokens, one piece late where the device runs ahead; so a sample's end is seen late, and what was drawn
 * behind it is dropped. */
#include "sampler.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "gpt2_pass.h"
#include "llmc/base/clock.h"
#include "llmc/base/random.h"

enum {
    MAX_TOGETHER = 64, /* sequences that are decoded together */
    READ_ROWS = 16,    /* tokens of each that are read at once */
};
_Static_assert(READ_ROWS *MAX_TOGETHER * sizeof(int32_t) <= READBACK_BYTES, "a readback holds what is read");
_Static_assert(DRAWN_ROWS % READ_ROWS == 0 && DRAWN_ROWS >= 4 * READ_ROWS, "what is not read stays");

/* One sample, as the host knows it. */
typedef struct Sequence {
    int32_t *window; /* (max_seq_len + 1) tokens in view */
    char *held;      /* the end of its text, which may be the beginning of the stop text */
    size_t n_held;
    bool ended;
} Sequence;

typedef struct Sampler {
    GPT2 model; /* the weights of the model that is sampled, activations of its own */
    const SampleOptions *options;
    const Tokenizer *tokenizer;
    SampleSink *sink;
    void *user;
    SampleRates *rates;
    double began;    /* when the call began, or the steps */
    int n_before;    /* samples of the groups before this one */
    char *memory;    /* one device allocation holds all below, and the activations */
    KVCache cache;   /* its B: the sequences of this group */
    int32_t *begins; /* (B) where the documents of what is drawn start; NULL: sequences are whole */
    DrawArgs draw;
    Graph *graph; /* of a step */
    Sequence sequences[MAX_TOGETHER];
    int n_live;
    int n;                /* tokens in each window */
    bool is_cached;       /* all but the last of them have rows in the cache */
    int n_read, n_queued; /* tokens in each window that the host has; that it has or has asked for */
    int n_taken;          /* draws that it has */
    int slot;             /* of the next readback */
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

static size_t place_buffers(Sampler *s, char *base) {
    GPT2 *m = &s->model;
    DrawArgs *d = &s->draw;
    Arena arena = {.base = base};
    const size_t B = (size_t)s->cache.B, C = (size_t)m->shape.C, X = dtype_bytes(m->ops->dtype);
    const size_t bounds = m->config.documents ? (size_t)m->shape.T * sizeof *m->starts : 0;
    const int64_t decode = attention_decode_scratch(s->cache.B, m->shape.NH, m->shape.C / m->shape.NH);
    m->tokens = m->targets = take(&arena, (size_t)m->shape.T * sizeof *m->tokens);
    m->starts = take(&arena, bounds);
    m->ends = take(&arena, bounds);
    m->scratch = take(&arena, (size_t)decode * sizeof(float));
    s->begins = take(&arena, m->config.documents ? B * sizeof *s->begins : 0);
    d->positions = take(&arena, B * sizeof *d->positions);
    d->drawn = take(&arena, DRAWN_ROWS * B * sizeof *d->drawn);
    d->rng = take(&arena, B * sizeof *d->rng);
    s->cache.data = take(&arena, (size_t)m->config.n_layer * B * (size_t)s->cache.T * 2 * C * X);
    for (int id = 0; id < N_ACTIVATIONS; id++)
        m->activations[id].data = take(&arena, activation_bytes(&m->activations[id], &m->options));
    d->tokens = m->tokens;
    d->logits = gpt2_activation(m, ACT_LOGITS, 0);
    return arena.used;
}

/* The model for `rows` rows at once at most, with logits of as many as there are sequences. */
static void sequence_model(Sampler *s, const GPT2 *model, int rows) {
    GPT2 *m = &s->model;
    *m = *model;
    m->options = (GPT2Options){.B = 1, .T = rows, .attention = ATTENTION_FLASH};
    m->shape.B = 1;
    m->shape.T = rows;
    m->shape.loss_rows = s->cache.B;
    activation_table(m->activations, m->ops, &m->shape, m->config.n_layer, &m->options);
}

static void sampler_close(Sampler *s) {
    const Device *device = s->model.ops->device;
    device->graph_free(s->graph);
    device->free(s->memory);
    for (int b = 0; b < MAX_TOGETHER; b++) {
        free(s->sequences[b].window);
        free(s->sequences[b].held);
    }
}

static bool open_sequences(Sampler *s) {
    const size_t stop = s->options->stop ? strlen(s->options->stop) : 0;
    for (int b = 0; b < s->cache.B; b++) {
        Sequence *q = &s->sequences[b];
        q->window = malloc(((size_t)s->model.config.max_seq_len + 1) * sizeof *q->window);
        q->held = malloc(stop + 1);
        if (!q->window || !q->held) return false;
    }
    return true;
}

/* The device memory for a prompt of n_prompt tokens and n_tokens more, in B sequences. */
static size_t plan_memory(Sampler *s, const GPT2 *model, int B, int n_prompt) {
    const GPT2Config *c = &model->config;
    const int64_t longest = (int64_t)n_prompt + s->options->n_tokens;
    const bool slides = longest > c->max_seq_len;
    const int fed = slides && c->max_seq_len / 2 > n_prompt ? c->max_seq_len / 2 : n_prompt;
    s->cache = (KVCache){.B = B, .T = slides ? c->max_seq_len : (int)longest};
    sequence_model(s, model, fed > B ? fed : B);
    s->draw = (DrawArgs){
        .temperature = s->options->temperature,
        .top_k = s->options->top_k,
        .top_p = s->options->top_p,
        .min_p = s->options->min_p,
        .B = B,
        .V = c->vocab_size,
        .Vp = c->padded_vocab_size,
    };
    return place_buffers(s, NULL);
}

static bool sampler_open(Sampler *s, const GPT2 *model, int B, int n_prompt, Error *err) {
    const size_t bytes = plan_memory(s, model, B, n_prompt);
    s->memory = model->ops->device->alloc(bytes);
    if (!s->memory)
        return fail(
            err, EXIT_RUN,
            "sampling: out of memory: the cache for %d positions of %d %s asks %.1f MiB on the device",
            s->cache.T, B, B > 1 ? "samples" : "sample", (double)bytes / 1048576.0);
    if (open_sequences(s)) {
        place_buffers(s, s->memory);
        return true;
    }
    sampler_close(s);
    return fail(err, EXIT_RUN, "sampling: out of memory: %d positions of %d %s on the host",
                model->config.max_seq_len, B, B > 1 ? "samples" : "sample");
}

/* ---- text ---- */

static void send(Sampler *s, int b, const char *bytes, size_t n) {
    if (n) s->sink(s->n_before + b, bytes, n, s->user);
}

static void end_sequence(Sampler *s, int b) {
    if (s->sequences[b].ended) return;
    s->sequences[b].ended = true;
    s->n_live--;
    s->sink(s->n_before + b, "", 0, s->user);
}

/* Sends what cannot be the beginning of the stop text any more; true where all of that has come. */
static bool send_before_stop(Sampler *s, int b, const char *bytes, size_t n) {
    Sequence *q = &s->sequences[b];
    const char *stop = s->options->stop;
    const size_t length = strlen(stop);
    for (size_t i = 0; i < n; i++) {
        q->held[q->n_held++] = bytes[i];
        size_t ready = 0;
        while (memcmp(q->held + ready, stop, q->n_held - ready) != 0) ready++;
        send(s, b, q->held, ready);
        q->n_held -= ready;
        memmove(q->held, q->held + ready, q->n_held);
        if (q->n_held == length) return true;
    }
    return false;
}

/* A token as its bytes; as its number where it has none, or where there is no tokenizer. */
static void emit(Sampler *s, int b, int token) {
    size_t length = 0;
    const char *bytes = s->tokenizer ? tokenizer_bytes(s->tokenizer, token, &length) : NULL;
    char number[16];
    if (!bytes) {
        length = (size_t)snprintf(number, sizeof number, s->tokenizer ? "[%d]" : "%d ", token);
        bytes = number;
    }
    s->rates->n_tokens++;
    if (!s->options->stop)
        send(s, b, bytes, length);
    else if (send_before_stop(s, b, bytes, length))
        end_sequence(s, b);
}

/* The tokens that a sample starts from; at least one. malloc'ed. */
static bool encode_prompt(const SampleOptions *options, const Tokenizer *tokenizer, int V, int32_t **tokens,
                          size_t *n, Error *err) {
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

/* ---- reading what was drawn ---- */

static bool ends_text(const Sampler *s, int token) {
    const GPT2Config *c = &s->model.config;
    return (s->tokenizer && token == tokenizer_eot(s->tokenizer)) ||
           (c->documents && token == c->end_of_text);
}

/* A model that has diverged, or whose files are damaged, has nothing to say. */
static bool accept(Sampler *s, int b, int position, int token, Error *err) {
    Sequence *q = &s->sequences[b];
    if (token < 0)
        return fail(err, EXIT_RUN,
                    "sampling: %d of the %d logits of token %d are NaN or infinite: the weights have "
                    "diverged or are damaged",
                    -token, s->model.config.vocab_size, s->n_taken + 1);
    q->window[position] = token;
    if (q->ended) return true;
    if (ends_text(s, token)) {
        send(s, b, q->held, q->n_held);
        end_sequence(s, b);
    } else {
        emit(s, b, token);
    }
    return true;
}

/* Waits for what was asked for. */
static bool read_queued(Sampler *s, Error *err) {
    int32_t rows[READ_ROWS * MAX_TOGETHER];
    const int B = s->cache.B;
    if (s->n_queued == s->n_read) return true;
    s->model.ops->device->readback_end(1 - s->slot, rows,
                                       (size_t)((s->n_queued - s->n_read) * B) * sizeof *rows);
    const int first = s->n_read;
    for (; s->n_read < s->n_queued; s->n_read++, s->n_taken++)
        for (int b = 0; b < B; b++)
            if (!accept(s, b, s->n_read, rows[(s->n_read - first) * B + b], err)) return false;
    return true;
}

/* Asks for what is not asked for yet: rows of `drawn` without a turn, because a multiple of READ_ROWS ends them. */
static void queue_reading(Sampler *s) {
    const int B = s->cache.B, row = s->n_queued % DRAWN_ROWS;
    if (s->n_queued == s->n) return;
    side_waits(&s->model, EVENT_TOKENS_DRAWN);
    s->model.ops->device->readback_begin(s->slot, STREAM_SIDE, s->draw.drawn + row * B,
                                         (size_t)((s->n - s->n_queued) * B) * sizeof *s->draw.drawn);
    s->slot = 1 - s->slot;
    s->n_queued = s->n;
}

static bool read_all(Sampler *s, Error *err) {
    if (!read_queued(s, err)) return false;
    queue_reading(s);
    return read_queued(s, err);
}

/* The first token is waited for; then, on a device that runs ahead, what comes is a piece late. */
static bool read_some(Sampler *s, Error *err) {
    if (s->n_taken == 0 || !s->model.ops->device->is_async) return read_all(s, err);
    if (s->n % READ_ROWS) return true;
    if (!read_queued(s, err)) return false;
    queue_reading(s);
    return true;
}

/* ---- the window ---- */

/* The rows of the cache that sequence 0 has are those of sequence b, too. */
static void copy_cache(Sampler *s, int b) {
    GPT2 *m = &s->model;
    const int64_t of_sequence = (int64_t)s->cache.T * 2 * m->shape.C;
    for (int l = 0; l < m->config.n_layer; l++) {
        floatX *first = rows_from(m, s->cache.data, (int64_t)l * s->cache.B, of_sequence);
        m->ops->device->copy(rows_from(m, first, b, of_sequence), first,
                             (size_t)(s->n * 2 * (int64_t)m->shape.C) * dtype_bytes(m->ops->dtype));
    }
}

/* The whole window of sequence b through the training forward pass; its last row's logits become row b of all. */
static void feed_window(Sampler *s, int b) {
    GPT2 *m = &s->model;
    Batch batch = batch_of(m, 1, s->n);
    batch.cache = &s->cache;
    batch.sequence = b;
    m->ops->device->upload(m->tokens, s->sequences[b].window, (size_t)s->n * sizeof *m->tokens);
    upload_documents(m, s->sequences[b].window, 1, s->n);
    forward_pass(m, &batch);
    const floatX *last = rows_from(m, gpt2_activation(m, ACT_LN_F, 0), s->n - 1, batch.C);
    linear_forward(m, WTE, 0, rows_from(m, gpt2_activation(m, ACT_LOGITS, 0), b, s->draw.Vp), NULL, last, 1);
}

/* What is drawn belongs to the document behind the last end-of-text; it ends with the next one, as the sample does. */
static void upload_begins(Sampler *s) {
    int32_t begins[MAX_TOGETHER] = {0};
    if (!s->begins) return;
    for (int b = 0; b < s->cache.B; b++)
        for (int i = 0; i < s->n; i++)
            if (s->sequences[b].window[i] == s->model.config.end_of_text) begins[b] = i + 1;
    s->model.ops->device->upload(s->begins, begins, (size_t)s->cache.B * sizeof *begins);
}

/* Fills the cache of every sequence and draws a token behind each window. The first windows are all the prompt. */
static void feed_windows(Sampler *s) {
    GPT2 *m = &s->model;
    floatX *logits = gpt2_activation(m, ACT_LOGITS, 0);
    const size_t row = (size_t)s->draw.Vp * dtype_bytes(m->ops->dtype);
    int32_t positions[MAX_TOGETHER];
    for (int b = 0; b < s->cache.B; b++) {
        positions[b] = s->n - 1;
        if (b == 0 || s->n_taken > 0) {
            feed_window(s, b);
        } else {
            copy_cache(s, b);
            m->ops->device->copy((char *)logits + (size_t)b * row, logits, row);
        }
    }
    m->ops->device->upload(s->draw.positions, positions, (size_t)s->cache.B * sizeof *positions);
    upload_begins(s);
    m->ops->draw_tokens(&s->draw);
}

/* A window longer than the context keeps its last half, whose positions then start from 0: the cache is void. */
static bool slide_window(Sampler *s, Error *err) {
    const int T = s->model.config.max_seq_len, keep = T > 1 ? T / 2 : 1;
    if (s->n <= T) return true;
    if (!read_all(s, err)) return false;
    for (int b = 0; b < s->cache.B; b++) {
        int32_t *window = s->sequences[b].window;
        memmove(window, window + s->n - keep, (size_t)keep * sizeof *window);
    }
    s->n = s->n_read = s->n_queued = keep;
    s->is_cached = false;
    return true;
}

/* ---- a step ---- */

static void decode_ops(Sampler *s) {
    GPT2 *m = &s->model;
    Batch batch = batch_of(m, s->cache.B, 1);
    batch.cache = &s->cache;
    batch.positions = s->draw.positions;
    batch.begins = s->begins;
    forward_pass(m, &batch);
    head_forward(m, &batch, 0);
    m->ops->draw_tokens(&s->draw);
}

/* The graph of a step, while the device still reads the prompt. The ops need no first run for it: products of so few rows
 * are not timed. */
static void capture(Sampler *s) {
    const Device *device = s->model.ops->device;
    bool (*const stop)(void) = s->model.stop;
    if (!s->options->graph || !device->capture_begin()) return;
    s->model.stop = NULL; /* the graph is whole */
    decode_ops(s);
    s->model.stop = stop;
    s->graph = device->capture_end();
}

/* The token behind each window into the cache, and the next one drawn. */
static void decode(Sampler *s) {
    const GPT2 *m = &s->model;
    const double X = (double)dtype_bytes(m->ops->dtype), C = m->shape.C;
    if (s->graph)
        m->ops->device->graph_launch(s->graph);
    else
        decode_ops(s);
    s->rates->n_steps++;
    s->rates->step_bytes += X * ((double)m->n_parameters - C * m->config.max_seq_len +
                                 2 * C * m->config.n_layer * s->cache.B * s->n);
}

static void draw_token(Sampler *s) {
    if (s->is_cached)
        decode(s);
    else
        feed_windows(s);
    s->is_cached = true;
    s->n++;
}

/* ---- samples ---- */

static void start_sequences(Sampler *s, const int32_t *prompt, int n) {
    enum { STREAM_SAMPLING = 1, NEXT_SAMPLE = 256 };
    const SampleOptions *o = s->options;
    const bool echo = !o->text_alone && o->prompt;
    uint64_t rng[MAX_TOGETHER];
    for (int b = 0; b < s->cache.B; b++) {
        memcpy(s->sequences[b].window, prompt, (size_t)n * sizeof *prompt);
        rng[b] = random_stream(o->seed, STREAM_SAMPLING + (uint64_t)(s->n_before + b) * NEXT_SAMPLE);
        if (echo) send(s, b, o->prompt, strlen(o->prompt));
    }
    s->model.ops->device->upload(s->draw.rng, rng, (size_t)s->cache.B * sizeof *rng);
    s->n = s->n_read = s->n_queued = n;
    s->n_live = s->cache.B;
}

static bool draw_tokens(Sampler *s, Error *err) {
    for (int i = 0; i < s->options->n_tokens && s->n_live > 0; i++) {
        draw_token(s);
        if (gpt2_stops(&s->model)) break;
        if (i == 0 && s->options->n_tokens > 1) {
            queue_reading(s); /* of what stands before the graph's memory */
            capture(s);
        }
        if (!read_some(s, err) || !slide_window(s, err)) return false;
        if (i > 0) continue;
        if (s->n_before == 0) s->rates->first_seconds = clock_seconds() - s->began;
        s->began = clock_seconds();
    }
    if (!gpt2_stops(&s->model) && !read_all(s, err)) return false;
    if (s->n_taken > 0) s->rates->step_seconds += clock_seconds() - s->began;
    return true;
}

/* Samples n_before and on, B of them. */
static bool draw_group(Sampler *s, const GPT2 *model, int B, const int32_t *prompt, int n, Error *err) {
    if (!sampler_open(s, model, B, n, err)) return false;
    start_sequences(s, prompt, n);
    const bool good = draw_tokens(s, err);
    for (int b = 0; b < B && good; b++) {
        Sequence *q = &s->sequences[b];
        if (!q->ended) send(s, b, q->held, q->n_held);
        end_sequence(s, b);
    }
    model->ops->device->synchronize(); /* what was queued behind the end */
    sampler_close(s);
    return good;
}

size_t sample_bytes(const Ops *ops, const GPT2Config *config, const SampleOptions *options, size_t n_prompt) {
    const GPT2 model = {
        .ops = ops,
        .config = *config,
        .shape = {.C = config->n_embd,
                  .NH = config->n_head,
                  .V = config->vocab_size,
                  .Vp = config->padded_vocab_size},
    };
    const size_t T = (size_t)config->max_seq_len, used = n_prompt > T ? T : n_prompt;
    Sampler s = {.options = options};
    return plan_memory(&s, &model, options->n_samples < MAX_TOGETHER ? options->n_samples : MAX_TOGETHER,
                       used ? (int)used : 1);
}

bool sample(GPT2 *model, const Tokenizer *tokenizer, const SampleOptions *options, SampleSink *sink,
            void *user, SampleRates *rates, Error *err) {
    const size_t T = (size_t)model->config.max_seq_len;
    const double began = clock_seconds();
    SampleRates unused;
    int32_t *prompt;
    size_t n;
    if (!rates) rates = &unused;
    *rates = (SampleRates){0};
    bool good = encode_prompt(options, tokenizer, model->config.vocab_size, &prompt, &n, err);
    const size_t used = n > T ? T : n; /* of a prompt longer than the context: its end */
    if (good) rates->n_prompt = (int64_t)n, rates->n_read = (int64_t)used;
    for (int first = 0; good && first < options->n_samples && !gpt2_stops(model); first += MAX_TOGETHER) {
        const int left = options->n_samples - first, B = left < MAX_TOGETHER ? left : MAX_TOGETHER;
        Sampler s = {.options = options,
                     .tokenizer = tokenizer,
                     .sink = sink,
                     .user = user,
                     .rates = rates,
                     .began = began,
                     .n_before = first};
        good = draw_group(&s, model, B, prompt + (n - used), (int)used, err);
    }
    free(prompt);
    return good;
}
