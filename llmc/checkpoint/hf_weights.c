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
#include "pieces.h"

enum { NAME_SIZE = 2 * PIECE_NAME, STAGING_ELEMS = 1 << 20 };

/* The files, and which of them has a buffer. */
static const char *const file_names[] = {"model.safetensors", "optimizer.safetensors"};
enum { MAX_FILES = sizeof file_names / sizeof *file_names };

static int file_of(int buffer) {
    return buffer == FLAT_MASTER ? 0 : 1;
}

static void file_shape(const Piece *piece, int64_t shape[2]) {
    const bool transposed = piece->tensor->transposed;
    shape[0] = piece->tensor->rank == 1 || transposed ? piece->cols : piece->rows;
    shape[1] = transposed ? piece->rows : piece->cols;
}

/* Whether the buffer has this tensor: states have those of their kind of optimizer. */
static bool buffer_has(const GPT2 *model, int buffer, const Piece *piece) {
    return buffer == FLAT_MASTER ||
           optimizer_of(model->options.optimizer, piece->tensor->group) == optimizer_states[buffer].kind;
}

static void tensor_name(char name[NAME_SIZE], int buffer, const Piece *piece) {
    snprintf(name, NAME_SIZE, "%s.%s", buffer == FLAT_MASTER ? "transformer" : optimizer_states[buffer].name,
             piece->name);
}

/* Elements that pass through host memory at a time: at least the largest transposed matrix. */
static int64_t staging_elems(const GPT2 *model, const Piece *pieces, int n) {
    int64_t elems = min_i64(model->n_parameters, STAGING_ELEMS);
    for (int i = 0; i < n; i++)
        if (pieces[i].tensor->transposed) elems = max_i64(elems, pieces[i].n_elems);
    return elems;
}

static float *open_staging(int64_t elems, Error *err) {
    float *staging = malloc((size_t)elems * sizeof *staging);
    if (!staging)
        fail(err, EXIT_RUN, "no memory for %zu bytes to convert tensors", (size_t)elems * sizeof *staging);
    return staging;
}

enum { TILE = 32 };

/* One tile through a local copy, so that both matrices are touched in runs of 128 bytes: columns read
 * directly are strides of a power of two apart and evict each other. One column more than 32 keeps the copy's
 * apart. out begins with column `first`. */
static void transpose_tile(float *out, const float *in, int64_t rows, int64_t cols, int64_t i0, int64_t j0,
                           int64_t first) {
    float tile[TILE][TILE + 1];
    const int64_t n_i = min_i64(rows - i0, TILE), n_j = min_i64(cols - j0, TILE);
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

/* A tensor of a file. */
typedef struct Stretch {
    OutFile *file;
    int buffer;
    const Piece *piece;
    int64_t offset;       /* bytes of the file before it */
    _Atomic uint32_t crc; /* of the chunks that are written, each as if the others were 0 */
} Stretch;

/* A file takes the bytes of one thread at a time: more threads than these wait for each other. */
enum { MAX_WRITERS = 4, CHUNK_ELEMS = 1 << 17 };

/* The files of a save. */
typedef struct Writing {
    GPT2 *model;
    const Snapshot *snapshot; /* NULL: from the device */
    const char *note;
    int buffers[MAX_BUFFERS], n_buffers;
    OutFile files[MAX_FILES];
    Piece *pieces;
    Stretch *stretches; /* file by file, buffer by buffer */
    int n_pieces, n_stretches;
} Writing;

/* Elements [first, first + n) of one piece in some buffers. Threads write its chunks, each into its own place. */
typedef struct Part {
    Stretch *stretches[MAX_BUFFERS];
    const float *in[MAX_BUFFERS]; /* on the host, from `first` on; a transposed matrix is all there */
    int n_stretches;
    int64_t first, n;
    int64_t per_chunk; /* elements; of a transposed matrix whole rows of the file */
    int64_t n_tasks;
    atomic_int_fast64_t *next; /* task */
    atomic_bool *failed;
    Error *err; /* of the first that failed */
} Part;

static int64_t chunk_elems(const Piece *piece) {
    if (!piece->tensor->transposed) return CHUNK_ELEMS;
    return max_i64(CHUNK_ELEMS / piece->rows / TILE, 1) * TILE * piece->rows;
}

/* ---- a chunk ---- */

/* n elements of the piece, those from `begin` on. */
static bool write_elems(Stretch *s, const float *elems, int64_t begin, int64_t n, Error *err) {
    const size_t bytes = (size_t)n * sizeof *elems,
                 behind = (size_t)(s->piece->n_elems - begin - n) * sizeof *elems;
    atomic_fetch_xor(&s->crc, crc32c_join(crc32c(0, elems, bytes), 0, behind));
    return outfile_write_at(s->file, elems, bytes, s->offset + begin * (int64_t)sizeof *elems, err);
}

/* Columns of the matrix, which are rows of the file. */
static bool write_transposed(Stretch *s, const float *in, int64_t begin, int64_t n, Error *err) {
    const Piece *m = s->piece;
    const int64_t first = begin / m->rows, end = first + n / m->rows;
    float *turned = malloc((size_t)n * sizeof *turned);
    if (!turned) return fail(err, EXIT_RUN, "%s: no memory to transpose a matrix", s->file->path);
    for (int64_t j = first; j < end; j += TILE)
        for (int64_t i = 0; i < m->rows; i += TILE) transpose_tile(turned, in, m->rows, m->cols, i, j, first);
    const bool ok = write_elems(s, turned, begin, n, err);
    free(turned);
    return ok;
}

/* A chunk of each stretch in turn, because a file takes the bytes of one thread at a time. */
static bool write_chunk(const Part *p, int64_t task, Error *err) {
    Stretch *s = p->stretches[task % p->n_stretches];
    const float *in = p->in[task % p->n_stretches];
    const int64_t begin = task / p->n_stretches * p->per_chunk, n = min_i64(p->n - begin, p->per_chunk);
    return s->piece->tensor->transposed ? write_transposed(s, in, begin, n, err)
                                        : write_elems(s, in + begin, p->first + begin, n, err);
}

/* A thread's work: chunk after chunk, until none is left or one could not be written. */
static void write_some(const void *part, int64_t thread) {
    const Part *p = part;
    Error err;
    for (int64_t i; !atomic_load(p->failed) && (i = atomic_fetch_add(p->next, 1)) < p->n_tasks;)
        if (!write_chunk(p, i, &err) && !atomic_exchange(p->failed, true)) *p->err = err;
}

/* Beside training on the CPU one thread works: the cores are taken. */
static bool write_part(const Writing *w, Part *p, Error *err) {
    atomic_int_fast64_t next = 0;
    atomic_bool failed = false;
    p->per_chunk = chunk_elems(p->stretches[0]->piece);
    p->n_tasks = ceil_div(p->n, p->per_chunk) * p->n_stretches;
    p->next = &next;
    p->failed = &failed;
    p->err = err;
    if (!w->snapshot || w->model->ops->device->is_async)
        cpu_parallel_for(min_i64(p->n_tasks, MAX_WRITERS), write_some, p);
    else
        write_some(p, 0);
    return !atomic_load(&failed);
}

/* ---- all chunks ---- */

/* All is there: each piece in all buffers. */
static bool write_snapshot(const Writing *w, Error *err) {
    for (int i = 0; i < w->n_pieces; i++) {
        Part part = {.n = w->pieces[i].n_elems};
        for (int k = 0; k < w->n_stretches; k++) {
            Stretch *s = &w->stretches[k];
            if (s->piece != &w->pieces[i]) continue;
            part.in[part.n_stretches] = snapshot_buffer(w->snapshot, s->buffer) + s->piece->begin;
            part.stretches[part.n_stretches++] = s;
        }
        if (!write_part(w, &part, err)) return false;
    }
    return true;
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

/* One tensor after the other, as much of it at a time as the staging holds. */
static bool write_from_device(const Writing *w, Error *err) {
    const int64_t room = staging_elems(w->model, w->pieces, w->n_pieces);
    const float *data = NULL;
    float *staging = open_staging(room, err);
    bool ok = staging != NULL;
    for (int i = 0; ok && i < w->n_stretches; i++) {
        Stretch *s = &w->stretches[i];
        if (i == 0 || s->buffer != s[-1].buffer) data = whole_buffer(w->model, s->buffer);
        for (int64_t first = 0; ok && first < s->piece->n_elems; first += room) {
            Part part = {.stretches = {s}, .in = {staging}, .n_stretches = 1, .first = first};
            part.n = min_i64(s->piece->n_elems - first, room);
            w->model->ops->device->download(staging, data + s->piece->begin + first,
                                            (size_t)part.n * sizeof *data);
            ok = write_part(w, &part, err);
        }
    }
    free(staging);
    return ok;
}

/* ---- the files ---- */

/* Creates the file, writes its header, and lists its tensors. */
static bool open_file(Writing *w, int f, const char *directory, Error *err) {
    OutFile *file = &w->files[f];
    SafetensorsHeader header;
    char path[PATH_MAX], name[NAME_SIZE];
    int64_t shape[2];
    Stretch *s = w->stretches + w->n_stretches;
    if (!path_join(path, directory, file_names[f], err) || !outfile_open(file, path, err)) return false;
    safetensors_header_begin(&header);
    for (int k = 0; k < w->n_buffers; k++)
        for (const Piece *piece = w->pieces; piece < w->pieces + w->n_pieces; piece++) {
            const int buffer = w->buffers[k];
            if (file_of(buffer) != f || !buffer_has(w->model, buffer, piece)) continue;
            *s++ = (Stretch){.file = file, .buffer = buffer, .piece = piece, .offset = header.data_bytes};
            tensor_name(name, buffer, piece);
            file_shape(piece, shape);
            safetensors_header_add(&header, name, piece->tensor->rank, shape);
        }
    if (f == 0 && w->note) safetensors_header_add(&header, w->note, 1, (int64_t[]){1});
    if (!safetensors_header_write(&header, file, err)) return false;
    for (; w->stretches + w->n_stretches < s; w->n_stretches++)
        w->stretches[w->n_stretches].offset += file->bytes;
    return true;
}

static bool open_files(Writing *w, int n_files, const char *directory, Error *err) {
    w->pieces = list_pieces(w->model, &w->n_pieces, err);
    if (!w->pieces) return false;
    w->stretches = malloc((size_t)w->n_pieces * MAX_BUFFERS * sizeof *w->stretches);
    if (!w->stretches) return fail(err, EXIT_RUN, "no memory for the list of %d tensors", w->n_pieces);
    for (int f = 0; f < n_files; f++)
        if (!open_file(w, f, directory, err)) return false;
    return true;
}

/* The one element of a note. */
static bool write_note(OutFile *file, Error *err) {
    const float zero = 0;
    if (!outfile_write_at(file, &zero, sizeof zero, file->bytes, err)) return false;
    outfile_count(file, sizeof zero, crc32c(0, &zero, sizeof zero));
    return true;
}

/* With the checksums of the tensors, then of the file. */
static bool close_file(Writing *w, int f, JsonWriter *manifest, Error *err) {
    OutFile *file = &w->files[f];
    char name[NAME_SIZE];
    manifest_begin_file(manifest, file_names[f]);
    json_begin_object(manifest, "tensors");
    for (const Stretch *s = w->stretches; s < w->stretches + w->n_stretches; s++) {
        if (s->file != file) continue;
        const uint32_t crc = atomic_load(&s->crc);
        tensor_name(name, s->buffer, s->piece);
        manifest_write_checksum(manifest, name, crc);
        outfile_count(file, s->piece->n_elems * (int64_t)sizeof(float), crc);
    }
    json_end_object(manifest);
    if (f == 0 && w->note && !write_note(file, err)) return false;
    if (!outfile_close(file, err)) return false;
    manifest_end_file(manifest, file->bytes, file->crc);
    return true;
}

bool hf_weights_save(const char *directory, GPT2 *model, const Snapshot *snapshot, bool model_only,
                     const char *note, JsonWriter *manifest, Error *err) {
    Writing w = {.model = model, .snapshot = snapshot, .note = note};
    const int n_files = model_only ? 1 : MAX_FILES;
    w.n_buffers = list_buffers(w.buffers, model->options.optimizer, model_only);
    for (int f = 0; f < MAX_FILES; f++) w.files[f].fd = -1;
    bool ok = open_files(&w, n_files, directory, err) &&
              (snapshot ? write_snapshot(&w, err) : write_from_device(&w, err));
    for (int f = 0; ok && f < n_files; f++) ok = close_file(&w, f, manifest, err);
    for (int f = 0; f < MAX_FILES; f++) outfile_abandon(&w.files[f]);
    free(w.stretches);
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
    char name[NAME_SIZE];
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

static bool load_piece(const Loading *l, int buffer, const Piece *piece, Error *err) {
    const bool transposed = piece->tensor->transposed;
    Located at;
    if (!locate(&at, l->source, buffer, piece, err)) return false;
    for (int64_t done = 0; done < piece->n_elems; done += l->elems) {
        const int64_t part = min_i64(piece->n_elems - done, l->elems);
        if (!safetensors_read(at.file, at.entry, l->a, done, part, err)) return false;
        if (transposed) transpose(l->b, l->a, piece->cols, piece->rows);
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
    bool ok = source_add(&source, directory, file_names[1], err) &&
              load_source(&source, model, buffers + 1, n - 1, err);
    source_close(&source);
    return ok;
}
