/* trainer_state.json: where the run stands, and size and checksum of every other file of the checkpoint.
 *
 *     {"format_version": 1, "program": "...", "model_only": false,
 *      "step": 200, "data_position": ..., "data_tokens": ..., "data_fingerprint": ..., "tokens_seen": ...,
 *      "n_skipped": 0, "seed": ...,
 *      "best_val_loss": null, "val_loss": null, "best_only": false,
 *      "tokenizer": {"name": "bpe of 50257 tokens", "tokens": 50257, "source": "..."},
 *      "flags": {...},
 *      "files": [{"name": "model.safetensors", "tensors": {"wte.weight": "0a1b2c3d", ...},
 *                 "bytes": ..., "crc32c": "..."}],
 *      "crc32c": "..."}
 *
 * Checksums are CRC-32C in 8 lower-case hexadecimal digits. The last one is of this file itself with the digits of that
 * field as zeros. Those of the tensors say which tensor is damaged. Earlier programs wrote no data_tokens, no
 * data_fingerprint, no val_loss and no best_only. */
#pragma once
#include "llmc/base/files.h"
#include "llmc/base/json.h"
#include "llmc/tokenizer/tokenizer.h"
#include "trainer_state.h"

#define MANIFEST_NAME "trainer_state.json"

/* ---- writing: begin, then for each file begin_file ... end_file, then write ---- */
/* tokenizer: named there for the reader; NULL: none. */
bool manifest_begin(JsonWriter *w, const TrainerState *state, const Tokenizer *tokenizer, bool model_only,
                    Error *err);
void manifest_begin_file(JsonWriter *w, const char *name);
void manifest_write_checksum(JsonWriter *w, const char *key, uint32_t crc);
void manifest_end_file(JsonWriter *w, int64_t bytes, uint32_t crc);
/* Adds the checksum of the whole and writes DIRECTORY/trainer_state.json. */
bool manifest_write(JsonWriter *w, const char *directory, Error *err);

/* ---- reading ---- */
typedef struct Manifest {
    char directory[PATH_MAX];
    char path[PATH_MAX]; /* of trainer_state.json */
    Json *json;
    bool model_only;
    TrainerState state; /* flags: malloc'ed, owned by the manifest */
} Manifest;

/* Reads and checks all fields and the file's own checksum. */
bool manifest_read(Manifest *manifest, const char *directory, Error *err);
void manifest_free(Manifest *manifest);
/* The run's flags, an object; null where there are none. */
static inline const JsonValue *manifest_flags(const Manifest *manifest) {
    return json_get(json_root(manifest->json), "flags");
}
/* True if all the listed files are there with their sizes; reads no data. */
bool manifest_sizes_match(const Manifest *manifest);
/* Sizes and checksums of all files listed; without the optimizer's where it is not needed. */
bool manifest_verify(const Manifest *manifest, bool with_optimizer, Error *err);
/* The same, but files that were last found whole are not read again, as long as the disk says that none of them has been
 * written or replaced since. One thread at a time. */
bool manifest_verify_once(const Manifest *manifest, bool with_optimizer, Error *err);
