#include "llmc_bin.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "llmc/base/files.h"
#include "llmc/base/integers.h"
#include "llmc/tokenizer/tokenizer.h"
#include "pieces.h"

enum { MAGIC = 20240326, VERSION_F32 = 3, VERSION_BF16 = 5, HEADER_INTS = 256, PIECE_ELEMS = 1 << 20 };

/* A file of another kind is most likely one out of a model's directory. */
static const char hint[] = "hint: a model is a directory (a checkpoint, Hugging Face's) or a llm.c .bin";

typedef struct BinFile {
    const char *path;
    int fd;
    DType dtype;
    GPT2Config config;   /* padded_vocab_size as this program pads */
    int64_t padded_rows; /* rows of wte in the file */
} BinFile;

static bool check_header(BinFile *file, const int32_t header[HEADER_INTS], int64_t bytes, Error *err) {
    const char *path = file->path;
    if (memcmp(header, "GGUF", 4) == 0)
        return fail(err, EXIT_INPUT, "%s: a GGUF file is written by --export, and not read; %s", path, hint);
    if (header[0] != MAGIC)
        return fail(err, EXIT_INPUT, "%s: expected magic %d of a llm.c model, found %d; %s", path, MAGIC,
                    header[0], hint);
    if (header[1] != VERSION_F32 && header[1] != VERSION_BF16)
        return fail(err, EXIT_INPUT, "%s: expected version 3 (fp32) or 5 (bf16), found %d", path, header[1]);
    file->dtype = header[1] == VERSION_F32 ? DTYPE_F32 : DTYPE_BF16;
    GPT2Config *config = &file->config;
    *config = (GPT2Config){.max_seq_len = header[2],
                           .vocab_size = header[3],
                           .n_layer = header[4],
                           .n_head = header[5],
                           .n_embd = header[6]};
    if (config->vocab_size < 1 || config->vocab_size > header[7])
        return fail(err, EXIT_INPUT,
                    "%s: expected a vocabulary of 1 to %d (its padded size) tokens, found %d", path,
                    header[7], config->vocab_size);
    if (config->vocab_size > INT32_MAX - VOCAB_PADDING)
        return fail(err, EXIT_INPUT, "%s: a vocabulary of %d tokens is too large", path, config->vocab_size);
    config->padded_vocab_size = gpt2_pad_vocab(config->vocab_size);
    if (!gpt2_config_check(config, path, err)) return false;
    file->padded_rows = header[7];
    Tensor table[N_TENSORS];
    int64_t n =
        gpt2_tensors(table, config, 1) + (file->padded_rows - config->padded_vocab_size) * config->n_embd;
    int64_t expected = HEADER_INTS * 4 + n * (int64_t)dtype_bytes(file->dtype);
    return bytes == expected || fail(err, EXIT_INPUT, "%s: expected %lld bytes by its header, found %lld",
                                     path, (long long)expected, (long long)bytes);
}

static bool open_bin(BinFile *file, const char *path, Error *err) {
    int64_t bytes;
    int32_t header[HEADER_INTS];
    *file = (BinFile){.path = path};
    file->fd = file_open(path, &bytes, err);
    if (file->fd < 0) return false;
    if (bytes < (int64_t)sizeof header)
        fail(err, EXIT_INPUT,
             "%s: expected a llm.c model of at least %zu bytes, found %lld: the file is cut short; %s", path,
             sizeof header, (long long)bytes, hint);
    else if (file_read_at(file->fd, path, header, sizeof header, 0, err) &&
             check_header(file, header, bytes, err))
        return true;
    close(file->fd);
    return false;
}

bool llmc_bin_read_config(const char *path, GPT2Config *config, Error *err) {
    BinFile file;
    if (!open_bin(&file, path, err)) return false;
    *config = file.config;
    close(file.fd);
    return true;
}

/* Elements [from, from + n) of the file's data to elements [begin, begin + n) of the model. raw, floats:
 * (PIECE_ELEMS). */
static bool load_range(const BinFile *file, GPT2 *model, int64_t from, int64_t begin, int64_t n, void *raw,
                       float *floats, Error *err) {
    const int64_t width = (int64_t)dtype_bytes(file->dtype);
    for (int64_t done = 0; done < n; done += PIECE_ELEMS) {
        int64_t part = min_i64(n - done, PIECE_ELEMS);
        if (!file_read_at(file->fd, file->path, raw, (size_t)(part * width),
                          HEADER_INTS * 4 + (from + done) * width, err))
            return false;
        floats_from_storage(floats, raw, part, file->dtype);
        gpt2_set_weights(model, floats, begin + done, part);
    }
    return true;
}

/* Each tensor for all layers in turn. wte is the first, and the only one whose size in the file may differ from that in
 * the model. */
static bool load_all(const BinFile *file, GPT2 *model, void *raw, float *floats, Error *err) {
    const int64_t C = model->config.n_embd;
    int64_t from = 0; /* element of the file's data */
    zero_padding(model, FLAT_MASTER);
    for (int id = 0; id < N_TENSORS; id++)
        for (int layer = 0; layer < model->tensors[id].n_layers; layer++) {
            const Tensor *t = &model->tensors[id];
            const int64_t n = id == WTE ? model->config.vocab_size * C : t->layer_elems;
            if (!load_range(file, model, from, tensor_at(t, layer), n, raw, floats, err)) return false;
            from += id == WTE ? file->padded_rows * C : n;
        }
    return true;
}

bool llmc_bin_load_weights(const char *path, GPT2 *model, Error *err) {
    BinFile file;
    if (!open_bin(&file, path, err)) return false;
    float *floats = malloc(2 * PIECE_ELEMS * sizeof *floats);
    bool ok = floats ? load_all(&file, model, floats + PIECE_ELEMS, floats, err)
                     : fail(err, EXIT_RUN, "%s: no memory to read it", path);
    free(floats);
    close(file.fd);
    return ok;
}

/* ---- writing ---- */

static bool write_header(OutFile *file, const GPT2Config *c, DType dtype, Error *err) {
    const int32_t header[HEADER_INTS] = {MAGIC,          dtype == DTYPE_F32 ? VERSION_F32 : VERSION_BF16,
                                         c->max_seq_len, c->vocab_size,
                                         c->n_layer,     c->n_head,
                                         c->n_embd,      c->padded_vocab_size};
    return outfile_write(file, header, sizeof header, err);
}

/* n weights from master on. floats: (2 PIECE_ELEMS) */
static bool write_range(OutFile *file, const GPT2 *model, const float *master, int64_t n, DType dtype,
                        float *floats, Error *err) {
    uint16_t *halves = (uint16_t *)(floats + PIECE_ELEMS);
    for (int64_t done = 0; done < n; done += PIECE_ELEMS) {
        const int64_t part = min_i64(n - done, PIECE_ELEMS);
        model->ops->device->download(floats, master + done, (size_t)part * sizeof *floats);
        for (int64_t i = 0; dtype == DTYPE_BF16 && i < part; i++) halves[i] = bf16_from_f32(floats[i]);
        const void *stored = dtype == DTYPE_BF16 ? (const void *)halves : floats;
        if (!outfile_write(file, stored, (size_t)part * dtype_bytes(dtype), err)) return false;
    }
    return true;
}

/* wte with its padding rows, which are 0. */
static bool write_all(OutFile *file, GPT2 *model, DType dtype, float *floats, Error *err) {
    const float *master = gpt2_gather_master(model);
    for (int id = 0; id < N_TENSORS; id++)
        for (int layer = 0; layer < model->tensors[id].n_layers; layer++) {
            const Tensor *t = &model->tensors[id];
            if (!write_range(file, model, master + tensor_at(t, layer), t->layer_elems, dtype, floats, err))
                return false;
        }
    return true;
}

bool llmc_bin_save(const char *directory, const char *name, GPT2 *model, DType dtype, Error *err) {
    char path[PATH_MAX];
    OutFile file;
    if (!path_join(path, directory, name, err) || !outfile_open(&file, path, err)) return false;
    float *floats = malloc(2 * PIECE_ELEMS * sizeof *floats);
    const bool ok = floats ? write_header(&file, &model->config, dtype, err) &&
                                 write_all(&file, model, dtype, floats, err) && outfile_close(&file, err)
                           : fail(err, EXIT_RUN, "%s: no memory to write it", path);
    free(floats);
    outfile_abandon(&file);
    return ok;
}
