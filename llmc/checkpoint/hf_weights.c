#include "hf_weights.h"
#include "checkpoint.h"
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "llmc/base/checksum.h"
#include "llmc/base/json.h"
#include "llmc/cpu/parallel.h"

enum { NAME_SIZE = 96, PIECE_ELEMS = 1 << 20 };

int optimizer_buffers(FlatBuffer buffers[N_STATES], const GPT2 *model) {
    int n = 0;
    for (int i = 0; i < N_STATES; i++)
        if (model->states[i]) buffers[n++] = (FlatBuffer){optimizer_states[i].name, i, NULL};
    return n;
}

/* ---- the model's tensors, one layer's piece at a time ---- */
typedef struct Piece {
    char name[NAME_SIZE]; /* "h.3.attn.c_attn.weight" */
    int64_t begin;        /* element of the flat buffer */
    int64_t rows, cols;   /* in the flat buffer; of wte the rows of real tokens */
    int rank;
    bool transposed; /* in the file: (cols, rows) */
    GroupId group;
} Piece;

static Piece piece_of(const GPT2 *model, int id, int layer) {
    const Tensor *t = &model->tensors[id];
    Piece piece = {.begin = tensor_at(t, layer),
                   .rows = t->rows,
                   .cols = t->cols,
                   .rank = t->rank,
                   .transposed = t->transposed,
                   .group = t->group};
    if (id == WTE) piece.rows = model->config.vocab_size;
    const char *layer_mark = strstr(t->name, "%d");
    if (layer_mark)
        snprintf(piece.name, NAME_SIZE, "%.*s%d%s", (int)(layer_mark - t->name), t->name, layer,
                 layer_mark + 2);
    else
        snprintf(piece.name, NAME_SIZE, "%s", t->name);
    return piece;
}

static void file_shape(const Piece *piece, int64_t shape[2]) {
    shape[0] = piece->rank == 1 || piece->transposed ? piece->cols : piece->rows;
    shape[1] = piece->transposed ? piece->rows : piece->cols;
}

/* Whether the buffer has this tensor: states have those of their kind of optimizer. */
static bool buffer_has(const GPT2 *model, const FlatBuffer *buffer, const Piece *piece) {
    return buffer->id == FLAT_MASTER ||
           optimizer_of(model->options.optimizer, piece->group) == optimizer_states[buffer->id].kind;
}

/* All pieces, each tensor for all layers in turn; malloc'ed. */
static Piece *list_pieces(const GPT2 *model, int *n, Error *err) {
    *n = 0;
    for (int id = 0; id < N_TENSORS; id++) *n += model->tensors[id].n_layers;
    Piece *pieces = malloc((size_t)*n * sizeof *pieces);
    if (!pieces) {
        fail(err, EXIT_RUN, "no memory for the list of %d tensors", *n);
        return NULL;
    }
    Piece *next = pieces;
    for (int id = 0; id < N_TENSORS; id++)
        for (int layer = 0; layer < model->tensors[id].n_layers; layer++)
            *next++ = piece_of(model, id, layer);
    return pieces;
}

/* ---- host memory: two pieces ---- */
typedef struct Staging {
    float *a, *b;  /* (elems) each */
    int64_t elems; /* at least the largest transposed matrix */
} Staging;

static bool staging_open(Staging *s, const GPT2 *model, const Piece *pieces, int n, Error *err) {
    s->elems = model->n_parameters < PIECE_ELEMS ? model->n_parameters : PIECE_ELEMS;
    for (int i = 0; i < n; i++)
        if (pieces[i].transposed && pieces[i].rows * pieces[i].cols > s->elems)
            s->elems = pieces[i].rows * pieces[i].cols;
    const size_t bytes = (size_t)s->elems * 2 * sizeof *s->a;
    s->a = malloc(bytes);
    if (!s->a) return fail(err, EXIT_RUN, "no memory for %zu bytes to convert tensors", bytes);
    s->b = s->a + s->elems;
    return true;
}

enum { TILE = 32 };

/* One tile through a local copy, so that both matrices are touched in runs of 128 bytes: columns read
 * directly are strides of a power of two apart and evict each other. One column more than 32 keeps the copy's
 * apart. out begins with column `first`. */
static void transpose_tile(float *out, const float *in, int64_t rows, int64_t cols, int64_t i0, int64_t j0,
                           int64_t first) {
    float tile[TILE][TILE + 1];
    const int64_t n_i = rows - i0 < TILE ? rows - i0 : TILE, n_j = cols - j0 < TILE ? cols - j0 : TILE;
    for (int64_t i = 0; i < n_i; i++) memcpy(tile[i], in + (i0 + i) * cols + j0, (size_t)n_j * sizeof *in);
    for (int64_t j = 0; j < n_j; j++)
        for (int64_t i = 0; i < n_i; i++) out[(j0 + j - first) * rows + i0 + i] = tile[i][j];
}

/* out (cols, rows) = in (rows, cols) transposed */
static void transpose(float *out, const float *in, int64_t rows, int64_t cols) {
#pragma omp parallel for schedule(static) if (rows * cols > 1 << 16)
    for (int64_t i = 0; i < rows; i += TILE)
        for (int64_t j = 0; j < cols; j += TILE) transpose_tile(out, in, rows, cols, i, j, 0);
}

/* ---- saving ---- */

/* A tensor of a file. Threads write its chunks, each into its own place, and sum each up. */
typedef struct Stretch {
    OutFile *file;
    const Piece *piece;
    int64_t offset;    /* bytes of the file before it */
    int64_t per_chunk; /* elements; of a transposed matrix whole rows of the file */
    int64_t n_chunks;  /* 0: the buffer does not have this tensor */
    uint32_t *crcs;    /* (n_chunks) */
    const float
        *in; /* on the host, from element `in_first`; of a transposed matrix all of it: (rows, cols) */
    int64_t in_first;
} Stretch;

typedef struct Task {
    int32_t stretch, chunk;
} Task;

/* A file takes the bytes of one thread at a time: more threads than these wait for each other. */
enum { MAX_FILES = 2, MAX_WRITERS = 4, CHUNK_ELEMS = 1 << 17 };

/* The files of a save. */
typedef struct Writing {
    GPT2 *model;
    const Snapshot *snapshot; /* NULL: from the device */
    const SavedFile *saved;
    int n_files;
    OutFile files[MAX_FILES];
    Staging staging; /* for what comes from the device */
    Piece *pieces;
    int n_pieces, n_stretches;
    int64_t n_tasks;
    Stretch *stretches; /* in the order of the files, their buffers, and the pieces */
    Task *tasks;
    uint32_t *crcs;
    atomic_bool failed;
    Error *err; /* of the first that failed */
} Writing;

static int64_t piece_elems(const Piece *piece) {
    return piece->rows * piece->cols;
}

static int64_t chunk_elems(const Piece *piece) {
    if (!piece->transposed) return CHUNK_ELEMS;
    const int64_t rows = CHUNK_ELEMS / piece->rows / TILE * TILE;
    return (rows > TILE ? rows : TILE) * piece->rows;
}

/* ---- a chunk ---- */

static bool write_elems(const Stretch *s, const float *elems, int64_t chunk, int64_t n, Error *err) {
    const size_t bytes = (size_t)n * sizeof *elems;
    s->crcs[chunk] = crc32c(0, elems, bytes);
    return outfile_write_at(s->file, elems, bytes, s->offset + chunk * s->per_chunk * (int64_t)sizeof *elems,
                            err);
}

/* Columns of the matrix, which are rows of the file. */
static bool write_transposed(const Stretch *s, int64_t chunk, int64_t n, Error *err) {
    const Piece *m = s->piece;
    const int64_t first = chunk * s->per_chunk / m->rows, end = first + n / m->rows;
    float *turned = malloc((size_t)n * sizeof *turned);
    if (!turned) return fail(err, EXIT_RUN, "%s: no memory to transpose a matrix", s->file->path);
    for (int64_t j = first; j < end; j += TILE)
        for (int64_t i = 0; i < m->rows; i += TILE)
            transpose_tile(turned, s->in, m->rows, m->cols, i, j, first);
    const bool ok = write_elems(s, turned, chunk, n, err);
    free(turned);
    return ok;
}

typedef struct Batch {
    Writing *writing;
    const Task *tasks;
    int64_t n;
    atomic_int_fast64_t *next;
} Batch;

static void write_chunk(Writing *w, Task task) {
    const Stretch *s = &w->stretches[task.stretch];
    const int64_t first = task.chunk * s->per_chunk;
    const int64_t n = min_i64(piece_elems(s->piece) - first, s->per_chunk);
    Error err;
    if (s->piece->transposed ? write_transposed(s, task.chunk, n, &err)
                             : write_elems(s, s->in + first - s->in_first, task.chunk, n, &err))
        return;
    if (!atomic_exchange(&w->failed, true)) *w->err = err;
}

/* A thread's work: chunk after chunk, until none is left or one could not be written. */
static void write_some(const void *batch, int64_t thread) {
    const Batch *b = batch;
    (void)thread;
    for (int64_t i; !atomic_load(&b->writing->failed) && (i = atomic_fetch_add(b->next, 1)) < b->n;)
        write_chunk(b->writing, b->tasks[i]);
}

/* Beside training on the CPU one thread works: the cores are taken. */
static bool write_chunks(Writing *w, const Task *tasks, int64_t n) {
    atomic_int_fast64_t next = 0;
    const Batch batch = {w, tasks, n, &next};
    if (!w->snapshot || w->model->ops->device->is_async)
        cpu_parallel_for(min_i64(n, MAX_WRITERS), write_some, &batch);
    else
        write_some(&batch, 0);
    return !atomic_load(&w->failed);
}

/* ---- all chunks ---- */

/* Of every file, buffer and piece; offsets are those behind the headers. */
static void list_stretches(Writing *w) {
    uint32_t *crcs = w->crcs;
    Stretch *s = w->stretches;
    for (int f = 0; f < w->n_files; f++) {
        int64_t offset = w->files[f].bytes;
        for (int k = 0; k < w->saved[f].n_buffers; k++)
            for (int i = 0; i < w->n_pieces; i++, s++) {
                const Piece *piece = &w->pieces[i];
                *s = (Stretch){.file = &w->files[f], .piece = piece, .offset = offset, .crcs = crcs};
                s->per_chunk = chunk_elems(piece);
                if (!buffer_has(w->model, &w->saved[f].buffers[k], piece)) continue;
                s->n_chunks = ceil_div(piece_elems(piece), s->per_chunk);
                offset += piece_elems(piece) * (int64_t)sizeof(float);
                crcs += s->n_chunks;
            }
    }
}

/* At most n_tasks, and then their number. From the device one tensor comes after the other. A snapshot is all there: its tensors in turn, because a file takes the
 * bytes of one thread at a time. */
static void list_tasks(Writing *w) {
    Task *next = w->tasks;
    if (!w->snapshot) {
        for (int s = 0; s < w->n_stretches; s++)
            for (int64_t c = 0; c < w->stretches[s].n_chunks; c++) *next++ = (Task){s, (int32_t)c};
        w->n_tasks = next - w->tasks;
        return;
    }
    for (int i = 0; i < w->n_pieces; i++)
        for (int64_t c = 0; c < w->stretches[i].n_chunks; c++)
            for (int s = i; s < w->n_stretches; s += w->n_pieces)
                if (c < w->stretches[s].n_chunks) *next++ = (Task){s, (int32_t)c};
    w->n_tasks = next - w->tasks;
}

static bool open_tasks(Writing *w, Error *err) {
    int n_buffers = 0;
    int64_t of_a_buffer = 0;
    for (int f = 0; f < w->n_files; f++) n_buffers += w->saved[f].n_buffers;
    for (int i = 0; i < w->n_pieces; i++)
        of_a_buffer += ceil_div(piece_elems(&w->pieces[i]), chunk_elems(&w->pieces[i]));
    w->n_stretches = n_buffers * w->n_pieces;
    w->n_tasks = n_buffers * of_a_buffer;
    w->stretches = malloc((size_t)w->n_stretches * sizeof *w->stretches);
    w->tasks = malloc((size_t)w->n_tasks * sizeof *w->tasks);
    w->crcs = malloc((size_t)w->n_tasks * sizeof *w->crcs);
    if (!w->stretches || !w->tasks || !w->crcs)
        return fail(err, EXIT_RUN, "no memory for the list of %lld chunks", (long long)w->n_tasks);
    list_stretches(w);
    list_tasks(w);
    return true;
}

static bool write_header(OutFile *file, const GPT2 *model, const Piece *pieces, int n,
                         const FlatBuffer *buffers, int n_buffers, Error *err) {
    SafetensorsHeader header;
    char name[2 * NAME_SIZE];
    int64_t shape[2];
    safetensors_header_begin(&header);
    for (int k = 0; k < n_buffers; k++)
        for (int i = 0; i < n; i++) {
            if (!buffer_has(model, &buffers[k], &pieces[i])) continue;
            snprintf(name, sizeof name, "%s.%s", buffers[k].prefix, pieces[i].name);
            file_shape(&pieces[i], shape);
            safetensors_header_add(&header, name, pieces[i].rank, shape);
        }
    for (int k = 0; k < n_buffers; k++)
        if (buffers[k].note) safetensors_header_add(&header, buffers[k].note, 1, (int64_t[]){1});
    return safetensors_header_write(&header, file, err);
}

/* What rank 0 says to the others while it saves. */
typedef struct Request {
    int32_t over, ok; /* no more requests, and how the save ended */
    int32_t buffer;   /* whose parts it wants */
} Request;

static const float *whole_buffer(GPT2 *model, int id) {
    Request request = {.buffer = id};
    model->comm->broadcast_on_host(model->comm, &request, sizeof request);
    return gather_buffer(model, id);
}

bool checkpoint_share(GPT2 *model, bool ok) {
    Comm *comm = model->comm;
    for (;;) {
        Request request = {.over = true, .ok = ok};
        comm->broadcast_on_host(comm, &request, sizeof request);
        if (request.over) return request.ok;
        gather_buffer(model, request.buffer);
    }
}

/* From the device: as much of a tensor at a time as the staging holds. `data`: the tensor's buffer. */
static bool write_from_device(Writing *w, Stretch *s, const float *data, const Task *tasks) {
    const int64_t n = piece_elems(s->piece), room = w->staging.elems;
    const int64_t most = n <= room ? n : room / s->per_chunk * s->per_chunk;
    s->in = w->staging.a;
    for (s->in_first = 0; s->in_first < n; s->in_first += most) {
        const int64_t part = min_i64(n - s->in_first, most);
        w->model->ops->device->download(w->staging.a, data + s->piece->begin + s->in_first,
                                        (size_t)part * sizeof *data);
        if (!write_chunks(w, tasks + s->in_first / s->per_chunk, ceil_div(part, s->per_chunk))) return false;
    }
    return true;
}

static const FlatBuffer *buffer_of(const Writing *w, int stretch) {
    int buffer = stretch / w->n_pieces, file = 0;
    while (buffer >= w->saved[file].n_buffers) buffer -= w->saved[file++].n_buffers;
    return &w->saved[file].buffers[buffer];
}

static bool write_tensors(Writing *w) {
    const float *data = NULL;
    int64_t done = 0;
    for (int i = 0; i < w->n_stretches; i++) {
        Stretch *s = &w->stretches[i];
        const int id = buffer_of(w, i)->id;
        if (w->snapshot) {
            s->in = snapshot_buffer(w->snapshot, id) + s->piece->begin;
            continue;
        }
        if (i % w->n_pieces == 0) data = whole_buffer(w->model, id);
        if (s->n_chunks && !write_from_device(w, s, data, w->tasks + done)) return false;
        done += s->n_chunks;
    }
    return !w->snapshot || write_chunks(w, w->tasks, w->n_tasks);
}

/* ---- the files ---- */

static bool open_files(Writing *w, const char *directory, Error *err) {
    char path[PATH_MAX];
    w->pieces = list_pieces(w->model, &w->n_pieces, err);
    if (!w->pieces) return false;
    for (int f = 0; f < w->n_files; f++)
        if (!path_join(path, directory, w->saved[f].name, err) || !outfile_open(&w->files[f], path, err) ||
            !write_header(&w->files[f], w->model, w->pieces, w->n_pieces, w->saved[f].buffers,
                          w->saved[f].n_buffers, err))
            return false;
    return open_tasks(w, err) &&
           (w->snapshot || staging_open(&w->staging, w->model, w->pieces, w->n_pieces, err));
}

static uint32_t stretch_crc(const Stretch *s) {
    int64_t left = piece_elems(s->piece);
    uint32_t crc = 0;
    for (int64_t c = 0; c < s->n_chunks; c++, left -= s->per_chunk)
        crc = crc32c_join(crc, s->crcs[c], (size_t)min_i64(left, s->per_chunk) * sizeof(float));
    return crc;
}

/* The checksums of a file's tensors, its notes, the file's own. Returns the first stretch of the next file. */
static const Stretch *sum_up(Writing *w, int f, const Stretch *s, JsonWriter *manifest) {
    OutFile *file = &w->files[f];
    char name[2 * NAME_SIZE];
    manifest_begin_file(manifest, w->saved[f].name);
    json_begin_object(manifest, "tensors");
    for (int i = 0; i < w->saved[f].n_buffers * w->n_pieces; i++, s++) {
        if (!s->n_chunks) continue;
        const uint32_t crc = stretch_crc(s);
        snprintf(name, sizeof name, "%s.%s", w->saved[f].buffers[i / w->n_pieces].prefix, s->piece->name);
        manifest_write_checksum(manifest, name, crc);
        outfile_count(file, piece_elems(s->piece) * (int64_t)sizeof(float), crc);
    }
    json_end_object(manifest);
    return s;
}

/* The one element of a note. */
static bool write_note(OutFile *file, Error *err) {
    const float zero = 0;
    if (!outfile_write_at(file, &zero, sizeof zero, file->bytes, err)) return false;
    outfile_count(file, sizeof zero, crc32c(0, &zero, sizeof zero));
    return true;
}

static bool close_files(Writing *w, JsonWriter *manifest, Error *err) {
    const Stretch *s = w->stretches;
    for (int f = 0; f < w->n_files; f++) {
        OutFile *file = &w->files[f];
        s = sum_up(w, f, s, manifest);
        for (int k = 0; k < w->saved[f].n_buffers; k++)
            if (w->saved[f].buffers[k].note && !write_note(file, err)) return false;
        if (!outfile_close(file, err)) return false;
        manifest_end_file(manifest, file->bytes, file->crc);
    }
    return true;
}

bool hf_tensors_save(const char *directory, GPT2 *model, const Snapshot *snapshot, const SavedFile *files,
                     int n_files, JsonWriter *manifest, Error *err) {
    Writing w = {.model = model, .snapshot = snapshot, .saved = files, .n_files = n_files, .err = err};
    for (int f = 0; f < n_files; f++) w.files[f].fd = -1;
    const bool ok = open_files(&w, directory, err) && write_tensors(&w) && close_files(&w, manifest, err);
    for (int f = 0; f < n_files; f++) outfile_abandon(&w.files[f]);
    free(w.stretches);
    free(w.tasks);
    free(w.crcs);
    free(w.staging.a);
    free(w.pieces);
    return ok;
}

/* ---- loading ---- */
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
        if (strcmp(strrchr(source->files[i].path, '/') + 1, name->text) == 0) return true;
    return source_add(source, directory, name->text, err);
}

/* The index and the shards must name the same tensors, each in its file. */
static bool check_index(const Source *source, const char *index, const JsonValue *map, Error *err) {
    for (int i = 0; i < source->n; i++) {
        const char *path = source->files[i].path;
        for (int k = 0; k < source->files[i].n; k++) {
            const char *name = source->files[i].entries[k].name;
            if (!json_equals(json_get(map, name), strrchr(path, '/') + 1))
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
    bool ok = map && map->type == JSON_OBJECT && map->n > 0;
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
    if (entry->rank == piece->rank && memcmp(entry->shape, shape, (size_t)piece->rank * sizeof *shape) == 0)
        return true;
    shape_text(expected, sizeof expected, piece->rank, shape);
    shape_text(found, sizeof found, entry->rank, entry->shape);
    return fail(err, EXIT_INPUT, "%s: tensor '%s': expected shape %s by config.json, found %s", file->path,
                entry->name, expected, found);
}

/* Where a piece is: PREFIX.name, or, for weights of OpenAI's files, the bare name. */
typedef struct Located {
    const Safetensors *file;
    SafetensorsEntry *entry;
} Located;

static bool locate(Located *at, const Source *source, const char *prefix, const Piece *piece, Error *err) {
    char name[2 * NAME_SIZE];
    snprintf(name, sizeof name, "%s.%s", prefix, piece->name);
    at->file = source_find(source, name, &at->entry);
    if (!at->file && strcmp(prefix, "transformer") == 0)
        at->file = source_find(source, piece->name, &at->entry);
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

/* lm_head.weight, where it is stored, must be wte.weight bit for bit. */
static bool check_tied(const Source *source, const Located *wte, const Piece *piece, Staging *s, Error *err) {
    Located head;
    head.file = source_find(source, "lm_head.weight", &head.entry);
    if (!head.file) return true;
    head.entry->used = true;
    if (!check_shape(head.file, head.entry, piece, err)) return false;
    for (int64_t done = 0; done < wte->entry->n_elems; done += s->elems) {
        int64_t part = wte->entry->n_elems - done < s->elems ? wte->entry->n_elems - done : s->elems;
        if (!safetensors_read(wte->file, wte->entry, s->a, done, part, err)) return false;
        if (!safetensors_read(head.file, head.entry, s->b, done, part, err)) return false;
        if (memcmp(s->a, s->b, (size_t)part * sizeof *s->a))
            return fail(err, EXIT_INPUT,
                        "%s: expected lm_head.weight equal to wte.weight (a tied head), found other values: "
                        "not a GPT-2",
                        head.file->path);
    }
    return true;
}

/* n host floats at element `begin` of a buffer; with the master weights go their copies. */
static void put(GPT2 *model, const FlatBuffer *buffer, const float *host, int64_t begin, int64_t n) {
    if (buffer->id == FLAT_MASTER)
        gpt2_set_weights(model, host, begin, n);
    else
        gpt2_set_state(model, (StateId)buffer->id, host, begin, n);
}

static bool load_piece(const Located *at, const Piece *piece, GPT2 *model, const FlatBuffer *buffer,
                       Staging *s, Error *err) {
    const int64_t n = piece->rows * piece->cols;
    for (int64_t done = 0; done < n; done += s->elems) {
        int64_t part = n - done < s->elems ? n - done : s->elems;
        if (!safetensors_read(at->file, at->entry, s->a, done, part, err)) return false;
        if (piece->transposed) transpose(s->b, s->a, piece->cols, piece->rows);
        put(model, buffer, piece->transposed ? s->b : s->a, piece->begin + done, part);
    }
    return true;
}

/* The rows of wte that stand for no token. */
static void put_padding(GPT2 *model, const FlatBuffer *buffer, Staging *s) {
    const int64_t C = model->config.n_embd, V = model->config.vocab_size;
    const int64_t n = (model->config.padded_vocab_size - V) * C, begin = model->tensors[WTE].offset + V * C;
    memset(s->a, 0, (size_t)s->elems * sizeof *s->a);
    for (int64_t done = 0; done < n; done += s->elems)
        put(model, buffer, s->a, begin + done, n - done < s->elems ? n - done : s->elems);
}

/* Finds and checks all tensors, then loads them. located: (n_buffers, n). */
static bool load_located(const Source *source, GPT2 *model, const FlatBuffer *buffers, int n_buffers,
                         const Piece *pieces, int n, Located *located, Staging *s, Error *err) {
    for (int k = 0; k < n_buffers; k++)
        for (int i = 0; i < n; i++)
            if (buffer_has(model, &buffers[k], &pieces[i]) &&
                !locate(&located[k * n + i], source, buffers[k].prefix, &pieces[i], err))
                return false;
    if (!check_tied(source, &located[0], &pieces[0], s, err) || !check_all_used(source, err)) return false;
    for (int k = 0; k < n_buffers; k++) {
        for (int i = 0; i < n; i++)
            if (buffer_has(model, &buffers[k], &pieces[i]) &&
                !load_piece(&located[k * n + i], &pieces[i], model, &buffers[k], s, err))
                return false;
        if (buffer_has(model, &buffers[k], &pieces[0])) put_padding(model, &buffers[k], s);
    }
    return true;
}

static bool load_source(const Source *source, GPT2 *model, const FlatBuffer *buffers, int n_buffers,
                        Error *err) {
    int n;
    Staging staging = {0};
    Located *located = NULL;
    Piece *pieces = list_pieces(model, &n, err);
    bool ok = pieces && staging_open(&staging, model, pieces, n, err);
    if (ok) {
        located = calloc((size_t)n * (size_t)n_buffers, sizeof *located);
        ok = located ? load_located(source, model, buffers, n_buffers, pieces, n, located, &staging, err)
                     : fail(err, EXIT_RUN, "no memory for the list of %d tensors", n);
    }
    free(located);
    free(staging.a);
    free(pieces);
    return ok;
}

bool hf_weights_load(const char *directory, GPT2 *model, Error *err) {
    const FlatBuffer weights = {"transformer", FLAT_MASTER, NULL};
    Source source;
    if (!source_open(&source, directory, err)) return false;
    bool ok = load_source(&source, model, &weights, 1, err);
    source_close(&source);
    return ok;
}

bool hf_tensors_load(const char *directory, const char *name, GPT2 *model, const FlatBuffer *buffers,
                     int n_buffers, Error *err) {
    Source source = {0};
    bool ok =
        source_add(&source, directory, name, err) && load_source(&source, model, buffers, n_buffers, err);
    source_close(&source);
    return ok;
}
