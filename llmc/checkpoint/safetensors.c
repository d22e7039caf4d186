#include "safetensors.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "llmc/base/dtype.h"
#include "llmc/base/integers.h"

enum { PIECE_BYTES = 64 << 10 };

static void floats_from_f64(float *out, const void *in, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        double value;
        memcpy(&value, (const char *)in + 8 * i, 8);
        out[i] = (float)value;
    }
}

static void floats_from_f32(float *out, const void *in, int64_t n) {
    floats_from_storage(out, in, n, DTYPE_F32);
}

/* IEEE 754 binary16: 1 sign, 5 exponent (bias 15), 10 mantissa bits. */
static void floats_from_f16(float *out, const void *in, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint16_t half;
        memcpy(&half, (const char *)in + 2 * i, 2);
        uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31, mantissa = half & 1023;
        uint32_t bits = sign | (exponent == 31 ? 255 : exponent + 112) << 23 | mantissa << 13;
        memcpy(&out[i], &bits, 4);
        if (exponent == 0)
            out[i] = (sign ? -1.0f : 1.0f) * (float)mantissa * 0x1p-24f; /* zero and subnormals */
    }
}

static void floats_from_bf16(float *out, const void *in, int64_t n) {
    floats_from_storage(out, in, n, DTYPE_BF16);
}

/* To load one more type as fp32, give it a conversion. */
static const struct DTypeRow {
    const char *name;
    int bytes;
    void (*to_floats)(float *out, const void *in, int64_t n);
} dtypes[] = {
    {"F32",     4, floats_from_f32 },
    {"BF16",    2, floats_from_bf16},
    {"F16",     2, floats_from_f16 },
    {"F64",     8, floats_from_f64 },
    {"I64",     8, NULL            },
    {"I32",     4, NULL            },
    {"I16",     2, NULL            },
    {"I8",      1, NULL            },
    {"U64",     8, NULL            },
    {"U32",     4, NULL            },
    {"U16",     2, NULL            },
    {"U8",      1, NULL            },
    {"BOOL",    1, NULL            },
    {"F8_E4M3", 1, NULL            },
    {"F8_E5M2", 1, NULL            },
    {"F8_E8M0", 1, NULL            },
    {"C64",     8, NULL            },
};

static const struct DTypeRow *find_dtype(const char *name) {
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (strcmp(dtypes[i].name, name) == 0) return &dtypes[i];
    return NULL;
}

/* ---- the header ---- */
/* Counts (shape sizes, offsets) are at most 2^53, so that sums of two never overflow. */
static bool read_count(const JsonValue *value, int64_t *out) {
    return json_int64(value, out) && *out >= 0 && *out <= (int64_t)1 << 53;
}

static bool parse_shape(SafetensorsEntry *entry, const JsonValue *shape, const char *path, Error *err) {
    if (!json_is(shape, JSON_ARRAY) || shape->n > SAFETENSORS_MAX_RANK)
        return fail(err, EXIT_INPUT, "%s: tensor '%.80s': expected a shape of at most %d sizes, found %s",
                    path, entry->name, SAFETENSORS_MAX_RANK,
                    json_is(shape, JSON_ARRAY) ? "more" : json_type_name(shape));
    entry->n_elems = 1;
    for (const JsonValue *size = shape->first; size; size = size->next) {
        int64_t *out = &entry->shape[entry->rank++];
        if (!read_count(size, out))
            return fail(err, EXIT_INPUT,
                        "%s: tensor '%.80s': expected sizes of 0 to 2^53 in its shape, found %.40s", path,
                        entry->name, size->type == JSON_NUMBER ? size->text : json_type_name(size));
        if (__builtin_mul_overflow(entry->n_elems, *out, &entry->n_elems) || entry->n_elems > (int64_t)1
                                                                                                  << 53)
            return fail(err, EXIT_INPUT, "%s: tensor '%.80s': the product of its shape overflows", path,
                        entry->name);
    }
    return true;
}

static bool parse_entry(SafetensorsEntry *entry, const JsonValue *value, const char *path, int64_t data_begin,
                        Error *err) {
    entry->name = value->key;
    if (strlen(value->key) != value->key_length || value->type != JSON_OBJECT)
        return fail(err, EXIT_INPUT,
                    "%s: tensor '%.80s': expected a name without null bytes and an object, found %s", path,
                    entry->name, json_type_name(value));
    const JsonValue *dtype = json_get(value, "dtype"), *offsets = json_get(value, "data_offsets");
    const struct DTypeRow *row = json_is(dtype, JSON_STRING) ? find_dtype(dtype->text) : NULL;
    if (!row)
        return fail(err, EXIT_INPUT, "%s: tensor '%.80s': expected a known dtype, found %.40s", path,
                    entry->name, json_shown(dtype));
    entry->dtype = row->name;
    if (!parse_shape(entry, json_get(value, "shape"), path, err)) return false;
    if (!json_is(offsets, JSON_ARRAY) || offsets->n != 2 || !read_count(offsets->first, &entry->begin) ||
        !read_count(offsets->first->next, &entry->end) || entry->begin > entry->end)
        return fail(err, EXIT_INPUT,
                    "%s: tensor '%.80s': expected data_offsets [begin, end] with 0 <= begin <= end", path,
                    entry->name);
    if (entry->n_elems * row->bytes != entry->end - entry->begin)
        return fail(err, EXIT_INPUT,
                    "%s: tensor '%.80s': expected %lld bytes for its dtype and shape, found %lld", path,
                    entry->name, (long long)(entry->n_elems * row->bytes),
                    (long long)(entry->end - entry->begin));
    entry->begin += data_begin;
    entry->end += data_begin;
    return true;
}

static bool check_metadata(const JsonValue *metadata, const char *path, Error *err) {
    bool ok = metadata->type == JSON_OBJECT;
    for (const JsonValue *value = metadata->first; ok && value; value = value->next)
        ok = value->type == JSON_STRING;
    return ok || fail(err, EXIT_INPUT, "%s: __metadata__: expected an object of strings", path);
}

static int compare_offsets(const void *a, const void *b) {
    const SafetensorsEntry *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

/* The data of all tensors together must be the rest of the file: no hole, no overlap, nothing after it. */
static bool check_layout(Safetensors *file, int64_t data_begin, int64_t bytes, Error *err) {
    if (file->n > 1) qsort(file->entries, (size_t)file->n, sizeof *file->entries, compare_offsets);
    int64_t at = data_begin;
    for (int i = 0; i < file->n; i++) {
        const SafetensorsEntry *entry = &file->entries[i];
        if (entry->begin != at)
            return fail(err, EXIT_INPUT, "%s: tensor '%.80s': expected its data at byte %lld, found %lld: %s",
                        file->path, entry->name, (long long)at, (long long)entry->begin,
                        entry->begin > at ? "a hole lies before it" : "it overlaps another tensor");
        at = entry->end;
    }
    if (at > bytes)
        return fail(err, EXIT_INPUT,
                    "%s: cut short: expected %lld bytes by its header, found %lld; hint: copy it again",
                    file->path, (long long)at, (long long)bytes);
    return at == bytes || fail(err, EXIT_INPUT, "%s: expected %lld bytes by its header, found %lld",
                               file->path, (long long)at, (long long)bytes);
}

static bool parse_header(Safetensors *file, const JsonValue *root, int64_t data_begin, int64_t bytes,
                         Error *err) {
    file->entries = calloc((size_t)root->n + 1, sizeof *file->entries);
    if (!file->entries)
        return fail(err, EXIT_RUN, "%s: no memory for %lld tensors", file->path, (long long)root->n);
    for (const JsonValue *value = root->first; value; value = value->next) {
        bool ok = strcmp(value->key, "__metadata__") == 0
                      ? check_metadata(value, file->path, err)
                      : parse_entry(&file->entries[file->n++], value, file->path, data_begin, err);
        if (!ok) return false;
    }
    return check_layout(file, data_begin, bytes, err);
}

/* Reads the header's text; its length in *length. NULL on error. */
static char *read_header(Safetensors *file, int64_t bytes, size_t *length, Error *err) {
    unsigned char size[8];
    if (!file_read_at(file->fd, file->path, size, sizeof size, 0, err)) return NULL;
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--) n = n << 8 | size[i];
    if (n > SAFETENSORS_MAX_HEADER || (int64_t)n > bytes - 8) {
        if (memcmp(size, "version ", sizeof size) == 0)
            fail(err, EXIT_INPUT,
                 "%s: expected tensors, found a pointer of git-lfs to them; hint: git lfs pull", file->path);
        else if (n > SAFETENSORS_MAX_HEADER)
            fail(err, EXIT_INPUT,
                 "%s: expected a header of at most %lld bytes, found %llu: is this a safetensors file?",
                 file->path, (long long)SAFETENSORS_MAX_HEADER, (unsigned long long)n);
        else
            fail(err, EXIT_INPUT,
                 "%s: cut short: expected at least %llu bytes, 8 and its header, found %lld; hint: copy it "
                 "again",
                 file->path, (unsigned long long)n + 8, (long long)bytes);
        return NULL;
    }
    char *text = malloc(n + 1);
    *length = n;
    if (!text) fail(err, EXIT_RUN, "%s: no memory for its header of %zu bytes", file->path, *length);
    if (text && file_read_at(file->fd, file->path, text, n, 8, err)) {
        if (n > 0 && text[0] == '{') return text;
        fail(err, EXIT_INPUT, "%s: expected its header to start with '{'", file->path);
    }
    free(text);
    return NULL;
}

bool safetensors_open(Safetensors *file, const char *path, Error *err) {
    int64_t bytes;
    size_t length = 0;
    *file = (Safetensors){.fd = -1};
    if (!path_copy(file->path, path, err)) return false;
    file->fd = file_open(path, &bytes, err);
    char *text = file->fd < 0 ? NULL : read_header(file, bytes, &length, err);
    if (text) file->header = json_parse(text, length, path, err);
    free(text);
    if (file->header && parse_header(file, json_root(file->header), 8 + (int64_t)length, bytes, err))
        return true;
    safetensors_close(file);
    return false;
}

void safetensors_close(Safetensors *file) {
    if (file->fd >= 0) close(file->fd);
    free(file->entries);
    json_free(file->header);
    *file = (Safetensors){.fd = -1};
}

/* ---- reading ---- */
SafetensorsEntry *safetensors_find(const Safetensors *file, const char *name) {
    for (int i = 0; i < file->n; i++)
        if (strcmp(file->entries[i].name, name) == 0) return &file->entries[i];
    return NULL;
}

bool safetensors_read(const Safetensors *file, const SafetensorsEntry *entry, float *out, int64_t first,
                      int64_t n, Error *err) {
    _Alignas(8) char piece[PIECE_BYTES];
    const struct DTypeRow *dtype = find_dtype(entry->dtype);
    if (!dtype->to_floats)
        return fail(err, EXIT_INPUT, "%s: tensor '%.80s': expected F32, BF16, F16 or F64, found %s",
                    file->path, entry->name, entry->dtype);
    int64_t offset = entry->begin + first * dtype->bytes, per_piece = PIECE_BYTES / dtype->bytes;
    if (dtype->to_floats == floats_from_f32)
        return file_read_at(file->fd, file->path, out, (size_t)n * 4, offset, err);
    for (int64_t done = 0; done < n; done += per_piece) {
        const int64_t part = min_i64(n - done, per_piece);
        if (!file_read_at(file->fd, file->path, piece, (size_t)(part * dtype->bytes),
                          offset + done * dtype->bytes, err))
            return false;
        dtype->to_floats(out + done, piece, part);
    }
    return true;
}

/* ---- writing ---- */
void safetensors_header_begin(SafetensorsHeader *header) {
    *header = (SafetensorsHeader){0};
    json_begin_object(&header->json, NULL);
    json_begin_object(&header->json, "__metadata__");
    json_write_string(&header->json, "format", "pt"); /* what transformers demands before it loads a file */
    json_end_object(&header->json);
}

void safetensors_header_add(SafetensorsHeader *header, const char *name, int rank, const int64_t *shape) {
    JsonWriter *w = &header->json;
    int64_t bytes = 4;
    json_begin_object(w, name);
    json_write_string(w, "dtype", "F32");
    json_begin_array(w, "shape");
    for (int i = 0; i < rank; i++) {
        json_write_int(w, NULL, shape[i]);
        bytes *= shape[i];
    }
    json_end_array(w);
    json_begin_array(w, "data_offsets");
    json_write_int(w, NULL, header->data_bytes);
    json_write_int(w, NULL, header->data_bytes + bytes);
    json_end_array(w);
    json_end_object(w);
    header->data_bytes += bytes;
}

bool safetensors_header_write(SafetensorsHeader *header, OutFile *file, Error *err) {
    JsonWriter *w = &header->json;
    unsigned char size[8];
    json_end_object(w);
    while (!w->text.failed && w->text.length % 8) buffer_append(&w->text, " ", 1);
    for (int i = 0; i < 8; i++) size[i] = (unsigned char)((uint64_t)w->text.length >> 8 * i);
    bool ok = !w->text.failed || fail(err, EXIT_RUN, "%s: no memory for its header", file->path);
    ok = ok && outfile_write(file, size, 8, err) && outfile_write(file, w->text.data, w->text.length, err);
    json_writer_free(w);
    return ok;
}
