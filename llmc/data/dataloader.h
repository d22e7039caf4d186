/* Token streams for training and validation: shards (uint16, uint32) or plain text, any number, any size.
 *
 * A source is a glob of shards in llm.c's format (magic 20240520 / 20240801), or of text files, which become tokens
 * in C. All tokens of all files, in the order of the names, form one stream per split. Nothing is dropped at file
 * borders: windows run across them. A mixture (mixture.h) has several sources, each with a stream and an order of its
 * own; the windows of the run come from them in fixed proportions. */
#pragma once
#include <limits.h>
#include <stdint.h>
#include "llmc/base/error.h"
#include "llmc/base/ranks.h"
#include "llmc/tokenizer/tokenizer.h"

typedef struct DataLoader DataLoader;

/* All tokens, their first nine tenths, or their last tenth, which validates. */
typedef enum { SPLIT_ALL, SPLIT_TRAIN, SPLIT_VAL } Split;

typedef struct DataOptions {
    const char *pattern;        /* glob or path: shards or text files, not both; or a mixture of globs */
    const Tokenizer *tokenizer; /* for text, which without one is refused */
    const char *no_tokenizer;   /* why there is none, for the refusal; NULL: not known */
    int vocab_size; /* tokens >= vocab_size are an error naming file, position, value; 0: tokenizer's */
    Split split;
    int B, T;    /* micro-batch of this rank */
    Ranks ranks; /* of those that read data of their own */
    /* Batches of a rank that follow each other, behind those of lower ranks: those of a step; 0: 1. */
    int64_t block;
    bool shuffle; /* training: windows permuted by (seed, epoch); else in stream order, wrapping */
    uint64_t seed;
    bool pack;       /* windows of whole documents (packing.h); shuffled in any case */
    int end_of_text; /* where `pack`: the token that ends a document */
} DataOptions;

/* Whether each glob names files, all of one kind, that can be read; of shards whether headers and sizes agree. */
bool dataloader_check(const char *pattern, Error *err);
/* The first file of source i of a mixture; false past the last source, or where the source has none. */
bool dataloader_source_file(const char *pattern, int i, char path[PATH_MAX], bool *is_shard);
/* The first shard of a mixture that has some, else a text; false where there is no file. */
bool dataloader_first_file(const char *pattern, char path[PATH_MAX], bool *is_shard);
/* By its name alone: a glob, or one of a mixture, ends in .bin. */
bool dataloader_names_shards(const char *pattern);

/* Opens, checks every file (size, magic, version, count) and starts the reading thread. NULL on error. */
DataLoader *dataloader_open(const DataOptions *options, Error *err);
void dataloader_close(DataLoader *loader);
int64_t dataloader_n_tokens(const DataLoader *loader);
/* Of 256 pieces of the sources, spread evenly: other text of the same length has another, a small edit may not. */
uint32_t dataloader_fingerprint(const DataLoader *loader);
int dataloader_n_files(const DataLoader *loader);
/* The path of file i, 0 <= i < n_files, source by source, in the order of the names. */
const char *dataloader_file(const DataLoader *loader, int i);
/* Of text file i: where its first byte lies that belongs to no UTF-8 character; -1: none. */
int64_t dataloader_not_utf8(const DataLoader *loader, int i);
/* "3 shards, 300,000,000 tokens (uint16)" for the console; a mixture names its sources, too. */
const char *dataloader_description(const DataLoader *loader);

typedef struct DataSource {
    const char *pattern, *description;
    bool is_text;
    double share;     /* of the windows, by weight: they add up to 1 */
    int64_t n_tokens; /* trained on before a position of the run: windows times T */
    double epochs;    /* how often it was read by then */
} DataSource;

int dataloader_n_sources(const DataLoader *loader);
DataSource dataloader_source(const DataLoader *loader, int i, int64_t position);
/* At most so many bytes of the host for packed windows of a pattern's sources. */
size_t dataloader_packing_bytes(const char *pattern, int64_t T);
/* Windows of the run until the first source has been read once. */
int64_t dataloader_epoch(const DataLoader *loader);
/* The next micro-batch: tokens and targets (B,T), valid until the next call. False with err: a bad token, an
 * I/O error. */
bool dataloader_next(DataLoader *loader, const int32_t **tokens, const int32_t **targets, Error *err);
/* NULL, or of all loaders: called with true where dataloader_next has to wait for the disk, with false, by another thread,
 * once it need not. */
extern void (*dataloader_on_wait)(bool waits);
/* The position of the whole run: windows of T tokens consumed by all ranks together, so that a run resumes
 * with another B or number of ranks. Bitwise the same batches follow. A seek, to the end of a block, begins one. */
int64_t dataloader_position(const DataLoader *loader);
void dataloader_seek(DataLoader *loader, int64_t position);
