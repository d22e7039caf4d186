/* safetensors: 8 bytes N (uint64), N bytes of JSON that describe the tensors, their data.
 *
 * {"name": {"dtype": "F32", "shape": [rows, cols], "data_offsets": [begin, end]}, "__metadata__": {string:
 * string}} Offsets are bytes from the end of the header. Little-endian. Every field is checked before it is
 * used: see safetensors_open. Tensors are read and written in pieces, so a model of any size needs little
 * host memory. */
#pragma once
#include "llmc/base/files.h"
#include "llmc/base/json.h"

enum { SAFETENSORS_MAX_RANK = 8, SAFETENSORS_MAX_HEADER = 100 << 20 };

typedef struct SafetensorsEntry {
    const char *name;
    const char *dtype; /* "F32", "BF16", ... */
    int rank;
    int64_t shape[SAFETENSORS_MAX_RANK];
    int64_t n_elems;
    int64_t begin, end; /* bytes of the file [begin, end) */
    bool used;          /* for the caller: which tensors it has asked for */
} SafetensorsEntry;

typedef struct Safetensors {
    char path[PATH_MAX];
    int fd;
    int n;
    SafetensorsEntry *entries; /* (n) in the order of their data */
    Json *header;              /* owns the names */
} Safetensors;

/* Refuses a header that is over 100 MB or past the end of the file, is no strict JSON object, repeats a name,
 * has an unknown dtype, a shape whose bytes overflow or differ from its offsets, data that overlaps, leaves
 * holes or does not end with the file. */
bool safetensors_open(Safetensors *file, const char *path, Error *err);
void safetensors_close(Safetensors *file);
/* NULL if there is no such tensor. */
SafetensorsEntry *safetensors_find(const Safetensors *file, const char *name);
/* Elements [first, first + n) as fp32; F32, F64 (rounded to nearest), F16 and BF16. */
bool safetensors_read(const Safetensors *file, const SafetensorsEntry *entry, float *out, int64_t first,
                      int64_t n, Error *err);

/* ---- writing ---- */
/* Describe every tensor, write the header, then write the data in the same order:
 *   SafetensorsHeader h;  safetensors_header_begin(&h);
 *   safetensors_header_add(&h, "wte.weight", 2, (int64_t[]){V, C});  ...
 *   safetensors_header_write(&h, &file, err) && outfile_write(&file, wte, ...) ... */
typedef struct SafetensorsHeader {
    JsonWriter json;
    int64_t data_bytes;
} SafetensorsHeader;

void safetensors_header_begin(SafetensorsHeader *header);
/* An F32 tensor. */
void safetensors_header_add(SafetensorsHeader *header, const char *name, int rank, const int64_t *shape);
/* Frees the header, whether it succeeds or not. */
bool safetensors_header_write(SafetensorsHeader *header, OutFile *file, Error *err);
