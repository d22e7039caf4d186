/* Reads the files of record.py (layout: README.md) and computes the hash that weights and tokens come from. */
#pragma once
#include "llmc/model/gpt2.h"
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct ReferenceRecord {
    char name[56];     /* "act/qkv.0", "grad/h.0.ln_1.weight", "steps/loss", "final/wte.weight" */
    int32_t shape[4];  /* unused dimensions are 1 */
    int64_t n_entries; /* recorded: every element, or fewer, at reference_index() */
    double norm;       /* 2-norm of the whole tensor */
    float fp32_error;  /* relative 2-norm error of PyTorch's fp32 run over the whole tensor */
    float bf16_error;  /* of its bf16 run */
} ReferenceRecord;

typedef struct ReferenceHeader {
    char magic[8]; /* "GPT2REF1" */
    int32_t n_records;
    int32_t n_layer, n_head, n_embd, max_seq_len, vocab_size;
    int32_t B, T;
    int32_t steps;       /* AdamW steps recorded */
    int32_t log2_scale;  /* matrices are uniform in +-2^log2_scale */
    int32_t max_entries; /* larger tensors are recorded in so many entries */
    float lr, beta1, beta2, eps, weight_decay, clip;
    int32_t window;    /* keys that a query sees; 0: all */
    char recorder[40]; /* "torch 2.11.0, bf16 on NVIDIA H200" */
    int32_t optimizer; /* OptimizerKind */
    float dropout;     /* with masks of REFERENCE_DROPOUT_SEED; such a record has no activations */
} ReferenceHeader;

typedef struct Reference {
    ReferenceHeader header;
    char *bytes; /* the whole file */
    ReferenceRecord *records;
    const float **data; /* [n_records][n_entries] */
} Reference;

_Static_assert(sizeof(ReferenceHeader) == 128 && sizeof(ReferenceRecord) == 96, "the layout of README.md");

static inline int64_t reference_elems(const ReferenceRecord *record) {
    return (int64_t)record->shape[0] * record->shape[1] * record->shape[2] * record->shape[3];
}

static inline void reference_free(Reference *reference) {
    free(reference->bytes);
    free(reference->records);
    free(reference->data);
    *reference = (Reference){0};
}

/* The file's bytes, malloc'ed, and their number; NULL with err filled. */
static inline char *reference_read(const char *path, int64_t *size, Error *err) {
    FILE *file = fopen(path, "rb");
    if (!file) {
        fail(err, EXIT_INPUT, "%s: cannot be opened (run from the repository root; record.py writes it)",
             path);
        return NULL;
    }
    fseek(file, 0, SEEK_END);
    *size = ftell(file);
    rewind(file);
    char *bytes = malloc((size_t)*size + 1);
    bool whole = bytes && fread(bytes, 1, (size_t)*size, file) == (size_t)*size;
    fclose(file);
    if (whole) return bytes;
    free(bytes);
    fail(err, EXIT_INPUT, "%s: %lld bytes could not be read", path, (long long)*size);
    return NULL;
}

/* Reads the record header at `at`; false, with err filled, if it or its entries pass the end of the file. */
static inline bool reference_parse_record(Reference *reference, int i, int64_t *at, int64_t size,
                                          const char *path, Error *err) {
    ReferenceRecord *record = &reference->records[i];
    if (size - *at < (int64_t)sizeof *record)
        return fail(err, EXIT_INPUT, "%s: record %d of %d starts at byte %lld, the file ends at %lld", path,
                    i, reference->header.n_records, (long long)*at, (long long)size);
    memcpy(record, reference->bytes + *at, sizeof *record);
    *at += (int64_t)sizeof *record;
    for (int d = 0; d < 4; d++)
        if (record->shape[d] < 1 || record->shape[d] > 1 << 20)
            return fail(err, EXIT_INPUT, "%s: record %d: dimension %d is %d", path, i, d, record->shape[d]);
    int64_t elems = reference_elems(record), cap = reference->header.max_entries;
    int64_t expected = elems < cap ? elems : cap;
    if (!memchr(record->name, 0, sizeof record->name) || record->n_entries != expected ||
        size - *at < 4 * expected)
        return fail(err, EXIT_INPUT,
                    "%s: record %d has %lld entries, expected %lld, and the file ends at %lld", path, i,
                    (long long)record->n_entries, (long long)expected, (long long)size);
    reference->data[i] = (const float *)(const void *)(reference->bytes + *at);
    *at += 4 * expected;
    return true;
}

static inline bool reference_header_ok(const ReferenceHeader *h) {
    return memcmp(h->magic, "GPT2REF1", 8) == 0 && h->n_records > 0 && h->n_records < 10000 &&
           h->n_layer > 0 && h->n_head > 0 && h->n_embd > 0 && h->n_embd % h->n_head == 0 && h->B > 0 &&
           h->T > 0 && h->T <= h->max_seq_len && h->vocab_size > 0 && h->steps > 0 && h->max_entries > 0;
}

/* Loads path; false with one line in err if it is missing, damaged or of another layout. */
static inline bool reference_load(Reference *reference, const char *path, Error *err) {
    *reference = (Reference){0};
    int64_t size = 0, at = sizeof reference->header;
    if (!(reference->bytes = reference_read(path, &size, err))) return false;
    if (size >= at) memcpy(&reference->header, reference->bytes, sizeof reference->header);
    const ReferenceHeader *h = &reference->header;
    if (size < at || !reference_header_ok(h)) {
        reference_free(reference);
        return fail(err, EXIT_INPUT, "%s: the first 128 bytes are no header of record.py (magic GPT2REF1)",
                    path);
    }
    reference->records = calloc((size_t)h->n_records, sizeof *reference->records);
    reference->data = calloc((size_t)h->n_records, sizeof *reference->data);
    bool ok = reference->records && reference->data;
    for (int i = 0; ok && i < h->n_records; i++)
        ok = reference_parse_record(reference, i, &at, size, path, err);
    if (ok && at != size)
        ok = fail(err, EXIT_INPUT, "%s: records end at byte %lld, the file at %lld", path, (long long)at,
                  (long long)size);
    if (!ok) reference_free(reference);
    return ok;
}

/* Index of the record called name, -1 if there is none. */
static inline int reference_find(const Reference *reference, const char *name) {
    for (int i = 0; i < reference->header.n_records; i++)
        if (strcmp(reference->records[i].name, name) == 0) return i;
    return -1;
}

enum { REFERENCE_DROPOUT_SEED = 1337 };

/* ---- the hash ---- */
enum { STREAM_TOKENS = 1000000, STREAM_TARGETS = 1000001, STREAM_ENTRIES = 2000000 };

/* lowbias32 (Chris Wellons), a bijection of 32-bit integers */
static inline uint32_t reference_mix(uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7FEB352Du;
    x = (x ^ (x >> 15)) * 0x846CA68Bu;
    return x ^ (x >> 16);
}

/* Entry i of a stream. */
static inline uint32_t reference_hash(uint32_t stream, int64_t i) {
    uint32_t key = reference_mix(stream);
    return reference_mix(reference_mix((uint32_t)i + key) + reference_mix(key));
}

/* Uniform in [-2^log2_scale, 2^log2_scale) on a grid of 24 bits, so exact in fp32 on every machine. */
static inline float reference_uniform(uint32_t stream, int64_t i, int log2_scale) {
    return ldexpf((float)((int32_t)(reference_hash(stream, i) >> 8) - (1 << 23)), log2_scale - 23);
}

/* Which element of the tensor entry i of record number `index` is. */
static inline int64_t reference_index(const Reference *reference, int index, int64_t i) {
    int64_t elems = reference_elems(&reference->records[index]);
    return elems <= reference->header.max_entries
               ? i
               : reference_hash(STREAM_ENTRIES + (uint32_t)index, i) % elems;
}

/* Weights of one layer's tensor, as record.py makes them. */
static inline void hash_tensor(float *out, TensorId id, int layer, const Tensor *t,
                               const ReferenceHeader *h) {
    const bool norm_weight = id == LN_1_W || id == LN_2_W || id == LN_F_W;
    const int log2_scale = t->rank == 2 ? h->log2_scale : norm_weight ? -3 : -4;
    const int64_t real = id == WTE ? (int64_t)h->vocab_size * t->cols : t->layer_elems;
    const float center = norm_weight ? 1.0f : 0.0f;
#pragma omp parallel for
    for (int64_t i = 0; i < real; i++)
        out[i] = center + reference_uniform((uint32_t)(id * 1000 + layer), i, log2_scale);
    for (int64_t i = real; i < t->layer_elems; i++) out[i] = 0.0f; /* padding rows of wte */
}

static inline int32_t *hash_tokens(uint32_t stream, int64_t n, int vocab_size) {
    int32_t *tokens = malloc((size_t)n * sizeof *tokens);
    if (!tokens) abort();
    for (int64_t i = 0; i < n; i++) tokens[i] = (int32_t)(reference_hash(stream, i) % (uint32_t)vocab_size);
    return tokens;
}
