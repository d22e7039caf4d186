/* Saving. */
#include "hf_weights.h"
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include "checkpoint.h"
#include "hf_tensors.h"
#include "llmc/base/checksum.h"
#include "llmc/base/integers.h"
#include "llmc/base/json.h"
#include "llmc/base/parallel.h"

/* Which of the files has the buffer. */
static int file_of(int buffer) {
    return buffer == FLAT_MASTER ? 0 : 1;
}

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
    OutFile files[HF_FILES];
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
    char path[PATH_MAX], name[TENSOR_NAME];
    int64_t shape[2];
    Stretch *s = w->stretches + w->n_stretches;
    if (!path_join(path, directory, hf_file_names[f], err) || !outfile_open(file, path, err)) return false;
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
    char name[TENSOR_NAME];
    manifest_begin_file(manifest, hf_file_names[f]);
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
    const int n_files = model_only ? 1 : HF_FILES;
    w.n_buffers = list_buffers(w.buffers, model->options.optimizer, model_only);
    for (int f = 0; f < HF_FILES; f++) w.files[f].fd = -1;
    bool ok = open_files(&w, n_files, directory, err) &&
              (snapshot ? write_snapshot(&w, err) : write_from_device(&w, err));
    for (int f = 0; ok && f < n_files; f++) ok = close_file(&w, f, manifest, err);
    for (int f = 0; f < HF_FILES; f++) outfile_abandon(&w.files[f]);
    free(w.stretches);
    free(w.pieces);
    return ok;
}
