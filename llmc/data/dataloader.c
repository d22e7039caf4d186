/* A thread reads the batches ahead of the training thread. They share a ring of N_SLOTS batches: the reader
 * fills slot tail % N_SLOTS, dataloader_next hands out slot head % N_SLOTS, which stays the caller's until
 * the next call. */
#include "dataloader.h"
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "llmc/base/checksum.h"
#include "llmc/base/files.h"
#include "llmc/base/format.h"
#include "llmc/base/integers.h"
#include "llmc/base/random.h"
#include "llmc/base/thread.h"
#include "mixture.h"
#include "packing.h"
#include "token_stream.h"
#include "window_order.h"

enum { N_SLOTS = 4 }; /* one in the caller's hands, three ahead: hides a slow read of a few steps */

/* What one glob of the mixture names. */
typedef struct Source {
    TokenStream stream; /* the reader's alone once it runs */
    int64_t first;      /* the split is tokens [first, first + order.n_tokens) of the stream */
    WindowOrder order;
    Packing *packing; /* NULL: windows as the stream comes */
    char description[240];
} Source;

struct DataLoader {
    DataOptions options; /* what it points to is read in opening alone; block is 1 or more */
    Mixture mixture;
    Source *sources;           /* of the mixture's */
    int n_open;                /* of those */
    int64_t windows_per_batch; /* of all ranks */
    int64_t position;          /* the caller's: windows handed out */
    char *description;
    uint32_t fingerprint;
    int32_t *scratch; /* (T + 1), the reader's */
    int32_t *slots;   /* (N_SLOTS, 2, B, T) tokens, targets */

    pthread_t reader;
    bool reader_runs;
    pthread_mutex_t lock;   /* of all that follows */
    pthread_cond_t changed; /* any of it */
    int64_t head, tail;     /* batches taken, batches read: head <= tail <= head + N_SLOTS - 1 */
    int64_t read_position;  /* of batch `tail` */
    int64_t read_in_block;  /* its number in its block */
    int64_t n_seeks;        /* a batch begun before a seek is dropped */
    bool is_awaited;        /* batch `tail`, by the caller */
    bool failed;            /* reading stopped at read_position, with error */
    Error error;
    bool stop;
};

void (*dataloader_on_wait)(bool waits);

static void set_awaited(DataLoader *loader, bool is_awaited) {
    if (loader->is_awaited == is_awaited) return;
    loader->is_awaited = is_awaited;
    if (dataloader_on_wait) dataloader_on_wait(is_awaited);
}

/* ---- the reading thread ---- */

/* Tokens [start, start + n) of a split, around its end if need be. */
static bool read_ring(void *ring, int64_t start, int64_t n, int32_t *out, Error *err) {
    Source *source = ring;
    const int64_t left = source->order.n_tokens - start, count = n < left ? n : left;
    return token_stream_read(&source->stream, source->first + start, count, out, err) &&
           token_stream_read(&source->stream, source->first, n - count, out + count, err);
}

/* *window = the T + 1 tokens of one window, valid until the next call. */
static bool read_window(DataLoader *loader, int64_t position, const int32_t **window, Error *err) {
    int64_t index;
    Source *source =
        &loader->sources[mixture_source(&loader->mixture, loader->options.seed, position, &index)];
    if (source->packing) return packing_window(source->packing, index, read_ring, source, window, err);
    *window = loader->scratch;
    return read_ring(source, window_start(&source->order, index), source->order.T + 1, loader->scratch, err);
}

static size_t tokens_of_batch(const DataLoader *loader) {
    return (size_t)loader->options.B * (size_t)loader->options.T;
}

/* The first window of batch `tail`: in a block of all ranks this rank's batches lie behind those of lower ranks. */
static int64_t first_window(const DataLoader *loader) {
    const DataOptions *o = &loader->options;
    const int64_t i = loader->read_in_block, begin = loader->read_position - i * loader->windows_per_batch;
    return begin + (o->ranks.rank * o->block + i) * o->B;
}

/* Tokens of a slot, behind them its targets. */
static int32_t *slot_of(const DataLoader *loader, int64_t batch) {
    return loader->slots + (size_t)(batch % N_SLOTS) * 2 * tokens_of_batch(loader);
}

static bool read_batch(DataLoader *loader, int64_t first, int32_t *tokens, Error *err) {
    const size_t T = (size_t)loader->options.T, row_bytes = T * sizeof *tokens;
    int32_t *targets = tokens + tokens_of_batch(loader);
    for (int b = 0; b < loader->options.B; b++) {
        const int32_t *window;
        if (!read_window(loader, first + b, &window, err)) return false;
        memcpy(tokens + (size_t)b * T, window, row_bytes);
        memcpy(targets + (size_t)b * T, window + 1, row_bytes);
    }
    return true;
}

static void *reader_main(void *argument) {
    DataLoader *loader = argument;
    pthread_mutex_lock(&loader->lock);
    while (!loader->stop) {
        if (loader->failed || loader->tail - loader->head == N_SLOTS - 1) {
            pthread_cond_wait(&loader->changed, &loader->lock);
            continue;
        }
        int64_t first = first_window(loader), seek = loader->n_seeks;
        int32_t *slot = slot_of(loader, loader->tail);
        pthread_mutex_unlock(&loader->lock);
        Error error = {0};
        bool ok = read_batch(loader, first, slot, &error);
        pthread_mutex_lock(&loader->lock);
        if (seek != loader->n_seeks) continue;
        if (ok) {
            loader->tail++;
            loader->read_position += loader->windows_per_batch;
            loader->read_in_block = (loader->read_in_block + 1) % loader->options.block;
        } else {
            loader->failed = true;
            loader->error = error;
        }
        set_awaited(loader, false);
        pthread_cond_broadcast(&loader->changed);
    }
    pthread_mutex_unlock(&loader->lock);
    return NULL;
}

static bool start_reader(DataLoader *loader, Error *err) {
    loader->reader_runs = thread_start(&loader->reader, reader_main, loader);
    return loader->reader_runs || fail(err, EXIT_RUN, "the system has no thread left to read the data");
}

/* ---- before opening ---- */

bool dataloader_check(const char *pattern, Error *err) {
    Mixture mixture;
    bool ok = mixture_parse(&mixture, pattern, err);
    for (int i = 0; ok && i < mixture.n_sources; i++)
        ok = token_stream_check(mixture.sources[i].pattern, err);
    mixture_free(&mixture);
    return ok;
}

bool dataloader_source_file(const char *pattern, int i, char path[PATH_MAX], bool *is_shard) {
    Mixture mixture;
    Error ignored;
    if (!mixture_parse(&mixture, pattern, &ignored)) return false;
    const bool found = i < mixture.n_sources && token_stream_first_file(mixture.sources[i].pattern, path);
    *is_shard = found && shard_is_meant(path);
    mixture_free(&mixture);
    return found;
}

bool dataloader_first_file(const char *pattern, char path[PATH_MAX], bool *is_shard) {
    int i = 0;
    *is_shard = false;
    while (!*is_shard && dataloader_source_file(pattern, i, path, is_shard)) i++;
    return i > 0;
}

bool dataloader_names_shards(const char *pattern) {
    Mixture mixture;
    Error ignored;
    bool shards = false;
    if (!mixture_parse(&mixture, pattern, &ignored)) return false;
    for (int i = 0; i < mixture.n_sources; i++)
        shards = shards || text_ends_in(mixture.sources[i].pattern, ".bin");
    mixture_free(&mixture);
    return shards;
}

/* ---- opening ---- */

/* Takes the split's part of the stream: all of it, its first nine tenths, or the rest. */
static bool take_split(Source *source, const DataOptions *options, uint64_t seed, Error *err) {
    static const char *const names[] = {
        [SPLIT_ALL] = "", [SPLIT_TRAIN] = " in its first nine tenths", [SPLIT_VAL] = " in its last tenth"};
    int64_t n = source->stream.n_tokens, border = n / 10 * 9 + n % 10 * 9 / 10; /* 9 n / 10 */
    int64_t end = options->split == SPLIT_TRAIN ? border : n;
    source->first = options->split == SPLIT_VAL ? border : 0;
    source->order = (WindowOrder){end - source->first, options->T, options->shuffle, seed};
    const int64_t least = (int64_t)options->T + 1 + options->pack;
    if (source->order.n_tokens >= least) return true;
    return fail(err, EXIT_INPUT,
                "%s: %lld tokens%s: expected at least %lld, one window of %d and its last target; hint: more "
                "text or a "
                "smaller --seq",
                source->stream.pattern, (long long)source->order.n_tokens, names[options->split],
                (long long)least, options->T);
}

static void describe_source(Source *source, const DataOptions *options) {
    static const char *const splits[] = {
        [SPLIT_ALL] = "", [SPLIT_TRAIN] = ", first nine tenths", [SPLIT_VAL] = ", last tenth"};
    const TokenStream *stream = &source->stream;
    char number[FORMAT_NUMBER], kind[64];
    const bool text = token_stream_is_text(stream);
    snprintf(kind, sizeof kind, "uint%d", 8 * stream->token_bytes);
    snprintf(source->description, sizeof source->description, "%d %s%s, %s tokens (%s%s)", stream->n_files,
             text ? "text file" : "shard", stream->n_files == 1 ? "" : "s",
             format_integer(number, source->order.n_tokens), text ? tokenizer_name(options->tokenizer) : kind,
             splits[options->split]);
}

/* Of one source its own, of more "mixture of N sources, 1,234 tokens: 70 % a_*.bin (3 shards, ...), 30 % ..." */
static void describe(DataLoader *loader) {
    const int n = dataloader_n_sources(loader);
    char number[FORMAT_NUMBER];
    size_t size = 100, used = 0;
    for (int i = 0; i < n; i++)
        size += strlen(loader->mixture.sources[i].pattern) + sizeof loader->sources->description + 40;
    char *text = loader->description = must_allocate(size, "the names of the sources of data");
    if (n == 1) {
        snprintf(text, size, "%s", loader->sources->description);
        return;
    }
    used += (size_t)snprintf(text, size, "mixture of %d sources, %s tokens", n,
                             format_integer(number, dataloader_n_tokens(loader)));
    for (int i = 0; i < n; i++) {
        const DataSource source = dataloader_source(loader, i, 0);
        used += (size_t)snprintf(text + used, size - used, "%s %.6g %% %s (%s)", i ? "," : ":",
                                 100 * source.share, source.pattern, source.description);
    }
}

/* Of a source so many pieces. One that cannot be read is left out: that is said when its window comes. */
static uint32_t add_pieces(uint32_t crc, Source *source, int n_pieces) {
    enum { PIECE_TOKENS = 64 };
    int32_t piece[PIECE_TOKENS];
    Error ignored;
    const int64_t n = min_i64(source->order.n_tokens, PIECE_TOKENS), last = source->order.n_tokens - n;
    for (int i = 0; i < n_pieces; i++)
        if (token_stream_read(&source->stream, source->first + last * i / max_i64(1, n_pieces - 1), n, piece,
                              &ignored))
            crc = crc32c(crc, piece, (size_t)n * sizeof *piece);
    return crc;
}

static void take_fingerprint(DataLoader *loader) {
    enum { PIECES = 256 };
    const int n = loader->mixture.n_sources, of_each = n < PIECES ? PIECES / n : 1;
    for (int i = 0; i < n; i++)
        loader->fingerprint = add_pieces(loader->fingerprint, &loader->sources[i], of_each);
}

static bool allocate(DataLoader *loader, Error *err) {
    const DataOptions *o = &loader->options;
    loader->scratch = malloc(((size_t)o->T + 1) * sizeof *loader->scratch);
    loader->slots = malloc(N_SLOTS * 2 * tokens_of_batch(loader) * sizeof *loader->slots);
    return (loader->scratch && loader->slots) ||
           fail(err, EXIT_RUN, "out of memory for %d batches of %d x %d tokens", N_SLOTS, o->B, o->T);
}

/* The first pool is packed now: what becomes of its documents is said before the run. */
static bool open_packing(Source *source, const DataOptions *options, Error *err) {
    const int32_t *window;
    source->packing = packing_open(&source->order, options->end_of_text, err);
    if (!source->packing || !packing_window(source->packing, 0, read_ring, source, &window, err))
        return false;
    const PackingStats stats = packing_stats(source->packing);
    const double n = (double)stats.n_documents / 100;
    const size_t used = strlen(source->description), left = sizeof source->description - used;
    if (stats.n_documents)
        snprintf(source->description + used, left,
                 ", packed: %.3g %% of documents that fit are cut, not %.3g %%, every slot filled",
                 (double)stats.n_cut / n, (double)stats.n_cut_plain / n);
    else
        snprintf(source->description + used, left, ", packed: no document fits a window");
    return true;
}

/* Source i has an order of its own. */
static bool open_source(DataLoader *loader, int i, Error *err) {
    const DataOptions *options = &loader->options;
    Source *source = &loader->sources[i];
    const uint64_t seed = i ? random_stream(options->seed, (uint64_t)i) : options->seed;
    if (!token_stream_open(&source->stream, loader->mixture.sources[i].pattern, options->tokenizer,
                           options->no_tokenizer, options->vocab_size, err))
        return false;
    loader->n_open++;
    token_stream_share_files(&source->stream, loader->mixture.n_sources);
    if (!take_split(source, options, seed, err)) return false;
    describe_source(source, options);
    return !options->pack || open_packing(source, options, err);
}

static bool open_sources(DataLoader *loader, Error *err) {
    if (!mixture_parse(&loader->mixture, loader->options.pattern, err)) return false;
    const int n = loader->mixture.n_sources;
    loader->sources = calloc((size_t)n, sizeof *loader->sources);
    if (!loader->sources) return fail(err, EXIT_RUN, "out of memory for %d sources of data", n);
    for (int i = 0; i < n; i++)
        if (!open_source(loader, i, err)) return false;
    return true;
}

DataLoader *dataloader_open(const DataOptions *options, Error *err) {
    DataLoader *loader = must_allocate(sizeof *loader, "a data loader");
    *loader = (DataLoader){.options = *options};
    pthread_mutex_init(&loader->lock, NULL);
    pthread_cond_init(&loader->changed, NULL);
    if (options->block < 1) loader->options.block = 1;
    loader->windows_per_batch = (int64_t)options->ranks.n_ranks * options->B;
    const bool ok = open_sources(loader, err) && allocate(loader, err);
    if (ok) describe(loader), take_fingerprint(loader);
    if (ok && start_reader(loader, err)) return loader;
    dataloader_close(loader);
    return NULL;
}

void dataloader_close(DataLoader *loader) {
    if (!loader) return;
    if (loader->reader_runs) {
        pthread_mutex_lock(&loader->lock);
        loader->stop = true;
        pthread_cond_broadcast(&loader->changed);
        pthread_mutex_unlock(&loader->lock);
        pthread_join(loader->reader, NULL);
    }
    pthread_cond_destroy(&loader->changed);
    pthread_mutex_destroy(&loader->lock);
    for (int i = 0; i < loader->n_open; i++) {
        token_stream_close(&loader->sources[i].stream);
        packing_close(loader->sources[i].packing);
    }
    free(loader->sources);
    mixture_free(&loader->mixture);
    free(loader->slots);
    free(loader->scratch);
    free(loader->description);
    free(loader);
}

int64_t dataloader_n_tokens(const DataLoader *loader) {
    int64_t n = 0;
    for (int i = 0; i < loader->mixture.n_sources; i++) n += loader->sources[i].order.n_tokens;
    return n;
}

uint32_t dataloader_fingerprint(const DataLoader *loader) {
    return loader->fingerprint;
}

int dataloader_n_files(const DataLoader *loader) {
    int n = 0;
    for (int i = 0; i < loader->mixture.n_sources; i++) n += loader->sources[i].stream.n_files;
    return n;
}

static const TokenFile *file_of(const DataLoader *loader, int i) {
    const Source *source = loader->sources;
    for (; i >= source->stream.n_files; source++) i -= source->stream.n_files;
    return &source->stream.files[i];
}

const char *dataloader_file(const DataLoader *loader, int i) {
    return file_of(loader, i)->path;
}

int64_t dataloader_not_utf8(const DataLoader *loader, int i) {
    return file_of(loader, i)->not_utf8;
}

int dataloader_n_sources(const DataLoader *loader) {
    return loader->mixture.n_sources;
}

static int64_t windows_of_epoch(const Source *source) {
    return source->packing ? packing_count(source->packing) : window_count(&source->order);
}

DataSource dataloader_source(const DataLoader *loader, int i, int64_t position) {
    const MixtureSource *source = &loader->mixture.sources[i];
    const int64_t n = mixture_count(&loader->mixture, loader->options.seed, i, position);
    return (DataSource){
        .pattern = source->pattern,
        .description = loader->sources[i].description,
        .is_text = token_stream_is_text(&loader->sources[i].stream),
        .share = (double)source->parts / (double)loader->mixture.parts,
        .n_tokens = n * loader->options.T,
        .epochs = (double)n / (double)windows_of_epoch(&loader->sources[i]),
    };
}

size_t dataloader_packing_bytes(const char *pattern, int64_t T) {
    Mixture mixture;
    Error ignored;
    if (!mixture_parse(&mixture, pattern, &ignored)) return 0;
    const size_t bytes = (size_t)mixture.n_sources * (size_t)packing_bytes(T);
    mixture_free(&mixture);
    return bytes;
}

int64_t dataloader_epoch(const DataLoader *loader) {
    double least = INFINITY;
    for (int i = 0; i < loader->mixture.n_sources; i++) {
        const double share = dataloader_source(loader, i, 0).share;
        least = fmin(least, (double)windows_of_epoch(&loader->sources[i]) / share);
    }
    return (int64_t)least;
}

const char *dataloader_description(const DataLoader *loader) {
    return loader->description;
}

/* ---- the caller's side ---- */

bool dataloader_next(DataLoader *loader, const int32_t **tokens, const int32_t **targets, Error *err) {
    pthread_mutex_lock(&loader->lock);
    while (loader->head == loader->tail && !loader->failed) {
        set_awaited(loader, true);
        pthread_cond_wait(&loader->changed, &loader->lock);
    }
    bool ok = loader->head < loader->tail;
    if (ok) {
        *tokens = slot_of(loader, loader->head);
        *targets = *tokens + tokens_of_batch(loader);
        loader->head++;
        loader->position += loader->windows_per_batch;
        pthread_cond_broadcast(&loader->changed);
    } else {
        *err = loader->error;
    }
    pthread_mutex_unlock(&loader->lock);
    return ok;
}

int64_t dataloader_position(const DataLoader *loader) {
    return loader->position;
}

void dataloader_seek(DataLoader *loader, int64_t position) {
    pthread_mutex_lock(&loader->lock);
    loader->position = loader->read_position = position;
    loader->read_in_block = 0;
    loader->tail = loader->head;
    loader->n_seeks++;
    loader->failed = false;
    pthread_cond_broadcast(&loader->changed);
    pthread_mutex_unlock(&loader->lock);
}
