#include "gguf.h"
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "llmc/base/buffer.h"
#include "llmc/base/files.h"
#include "llmc/base/integers.h"
#include "pieces.h"

enum { VERSION = 3, ALIGNMENT = 32, BLOCK = 32, NAME_SIZE = 48, PIECE_ELEMS = 1 << 18 };
typedef enum { KEY_U32 = 4, KEY_I32 = 5, KEY_F32 = 6, KEY_BOOL = 7, KEY_STRING = 8, KEY_ARRAY = 9 } KeyType;
typedef enum { TOKEN_NORMAL = 1, TOKEN_CONTROL = 3, TOKEN_UNUSED = 5 } TokenType;

/* ---- types ---- */

static void store_f32(void *out, const float *in, int64_t n) {
    memcpy(out, in, (size_t)n * sizeof *in);
}

static void store_f16(void *out, const float *in, int64_t n) {
    for (int64_t i = 0; i < n; i++) ((uint16_t *)out)[i] = f16_from_f32(in[i]);
}

static void store_bf16(void *out, const float *in, int64_t n) {
    for (int64_t i = 0; i < n; i++) ((uint16_t *)out)[i] = bf16_from_f32(in[i]);
}

static void store_q8_0(void *out, const float *in, int64_t n) {
    unsigned char *to = out;
    for (int64_t begin = 0; begin < n; begin += BLOCK, to += 2 + BLOCK) {
        float largest = 0;
        for (int i = 0; i < BLOCK; i++) largest = fmaxf(largest, fabsf(in[begin + i]));
        const float scale = largest / 127, inverse = scale > 0x1p-100f ? 1 / scale : 0;
        const uint16_t stored = f16_from_f32(scale);
        memcpy(to, &stored, 2);
        for (int i = 0; i < BLOCK; i++) to[2 + i] = (unsigned char)(int)roundf(in[begin + i] * inverse);
    }
}

/* Numbers as GGUF has them. To write one more type, add a row. */
static const struct StoredType {
    int of_tensor, of_file;
    int block, bytes; /* values that are stored together, and their bytes */
    float limit;      /* the largest value that it holds */
    void (*store)(void *out, const float *in, int64_t n);
} types[N_EXPORT_TYPES] = {
    [EXPORT_F32] = {0,  0,  1,     4,         FLT_MAX,        store_f32 },
    [EXPORT_F16] = {1,  1,  1,     2,         65504,          store_f16 },
    [EXPORT_BF16] = {30, 32, 1,     2,         0x1.fep127f,    store_bf16},
    [EXPORT_Q8_0] = {8,  7,  BLOCK, 2 + BLOCK, 65504.0f * 127, store_q8_0},
};
const char *const export_type_names[N_EXPORT_TYPES] = {"f32", "f16", "bf16", "q8_0"};

bool gguf_check(const GPT2Config *config, ExportType type, Error *err) {
    return config->n_embd % types[type].block == 0 ||
           fail(err, EXIT_INPUT,
                "--export-type q8_0: %d channels are no multiple of %d, the values that share a scale; hint: "
                "--export-type f16",
                config->n_embd, types[type].block);
}

/* ---- keys ---- */
/* A part of the header as it grows. */
typedef struct Header {
    Buffer bytes;
    uint64_t n_keys;
} Header;

static void put(Header *h, const void *bytes, size_t n) {
    buffer_append(&h->bytes, bytes, n);
}

static void put_u32(Header *h, uint32_t value) {
    put(h, &value, sizeof value);
}

static void put_u64(Header *h, uint64_t value) {
    put(h, &value, sizeof value);
}

static void put_string(Header *h, const char *text, size_t n) {
    put_u64(h, n);
    put(h, text, n);
}

static void put_key(Header *h, const char *key, KeyType type) {
    h->n_keys++;
    put_string(h, key, strlen(key));
    put_u32(h, type);
}

static void key_u32(Header *h, const char *key, int64_t value) {
    put_key(h, key, KEY_U32);
    put_u32(h, (uint32_t)value);
}

static void key_string(Header *h, const char *key, const char *text) {
    put_key(h, key, KEY_STRING);
    put_string(h, text, strlen(text));
}

static void key_array(Header *h, const char *key, KeyType of, int64_t n) {
    put_key(h, key, KEY_ARRAY);
    put_u32(h, of);
    put_u64(h, (uint64_t)n);
}

static void put_model_keys(Header *h, const GPT2Config *c, const char *title, ExportType type) {
    key_string(h, "general.architecture", "gpt2");
    key_string(h, "general.type", "model");
    key_string(h, "general.name", title);
    key_u32(h, "general.alignment", ALIGNMENT);
    key_u32(h, "general.file_type", types[type].of_file);
    key_u32(h, "general.quantization_version", 2);
    key_u32(h, "gpt2.context_length", c->max_seq_len);
    key_u32(h, "gpt2.embedding_length", c->n_embd);
    key_u32(h, "gpt2.feed_forward_length", 4 * (int64_t)c->n_embd);
    key_u32(h, "gpt2.block_count", c->n_layer);
    key_u32(h, "gpt2.attention.head_count", c->n_head);
    const float epsilon = 1e-5f;
    put_key(h, "gpt2.attention.layer_norm_epsilon", KEY_F32);
    put(h, &epsilon, sizeof epsilon);
}

/* ---- the tokenizer ---- */
/* Ids of the model that the tokenizer has no token for, because a table was rounded up, get a name. */
static void put_tokens(Header *h, const Tokenizer *tokenizer, int vocab_size) {
    const int n = tokenizer_vocab_size(tokenizer);
    Buffer text = {0};
    key_array(h, "tokenizer.ggml.tokens", KEY_STRING, vocab_size);
    for (int i = 0; i < vocab_size; i++) {
        char unused[24];
        text.length = 0;
        if (i >= n)
            buffer_append(&text, unused, (size_t)snprintf(unused, sizeof unused, "[UNUSED%d]", i));
        else
            tokenizer_append_spelled(&text, tokenizer, i);
        if (!text.failed) put_string(h, text.data, text.length);
    }
    h->bytes.failed = h->bytes.failed || text.failed;
    buffer_free(&text);
    key_array(h, "tokenizer.ggml.token_type", KEY_I32, vocab_size);
    for (int i = 0; i < vocab_size; i++)
        put_u32(h, i >= n ? TOKEN_UNUSED : tokenizer_is_special(tokenizer, i) ? TOKEN_CONTROL : TOKEN_NORMAL);
}

static void put_merges(Header *h, const Tokenizer *tokenizer) {
    Buffer lines = {0};
    int64_t n = 0;
    tokenizer_append_merges(&lines, tokenizer);
    h->bytes.failed = h->bytes.failed || lines.failed;
    for (size_t i = 0; !lines.failed && i < lines.length; i++) n += lines.data[i] == '\n';
    key_array(h, "tokenizer.ggml.merges", KEY_STRING, n);
    const char *at = lines.data;
    for (int64_t i = 0; i < n; i++) {
        const size_t length = strcspn(at, "\n");
        put_string(h, at, length);
        at += length + 1;
    }
    buffer_free(&lines);
}

/* The token of the byte 0, which no text has: where there is no end-of-text, no text ends. Readers want an id. */
static int token_of_no_text(const Tokenizer *tokenizer) {
    size_t length;
    for (int i = 0; i < tokenizer_vocab_size(tokenizer); i++)
        if (*tokenizer_bytes(tokenizer, i, &length) == 0 && length == 1) return i;
    return 0;
}

static void put_tokenizer(Header *h, const Tokenizer *tokenizer, int vocab_size) {
    const int eot = tokenizer_eot(tokenizer);
    key_string(h, "tokenizer.ggml.model", "gpt2");
    key_string(h, "tokenizer.ggml.pre", "gpt-2");
    put_tokens(h, tokenizer, vocab_size);
    put_merges(h, tokenizer);
    key_u32(h, "tokenizer.ggml.bos_token_id", tokenizer_start(tokenizer));
    key_u32(h, "tokenizer.ggml.eos_token_id", eot < 0 ? token_of_no_text(tokenizer) : eot);
    put_key(h, "tokenizer.ggml.add_bos_token", KEY_BOOL);
    put(h, "", 1);
}

/* ---- tensors ---- */
/* Those of a block have "blk.N." before them. */
static const char *const names[N_TENSORS] = {
    [WTE] = "token_embd.weight",          [WPE] = "position_embd.weight",     [LN_1_W] = "attn_norm.weight",
    [LN_1_B] = "attn_norm.bias",          [C_ATTN_W] = "attn_qkv.weight",     [C_ATTN_B] = "attn_qkv.bias",
    [ATTN_PROJ_W] = "attn_output.weight", [ATTN_PROJ_B] = "attn_output.bias", [LN_2_W] = "ffn_norm.weight",
    [LN_2_B] = "ffn_norm.bias",           [C_FC_W] = "ffn_up.weight",         [C_FC_B] = "ffn_up.bias",
    [MLP_PROJ_W] = "ffn_down.weight",     [MLP_PROJ_B] = "ffn_down.bias",     [LN_F_W] = "output_norm.weight",
    [LN_F_B] = "output_norm.bias",
};

static void name_of(char name[NAME_SIZE], const Piece *piece) {
    if (piece->id >= LN_1_W && piece->id <= MLP_PROJ_B)
        snprintf(name, NAME_SIZE, "blk.%d.%s", piece->layer, names[piece->id]);
    else
        snprintf(name, NAME_SIZE, "%s", names[piece->id]);
}

static const struct StoredType *type_of(const Piece *piece, ExportType type) {
    const bool is_matrix = piece->tensor->rank == 2 && piece->id != WPE;
    return &types[is_matrix ? type : EXPORT_F32];
}

static void put_tensors(Header *h, const Piece *pieces, int n, ExportType export_type) {
    int64_t offset = 0;
    for (const Piece *p = pieces; p < pieces + n; p++) {
        const struct StoredType *type = type_of(p, export_type);
        char name[NAME_SIZE];
        name_of(name, p);
        put_string(h, name, strlen(name));
        put_u32(h, (uint32_t)p->tensor->rank);
        put_u64(h, (uint64_t)p->cols);
        if (p->tensor->rank == 2) put_u64(h, (uint64_t)p->rows);
        put_u32(h, (uint32_t)type->of_tensor);
        put_u64(h, (uint64_t)offset);
        offset += round_up(p->n_elems / type->block * type->bytes, ALIGNMENT);
    }
}

static bool pad(OutFile *file, Error *err) {
    static const char zeros[ALIGNMENT];
    return outfile_write(file, zeros, (size_t)(round_up(file->bytes, ALIGNMENT) - file->bytes), err);
}

static bool check_values(const Piece *piece, float limit, const float *values, int64_t n, Error *err) {
    char name[NAME_SIZE];
    name_of(name, piece);
    for (int64_t i = 0; i < n; i++) {
        if (fabsf(values[i]) <= limit) continue;
        const ExportType wider = fabsf(values[i]) <= types[EXPORT_BF16].limit ? EXPORT_BF16 : EXPORT_F32;
        const char *hint = isfinite(values[i]) ? "; hint: --export-type " : "";
        return fail(err, EXIT_INPUT, "%s: has the value %g, which its type cannot hold%s%s", name,
                    (double)values[i], hint, *hint ? export_type_names[wider] : "");
    }
    return true;
}

/* floats, raw: (PIECE_ELEMS) each */
static bool write_tensor(OutFile *file, const GPT2 *model, const float *master, const Piece *piece,
                         const struct StoredType *type, float *floats, void *raw, Error *err) {
    for (int64_t done = 0; done < piece->n_elems; done += PIECE_ELEMS) {
        const int64_t part = min_i64(piece->n_elems - done, PIECE_ELEMS);
        model->ops->device->download(floats, master + piece->begin + done, (size_t)part * sizeof *floats);
        if (!check_values(piece, type->limit, floats, part, err)) return false;
        type->store(raw, floats, part);
        if (!outfile_write(file, raw, (size_t)(part / type->block * type->bytes), err)) return false;
    }
    return pad(file, err);
}

static bool write_data(OutFile *file, GPT2 *model, const Piece *pieces, int n, ExportType type, Error *err) {
    float *floats = malloc(2 * PIECE_ELEMS * sizeof *floats);
    bool ok = floats || fail(err, EXIT_RUN, "%s: no memory to write it", file->path);
    const float *master = ok ? gpt2_gather_master(model) : NULL;
    for (int i = 0; i < n && ok; i++)
        ok = write_tensor(file, model, master, &pieces[i], type_of(&pieces[i], type), floats,
                          floats + PIECE_ELEMS, err);
    free(floats);
    return ok;
}

/* ---- the file ---- */

static bool write_header(OutFile *file, const Header *keys, const Piece *pieces, int n, ExportType type,
                         Error *err) {
    Header begin = {0}, list = {0};
    put(&begin, "GGUF", 4);
    put_u32(&begin, VERSION);
    put_u64(&begin, (uint64_t)n);
    put_u64(&begin, keys->n_keys);
    put_tensors(&list, pieces, n, type);
    const Buffer *parts[] = {&begin.bytes, &keys->bytes, &list.bytes};
    bool ok = true;
    for (int i = 0; i < 3 && ok; i++)
        ok = parts[i]->failed ? fail(err, EXIT_RUN, "%s: no memory for its header", file->path)
                              : outfile_write(file, parts[i]->data, parts[i]->length, err);
    buffer_free(&begin.bytes);
    buffer_free(&list.bytes);
    return ok && pad(file, err);
}

static bool write_file(OutFile *file, const char *title, ExportType type, GPT2 *model,
                       const Tokenizer *tokenizer, Error *err) {
    int n;
    Header keys = {0};
    Piece *pieces = list_pieces(model, &n, err);
    put_model_keys(&keys, &model->config, title, type);
    put_tokenizer(&keys, tokenizer, model->config.vocab_size);
    const bool ok = pieces && write_header(file, &keys, pieces, n, type, err) &&
                    write_data(file, model, pieces, n, type, err);
    buffer_free(&keys.bytes);
    free(pieces);
    return ok;
}

bool gguf_save(const char *directory, const char *name, const char *title, ExportType type, GPT2 *model,
               const Tokenizer *tokenizer, Error *err) {
    char path[PATH_MAX];
    OutFile file;
    if (!path_join(path, directory, name, err) || !outfile_open(&file, path, err)) return false;
    const bool ok = write_file(&file, title, type, model, tokenizer, err) && outfile_close(&file, err);
    outfile_abandon(&file);
    return ok;
}
