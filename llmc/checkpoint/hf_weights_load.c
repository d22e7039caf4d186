/* Loading, also of Hugging Face's shards. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "hf_tensors.h"
#include "hf_weights.h"
#include "llmc/base/integers.h"
#include "llmc/base/json.h"
#include "llmc/base/parallel.h"

/* The files of one model: one, or the shards of an index. */
typedef struct Source {
    Safetensors *files;
    int n;
} Source;

static void source_close(Source *source) {
    for (int i = 0; i < source->n; i++) safetensors_close(&source->files[i]);
    free(source->files);
    *source = (Source){0};
}

static bool source_add(Source *source, const char *directory, const char *name, Error *err) {
    char path[PATH_MAX];
    Safetensors *grown = realloc(source->files, ((size_t)source->n + 1) * sizeof *grown);
    if (!grown) return fail(err, EXIT_RUN, "%s: no memory for its tensors", directory);
    source->files = grown;
    return path_join(path, directory, name, err) && safetensors_open(&grown[source->n], path, err) &&
           ++source->n;
}

static const Safetensors *source_find(const Source *source, const char *name, SafetensorsEntry **entry) {
    for (int i = 0; i < source->n; i++)
        if ((*entry = safetensors_find(&source->files[i], name))) return &source->files[i];
    return NULL;
}

/* The file of the source that a tensor of the index names, opened at its first mention. */
static bool open_shard(Source *source, const char *directory, const char *index, const JsonValue *name,
                       Error *err) {
    const bool plain = name->type == JSON_STRING && strlen(name->text) == name->length &&
                       name->text[0] != '.' && !strchr(name->text, '/');
    if (!plain)
        return fail(err, EXIT_INPUT,
                    "%s: weight_map: %.80s: expected the name of a file beside it, found %.80s", index,
                    name->key, json_shown(name));
    for (int i = 0; i < source->n; i++)
        if (strcmp(path_name(source->files[i].path), name->text) == 0) return true;
    return source_add(source, directory, name->text, err);
}

/* The index and the shards must name the same tensors, each in its file. */
static bool check_index(const Source *source, const char *index, const JsonValue *map, Error *err) {
    for (int i = 0; i < source->n; i++) {
        const char *path = source->files[i].path;
        for (int k = 0; k < source->files[i].n; k++) {
            const char *name = source->files[i].entries[k].name;
            if (!json_equals(json_get(map, name), path_name(path)))
                return fail(err, EXIT_INPUT, "%s: weight_map: expected tensor '%.80s' in %s, which holds it",
                            index, name, path);
        }
    }
    for (const JsonValue *name = map->first; name; name = name->next) {
        SafetensorsEntry *entry;
        if (!source_find(source, name->key, &entry))
            return fail(err, EXIT_INPUT, "%s: weight_map: tensor '%.80s' is not in %s", index, name->key,
                        name->text);
    }
    return true;
}

static bool source_open_index(Source *source, const char *directory, const char *index, Error *err) {
    Json *json = json_read(index, err);
    if (!json) return false;
    const JsonValue *map = json_get(json_root(json), "weight_map");
    bool ok = json_is(map, JSON_OBJECT) && map->n > 0;
    if (!ok)
        fail(err, EXIT_INPUT, "%s: weight_map: expected an object of tensors, found %s", index,
             json_type_name(map));
    for (const JsonValue *name = ok ? map->first : NULL; ok && name; name = name->next)
        ok = open_shard(source, directory, index, name, err);
    ok = ok && check_index(source, index, map, err);
    json_free(json);
    return ok;
}

static bool source_open(Source *source, const char *directory, Error *err) {
    char path[PATH_MAX], index[PATH_MAX];
    struct stat info;
    *source = (Source){0};
    if (!path_join(path, directory, "model.safetensors", err)) return false;
    if (!path_join(index, directory, "model.safetensors.index.json", err)) return false;
    bool ok = false;
    if (stat(path, &info) == 0)
        ok = source_add(source, directory, "model.safetensors", err);
    else if (stat(index, &info) == 0)
        ok = source_open_index(source, directory, index, err);
    else
        fail(err, EXIT_INPUT,
             "%s: expected model.safetensors or model.safetensors.index.json, found neither%s", directory,
             directory_has(directory, "pytorch_model.bin")
                 ? "; hint: transformers' save_pretrained makes it of pytorch_model.bin"
                 : "");
    if (!ok) source_close(source);
    return ok;
}

static void shape_text(char *text, size_t size, int rank, const int64_t *shape) {
    size_t used = (size_t)snprintf(text, size, "(");
    for (int i = 0; i < rank && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%lld", i ? ", " : "", (long long)shape[i]);
    if (used < size) snprintf(text + used, size - used, ")");
}

static bool check_shape(const Safetensors *file, const SafetensorsEntry *entry, const Piece *piece,
                        Error *err) {
    int64_t shape[2];
    char expected[64], found[200];
    file_shape(piece, shape);
    const int rank = piece->tensor->rank;
    if (entry->rank == rank && memcmp(entry->shape, shape, (size_t)rank * sizeof *shape) == 0) return true;
    shape_text(expected, sizeof expected, rank, shape);
    shape_text(found, sizeof found, entry->rank, entry->shape);
    return fail(err, EXIT_INPUT, "%s: tensor '%s': expected shape %s by config.json, found %s", file->path,
                entry->name, expected, found);
}

/* Where a piece is: PREFIX.name, or, for weights of OpenAI's files, the bare name. */
typedef struct Located {
    const Safetensors *file;
    SafetensorsEntry *entry;
} Located;

static bool locate(Located *at, const Source *source, int buffer, const Piece *piece, Error *err) {
    char name[TENSOR_NAME];
    tensor_name(name, buffer, piece);
    at->file = source_find(source, name, &at->entry);
    if (!at->file && buffer == FLAT_MASTER) at->file = source_find(source, piece->name, &at->entry);
    if (!at->file)
        return fail(err, EXIT_INPUT, "%s: expected tensor '%s', found none of that name",
                    source->files[0].path, name);
    at->entry->used = true;
    return check_shape(at->file, at->entry, piece, err);
}

/* Mask buffers of old transformers versions: h.0.attn.bias, h.0.attn.masked_bias. */
static bool is_mask(const char *name) {
    int end = 0;
    if (strncmp(name, "transformer.", 12) == 0) name += 12;
    if (sscanf(name, "h.%*d.attn.%n", &end) < 0 || end == 0) return false;
    return strcmp(name + end, "bias") == 0 || strcmp(name + end, "masked_bias") == 0;
}

static bool is_note(const char *name) {
    return strncmp(name, "note.", 5) == 0;
}

static bool check_all_used(const Source *source, Error *err) {
    for (int i = 0; i < source->n; i++)
        for (int k = 0; k < source->files[i].n; k++) {
            const SafetensorsEntry *entry = &source->files[i].entries[k];
            if (!entry->used && !is_mask(entry->name) && !is_note(entry->name))
                return fail(
                    err, EXIT_INPUT,
                    "%s: expected the tensors of a GPT-2 as config.json has it, found '%.80s' as well",
                    source->files[i].path, entry->name);
        }
    return true;
}

/* Tensors on their way into the model. */
typedef struct Loading {
    const Source *source;
    GPT2 *model;
    Piece *pieces;
    int n_pieces;
    float *a, *b; /* (elems) each */
    int64_t elems;
} Loading;

/* lm_head.weight, where it is stored, must be wte.weight bit for bit. */
static bool check_tied(const Loading *l, int buffer, Error *err) {
    Located head, wte;
    head.file = source_find(l->source, "lm_head.weight", &head.entry);
    if (!head.file) return true;
    head.entry->used = true;
    if (!check_shape(head.file, head.entry, &l->pieces[0], err)) return false;
    if (!locate(&wte, l->source, buffer, &l->pieces[0], err)) return false;
    for (int64_t done = 0; done < wte.entry->n_elems; done += l->elems) {
        const int64_t part = min_i64(wte.entry->n_elems - done, l->elems);
        if (!safetensors_read(wte.file, wte.entry, l->a, done, part, err)) return false;
        if (!safetensors_read(head.file, head.entry, l->b, done, part, err)) return false;
        if (memcmp(l->a, l->b, (size_t)part * sizeof *l->a))
            return fail(err, EXIT_INPUT,
                        "%s: expected lm_head.weight equal to wte.weight (a tied head), found other values: "
                        "not a GPT-2",
                        head.file->path);
    }
    return true;
}

typedef struct Transposed {
    float *out; /* (cols, rows) */
    const float *in;
    int64_t rows, cols;
} Transposed;

/* Rows of `in` of a tile. */
static void transpose_stripe(const void *args, int64_t tile) {
    const Transposed *t = args;
    for (int64_t j = 0; j < t->cols; j += TILE)
        transpose_tile(t->out, t->in, t->rows, t->cols, tile * TILE, j, 0);
}

static bool load_piece(const Loading *l, int buffer, const Piece *piece, Error *err) {
    const bool transposed = piece->tensor->transposed;
    Located at;
    if (!locate(&at, l->source, buffer, piece, err)) return false;
    for (int64_t done = 0; done < piece->n_elems; done += l->elems) {
        const int64_t part = min_i64(piece->n_elems - done, l->elems);
        if (!safetensors_read(at.file, at.entry, l->a, done, part, err)) return false;
        if (transposed) {
            const Transposed t = {l->b, l->a, piece->cols, piece->rows};
            cpu_parallel_for(ceil_div(t.rows, TILE), transpose_stripe, &t);
        }
        set_buffer(l->model, buffer, transposed ? l->b : l->a, piece->begin + done, part);
    }
    return true;
}

/* Finds and checks all tensors, then loads them. */
static bool load_buffers(const Loading *l, const int *buffers, int n_buffers, Error *err) {
    Located unused;
    for (int k = 0; k < n_buffers; k++)
        for (int i = 0; i < l->n_pieces; i++)
            if (buffer_has(l->model, buffers[k], &l->pieces[i]) &&
                !locate(&unused, l->source, buffers[k], &l->pieces[i], err))
                return false;
    if (!check_tied(l, buffers[0], err) || !check_all_used(l->source, err)) return false;
    for (int k = 0; k < n_buffers; k++) {
        for (int i = 0; i < l->n_pieces; i++)
            if (buffer_has(l->model, buffers[k], &l->pieces[i]) &&
                !load_piece(l, buffers[k], &l->pieces[i], err))
                return false;
        if (buffer_has(l->model, buffers[k], &l->pieces[0])) zero_padding(l->model, buffers[k]);
    }
    return true;
}

static bool load_source(const Source *source, GPT2 *model, const int *buffers, int n_buffers, Error *err) {
    Loading l = {.source = source, .model = model};
    l.pieces = list_pieces(model, &l.n_pieces, err);
    if (!l.pieces) return false;
    l.elems = staging_elems(model, l.pieces, l.n_pieces);
    l.a = open_staging(2 * l.elems, err);
    l.b = l.a ? l.a + l.elems : NULL;
    const bool ok = l.a && load_buffers(&l, buffers, n_buffers, err);
    free(l.a);
    free(l.pieces);
    return ok;
}

bool hf_weights_load(const char *directory, GPT2 *model, Error *err) {
    Source source;
    if (!source_open(&source, directory, err)) return false;
    bool ok = load_source(&source, model, (const int[]){FLAT_MASTER}, 1, err);
    source_close(&source);
    return ok;
}

bool hf_states_load(const char *directory, GPT2 *model, Error *err) {
    int buffers[MAX_BUFFERS];
    const int n = list_buffers(buffers, model->options.optimizer, false);
    Source source = {0};
    bool ok = source_add(&source, directory, hf_file_names[1], err) &&
              load_source(&source, model, buffers + 1, n - 1, err);
    source_close(&source);
    return ok;
}
