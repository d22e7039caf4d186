/* Token shards in llm.c's format: 256 int32 of header (magic, version, number of tokens), then the tokens. */
#pragma once
#include <stdint.h>
#include "llmc/base/error.h"

enum { SHARD_HEADER_BYTES = 1024 };

typedef struct Shard {
    int64_t n_tokens;
    int token_bytes; /* 2: uint16 (magic 20240520), 4: uint32 (magic 20240801) */
} Shard;

/* True if the file is meant to be a shard: its name ends in .bin, or it starts with a shard's magic. */
bool shard_is_meant(const char *path);
/* Reads and checks the header: magic, version, and a count that agrees with the size of the file. */
bool shard_check(const char *path, Shard *shard, Error *err);
