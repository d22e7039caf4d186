/* Exports: a GGUF read by a reader of this test's own, llm.c's .bin and the Hugging Face directory by the program's; what is
 * refused; a disk that fails at every call. */
#include <dirent.h>
#include <errno.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include "llmc/checkpoint/hf_config.h"
#include "llmc/checkpoint/export.h"
#include "llmc/base/files.h"
#include "dev/test/tiny_model.h"

static GPT2 model;
static Tokenizer *bytes_tokenizer;

/* ---- calls of the system that fail ---- */
static struct { int n, at; /* calls so far; the one that fails, -1: none */ } fault = {0, -1};

static bool fails(void) {
    errno = ENOSPC;
    return fault.n++ == fault.at;
}

ssize_t write(int fd, const void *bytes, size_t n) {
    return fails() ? -1 : syscall(SYS_write, fd, bytes, n);
}

int fsync(int fd) {
    return fails() ? -1 : (int)syscall(SYS_fsync, fd);
}

int renameat(int from, const char *old_name, int to, const char *new_name) {
    return fails() ? -1 : (int)syscall(SYS_renameat2, from, old_name, to, new_name, 0);
}

/* ---- numbers ---- */

static float f32_of_f16(uint16_t bits) {
    const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    const float sign = bits >> 15 ? -1 : 1;
    if (exponent == 31) return mantissa ? NAN : sign * INFINITY;
    return sign * (exponent ? ldexpf((float)(1024 + mantissa), exponent - 25) : ldexpf((float)mantissa, -24));
}

static float f32_of_bf16(uint16_t bits) {
    const uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

/* Every number of the type comes back; between two neighbours the nearer, in the middle the even one. */
static void test_type(const char *name, float (*widen)(uint16_t), uint16_t (*narrow)(float),
                      uint16_t infinity) {
    int n_wrong = 0;
    for (uint32_t bits = 0; bits < infinity; bits++) {
        const uint16_t low = (uint16_t)bits, high = (uint16_t)(bits + 1), even = low & 1 ? high : low;
        const float a = widen(low), b = high == infinity ? 2 * a - widen(low - 1) : widen(high);
        const float middle = a + (b - a) / 2;
        n_wrong += narrow(a) != low || narrow(-a) != (low | 0x8000);
        if (!isfinite(b) || !isfinite(middle)) continue;
        n_wrong += narrow(middle) != even || narrow(nextafterf(middle, INFINITY)) != high;
        if (middle > a) n_wrong += narrow(nextafterf(middle, 0)) != low;
    }
    CHECK(n_wrong == 0, "%s: %d numbers are rounded wrongly", name, n_wrong);
    CHECK(narrow(INFINITY) == infinity && isnan(widen(narrow(NAN))) && isnan(widen(narrow(-NAN))),
          "%s: infinity, NaN", name);
}

/* ---- a reader of GGUF ---- */
typedef struct Gguf {
    unsigned char *file;
    size_t size, at, data;
    uint64_t n_tensors, n_keys;
    size_t keys, tensors; /* where they begin */
    bool bad;
} Gguf;

static uint64_t take(Gguf *g, size_t n) {
    uint64_t value = 0;
    if (n > g->size - g->at) g->bad = true;
    if (g->bad) return 0;
    memcpy(&value, g->file + g->at, n);
    g->at += n;
    return value;
}

/* A string's bytes (not null-terminated). */
static const char *take_string(Gguf *g, size_t *length) {
    *length = take(g, 8);
    const char *text = (const char *)g->file + g->at;
    if (*length > g->size - g->at) g->bad = true;
    if (!g->bad) g->at += *length;
    return g->bad ? "" : text;
}

static void skip_value(Gguf *g, uint32_t type) {
    static const unsigned char sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    size_t length;
    if (type == 8) {
        take_string(g, &length);
    } else if (type == 9) {
        const uint32_t of = (uint32_t)take(g, 4);
        const uint64_t n = take(g, 8);
        for (uint64_t i = 0; i < n && !g->bad; i++) skip_value(g, of);
    } else {
        take(g, sizes[type]);
    }
}

/* Leaves the reader at the value of that key; its type, -1 where there is none. */
static int find_key(Gguf *g, const char *name) {
    g->at = g->keys;
    for (uint64_t i = 0; i < g->n_keys && !g->bad; i++) {
        size_t length;
        const char *key = take_string(g, &length);
        const uint32_t type = (uint32_t)take(g, 4);
        if (length == strlen(name) && memcmp(key, name, length) == 0) return (int)type;
        skip_value(g, type);
    }
    return -1;
}

static bool open_gguf(Gguf *g, const char *path) {
    Error err = {0};
    size_t length;
    *g = (Gguf){0};
    g->file = (unsigned char *)file_read(path, 64 << 20, &g->size, &err);
    if (!CHECK(g->file, "%s", err.text)) return false;
    CHECK(take(g, 4) == 0x46554747 && take(g, 4) == 3, "%s: magic and version", path);
    g->n_tensors = take(g, 8);
    g->n_keys = take(g, 8);
    g->keys = g->at;
    find_key(g, "none of them");
    g->tensors = g->at;
    for (uint64_t i = 0; i < g->n_tensors && !g->bad; i++) {
        take_string(g, &length);
        for (uint64_t k = take(g, 4); k > 0; k--) take(g, 8);
        take(g, 4), take(g, 8);
    }
    g->data = (g->at + 31) / 32 * 32;
    return CHECK(!g->bad && g->data <= g->size, "%s: the header goes past the file", path);
}

static void expect_number(Gguf *g, const char *key, int type, uint64_t value) {
    const int found = find_key(g, key);
    CHECK(found == type && take(g, type == 7 ? 1 : 4) == value, "%s: type %d, or another value", key, found);
}

static bool next_is(Gguf *g, const char *text) {
    size_t length;
    const char *found = take_string(g, &length);
    return length == strlen(text) && memcmp(found, text, length) == 0;
}

static void expect_text(Gguf *g, const char *key, const char *text) {
    CHECK(find_key(g, key) == 8 && next_is(g, text), "%s is not %s", key, text);
}

/* Leaves the reader at the first of n values. */
static bool expect_array(Gguf *g, const char *key, uint32_t of, uint64_t n) {
    return CHECK(find_key(g, key) == 9 && take(g, 4) == of && take(g, 8) == n,
                 "%s: not %llu values of type %u", key, (unsigned long long)n, of);
}

/* ---- its tensors ---- */
typedef struct Found {
    uint64_t n_dims, dims[4], offset;
    uint32_t type;
} Found;

static bool find_tensor(Gguf *g, const char *name, Found *found) {
    g->at = g->tensors;
    for (uint64_t i = 0; i < g->n_tensors && !g->bad; i++) {
        const bool is_it = next_is(g, name);
        *found = (Found){.n_dims = take(g, 4)};
        for (uint64_t k = 0; k < found->n_dims && k < 4; k++) found->dims[k] = take(g, 8);
        found->type = (uint32_t)take(g, 4);
        found->offset = take(g, 8);
        if (is_it) return true;
    }
    return false;
}

/* As llama.cpp names a layer's tensors, in the order of TensorId. */
static const struct {
    const char *name;
    bool of_block;
} theirs[N_TENSORS] = {
    {"token_embd.weight",    false},
    {"position_embd.weight", false},
    {"attn_norm.weight",     true },
    {"attn_norm.bias",       true },
    {"attn_qkv.weight",      true },
    {"attn_qkv.bias",        true },
    {"attn_output.weight",   true },
    {"attn_output.bias",     true },
    {"ffn_norm.weight",      true },
    {"ffn_norm.bias",        true },
    {"ffn_up.weight",        true },
    {"ffn_up.bias",          true },
    {"ffn_down.weight",      true },
    {"ffn_down.bias",        true },
    {"output_norm.weight",   false},
    {"output_norm.bias",     false},
};
static const struct {
    uint32_t of_tensor, of_file;
    int64_t block, bytes;
} stored[N_EXPORT_TYPES] = {
    {0,  0,  1,  4 },
    {1,  1,  1,  2 },
    {30, 32, 1,  2 },
    {8,  7,  32, 34}
};

/* Value i of a tensor's data, and how far it may be from x. */
static float value_at(const unsigned char *data, uint32_t type, int64_t i, float x, float *allowed) {
    uint16_t half;
    float value;
    *allowed = 0;
    if (type == 0) {
        memcpy(&value, data + 4 * i, 4);
        return value;
    }
    if (type == 8) {
        const unsigned char *block = data + i / 32 * 34;
        memcpy(&half, block, 2);
        *allowed = f32_of_f16(half) * (0.5f + 127 * 0x1p-11f);
        return f32_of_f16(half) * (float)(signed char)block[2 + i % 32];
    }
    memcpy(&half, data + 2 * i, 2);
    *allowed = type == 1 ? fabsf(x) * 0x1p-11f + 0x1p-25f : fabsf(x) * 0x1p-8f;
    return type == 1 ? f32_of_f16(half) : f32_of_bf16(half);
}

static void check_tensor(Gguf *g, int id, int layer, const TinyPiece *piece, ExportType type) {
    const Tensor *t = &model.tensors[id];
    const bool matrix = t->rank == 2 && id != WPE;
    const uint32_t expected = stored[matrix ? type : EXPORT_F32].of_tensor;
    const int64_t rows = id == WTE ? model.config.vocab_size : t->rows, n = rows * t->cols;
    char name[64];
    Found found = {0};
    int n_wrong = 0;
    snprintf(name, sizeof name, theirs[id].of_block ? "blk.%2$d.%1$s" : "%1$s", theirs[id].name, layer);
    if (!CHECK(find_tensor(g, name, &found), "no tensor %s", name)) return;
    CHECK(found.n_dims == (uint64_t)t->rank && found.dims[0] == (uint64_t)t->cols &&
              (t->rank == 1 || found.dims[1] == (uint64_t)rows) && found.type == expected &&
              found.offset % 32 == 0,
          "%s: sizes, type or offset", name);
    const uint64_t bytes = (uint64_t)(found.type == 8 ? n / 32 * 34 : found.type == 0 ? n * 4 : n * 2);
    if (!CHECK(g->data + found.offset + bytes <= g->size, "%s ends behind the file", name)) return;
    for (int64_t i = 0; i < n; i++) {
        float allowed, x = tiny_element(piece, 3, 0, i);
        const float value = value_at(g->file + g->data + found.offset, found.type, i, x, &allowed);
        n_wrong += !(fabsf(value - x) <= allowed);
    }
    CHECK(n_wrong == 0, "%s: %d of %lld values", name, n_wrong, (long long)n);
}

static void check_tensors(Gguf *g, ExportType type) {
    TinyPiece pieces[4 + 2 * 12];
    const int n = tiny_pieces(&model, pieces);
    const TinyPiece *piece = pieces;
    CHECK(g->n_tensors == (uint64_t)n, "%llu tensors", (unsigned long long)g->n_tensors);
    for (int id = 0; id < N_TENSORS; id++)
        for (int layer = 0; layer < model.tensors[id].n_layers; layer++)
            check_tensor(g, id, layer, piece++, type);
}

/* ---- exports ---- */

static bool export(const char *name, ExportType type, const Tokenizer *tokenizer, Error *err) {
    int64_t bytes = 0;
    *err = (Error){0};
    return export_model(path_of(name), type, &model, tokenizer, &bytes, err) && bytes > 0;
}

static void refuses(const char *name, ExportType type, const Tokenizer *tokenizer, const char *words) {
    Error err;
    CHECK(!export(name, type, tokenizer, &err) && err.exit_code == EXIT_INPUT && strstr(err.text, words),
          "%s: expected '%s' in: %s", name, words, err.text);
}

/* Before the weights are read. */
static void refuses_early(const char *name, const Tokenizer *tokenizer, const char *words) {
    Error err = {0};
    CHECK(!export_check(path_of(name), EXPORT_F32, &model.config, tokenizer, &err) &&
              err.exit_code == EXIT_INPUT && strstr(err.text, words),
          "%s: expected '%s' in: %s", name, words, err.text);
}

static void check_model_keys(Gguf *g, const char *title, ExportType type) {
    const float epsilon = 1e-5f;
    uint32_t epsilon_bits;
    memcpy(&epsilon_bits, &epsilon, 4);
    expect_text(g, "general.architecture", "gpt2");
    expect_text(g, "general.name", title);
    expect_number(g, "general.alignment", 4, 32);
    expect_number(g, "general.file_type", 4, stored[type].of_file);
    expect_number(g, "gpt2.context_length", 4, 16);
    expect_number(g, "gpt2.embedding_length", 4, 32);
    expect_number(g, "gpt2.feed_forward_length", 4, 128);
    expect_number(g, "gpt2.block_count", 4, 2);
    expect_number(g, "gpt2.attention.head_count", 4, 2);
    expect_number(g, "gpt2.attention.layer_norm_epsilon", 6, epsilon_bits);
    expect_text(g, "tokenizer.ggml.model", "gpt2");
    expect_text(g, "tokenizer.ggml.pre", "gpt-2");
    expect_number(g, "tokenizer.ggml.add_bos_token", 7, 0);
}

/* Bytes as tokens: no merges; a text begins behind a newline and never ends. */
static void test_gguf(void) {
    for (int type = 0; type < N_EXPORT_TYPES; type++) {
        char name[60], title[40];
        Gguf g;
        Error err;
        snprintf(title, sizeof title, "of_%s", export_type_names[type]);
        snprintf(name, sizeof name, "%s.gguf", title);
        if (!CHECK(export(name, type, bytes_tokenizer, &err), "%s", err.text) ||
            !open_gguf(&g, path_of(name)))
            continue;
        check_model_keys(&g, title, type);
        if (expect_array(&g, "tokenizer.ggml.tokens", 8, 250)) {
            CHECK(next_is(&g, "\u0100"), "the byte 0 is not spelled U+0100");
            for (int i = 1; i < 'A'; i++) skip_value(&g, 8);
            CHECK(next_is(&g, "A"), "'A' is not spelled so");
        }
        expect_array(&g, "tokenizer.ggml.merges", 8, 0);
        expect_number(&g, "tokenizer.ggml.bos_token_id", 4, '\n');
        expect_number(&g, "tokenizer.ggml.eos_token_id", 4, 0);
        check_tensors(&g, type);
        free(g.file);
    }
    struct stat info;
    CHECK(stat(path_of("of_f16.Modelfile"), &info) == 0, "no Modelfile");
}

/* 256 bytes, two merges, two special tokens; of the model's 262 ids two have no token. */
static void write_bpe(const char *path) {
    static const char *const more[] = {"he", "\xC3\xA9", "<|endoftext|>", "<|pad|>"};
    const uint32_t header[256] = {20240328, 2, 260, 258};
    FILE *file = fopen(path, "wb");
    if (!REQUIRE(file && fwrite(header, sizeof header, 1, file) == 1, "writing %s", path)) return;
    for (int b = 0; b < 256; b++) fprintf(file, "%c%c", 1, b);
    for (int i = 0; i < 4; i++) fprintf(file, "%c%s", (int)strlen(more[i]), more[i]);
    REQUIRE(fclose(file) == 0, "writing %s", path);
}

static void test_gguf_of_bpe(void) {
    static const char *const tokens[] = {"he",      "\u00c3\u00a9", "<|endoftext|>",
                                         "<|pad|>", "[UNUSED260]",  "[UNUSED261]"};
    static const unsigned char kinds[] = {1, 1, 3, 3, 5, 5};
    const GPT2 tiny = model;
    GPT2Config config = tiny_config;
    Error err = {0};
    Gguf g;
    config.vocab_size = 262;
    config.padded_vocab_size = gpt2_pad_vocab(262);
    write_bpe(path_of("bpe.bin"));
    Tokenizer *bpe = tokenizer_open(path_of("bpe.bin"), &err);
    tiny_open(&model, &config);
    tiny_fill(&model, 3);
    if (CHECK(bpe && export("bpe.gguf", EXPORT_F32, bpe, &err), "%s", err.text) &&
        open_gguf(&g, path_of("bpe.gguf"))) {
        if (expect_array(&g, "tokenizer.ggml.tokens", 8, 262)) {
            for (int i = 0; i < 256; i++) skip_value(&g, 8);
            for (int i = 0; i < 6; i++)
                CHECK(next_is(&g, tokens[i]), "token %d is not %s", 256 + i, tokens[i]);
        }
        if (expect_array(&g, "tokenizer.ggml.token_type", 5, 262)) {
            for (int i = 0; i < 256; i++) CHECK(take(&g, 4) == 1, "byte %d is no normal token", i);
            for (int i = 0; i < 6; i++) CHECK(take(&g, 4) == kinds[i], "kind of token %d", 256 + i);
        }
        if (expect_array(&g, "tokenizer.ggml.merges", 8, 2))
            CHECK(next_is(&g, "h e") && next_is(&g, "\u00c3 \u00a9"), "the merges");
        expect_number(&g, "tokenizer.ggml.bos_token_id", 4, 258);
        expect_number(&g, "tokenizer.ggml.eos_token_id", 4, 258);
        check_tensors(&g, EXPORT_F32);
        free(g.file);
    }
    tokenizer_close(bpe);
    gpt2_close(&model);
    model = tiny;
}

/* The program's own reader gives every bit back; bf16 rounds to nearest. */
static void test_round_trips(void) {
    TinyPiece pieces[4 + 2 * 12];
    Error err;
    int n_wrong = 0;
    CHECK(export("a.bin", EXPORT_F32, NULL, &err), "%s", err.text);
    load_accepts(&model, path_of("a.bin"), 3);
    CHECK(export("hf", EXPORT_F32, bytes_tokenizer, &err), "%s", err.text);
    load_accepts(&model, path_of("hf"), 3);
    CHECK(tokenizer_is_in(path_of("hf")), "the directory has no tokenizer");
    CHECK(export("b.bin", EXPORT_BF16, bytes_tokenizer, &err), "%s", err.text);
    tiny_poison(&model);
    CHECK(checkpoint_load_weights(path_of("b.bin"), &model, &err), "%s", err.text);
    const int n_pieces = tiny_pieces(&model, pieces);
    for (const TinyPiece *p = pieces; p < pieces + n_pieces; p++)
        for (int64_t i = 0; i < p->n; i++) {
            const float value = f32_of_bf16(bf16_from_f32(tiny_element(p, 3, 0, i)));
            n_wrong += memcmp(&value, &model.master[p->at + i], 4) != 0;
        }
    CHECK(n_wrong == 0, "%d bf16 values differ", n_wrong);
    tiny_fill(&model, 3);
    Tokenizer *beside = tokenizer_open(path_of("gpt2_tokenizer.bin"), &err);
    CHECK(beside && tokenizer_equals(beside, bytes_tokenizer), "no tokenizer beside the .bin");
    tokenizer_close(beside);
    CHECK(export("c.bin", EXPORT_F32, bytes_tokenizer, &err), "with its tokenizer there: %s", err.text);
}

static int writes_left;

static bool no_more_writes(void) {
    return --writes_left < 0;
}

/* A program that is to end, whenever that is: nothing is left of the export. */
static void test_ended(void) {
    static const char *const names[] = {"ended.gguf", "ended.bin", "ended"};
    for (int i = 0; i < 3; i++) {
        bool ok = false;
        int n = 0;
        for (; !ok && n < 1000; n++) {
            char **before, **after;
            int n_before, n_after;
            Error err, listed;
            writes_left = n;
            file_writes_end = NULL;
            if (!CHECK(directory_list(folder, "", &before, &n_before, &listed), "%s", listed.text)) return;
            file_writes_end = no_more_writes;
            ok = export(names[i], EXPORT_F32, bytes_tokenizer, &err);
            if (!CHECK(directory_list(folder, "", &after, &n_after, &listed), "%s", listed.text)) return;
            CHECK(ok || (n_after == n_before && err.exit_code == EXIT_RUN), "%s, after %d writes: %s",
                  names[i], n, err.text);
            names_free(before, n_before);
            names_free(after, n_after);
        }
        CHECK(ok && n > 2, "%s: %d writes", names[i], n);
    }
    file_writes_end = NULL;
}

/* Of a model with a window transformers is warned by a tensor, which this program knows. */
static void test_window(void) {
    Error err;
    size_t size;
    model.config.window = 8;
    refuses("w.gguf", EXPORT_F32, bytes_tokenizer, "--window 0");
    refuses("w.bin", EXPORT_F32, NULL, "sees the last 8 positions of 16");
    CHECK(export("w", EXPORT_F32, NULL, &err), "%s", err.text);
    char *file = file_read(path_of("w/model.safetensors"), 1 << 24, &size, &err);
    CHECK(file && size > 8 && strstr(file + 8, "note.attention_window_of_8_positions_is_not_applied"),
          "no tensor warns of the window");
    free(file);
    CHECK(access(path_of("w/README.md"), F_OK) == 0, "no page says it");
    load_accepts(&model, path_of("w"), 3);
    model.config.window = 16; /* as long as the context: none */
    CHECK(export("whole.gguf", EXPORT_F32, bytes_tokenizer, &err), "%s", err.text);
    CHECK(export("whole", EXPORT_F32, NULL, &err) && access(path_of("whole/README.md"), F_OK) != 0,
          "a window of the whole context is warned of");
    model.config.window = 0;
}

/* The same of documents, which a .gguf and a .bin have none of and do not refuse; beside a window each is said. */
static void test_documents(void) {
    Error err;
    size_t size;
    model.config.documents = true;
    CHECK(export("documents.gguf", EXPORT_F32, bytes_tokenizer, &err), "%s", err.text);
    CHECK(export("d", EXPORT_F32, NULL, &err), "%s", err.text);
    char *file = file_read(path_of("d/model.safetensors"), 1 << 24, &size, &err);
    CHECK(file && size > 8 && strstr(file + 8, "note.attention_by_documents_is_not_applied"),
          "no tensor warns of documents");
    free(file);
    char *page = file_read(path_of("d/README.md"), 1 << 12, &size, &err);
    CHECK(page && strstr(page, "sees its own document only (`attention_documents` in config.json)") &&
              strstr(page, "past an end-of-text token.\n") && !strstr(page, "attention_window"),
          "the page: %s", page ? page : err.text);
    free(page);
    load_accepts(&model, path_of("d"), 3);
    model.config.window = 8;
    CHECK(export("dw", EXPORT_F32, NULL, &err), "%s", err.text);
    file = file_read(path_of("dw/model.safetensors"), 1 << 24, &size, &err);
    CHECK(file && size > 8 &&
              strstr(file + 8, "note.attention_window_of_8_positions_by_documents_is_not_applied"),
          "no tensor warns of both");
    free(file);
    page = file_read(path_of("dw/README.md"), 1 << 12, &size, &err);
    CHECK(page && strstr(page, "`attention_window`") && strstr(page, "past 8 tokens.\n") &&
              strstr(page, "`attention_documents`"),
          "the page of both: %s", page ? page : err.text);
    free(page);
    model.config.window = 0;
    model.config.documents = false;
}

/* The same of a pattern of blocks. */
static void test_blocks(void) {
    Error err;
    size_t size;
    GPT2Config read;
    const int context = model.config.max_seq_len;
    model.config.sparse = (SparsePattern){1, 1, 2};
    CHECK(export("few.gguf", EXPORT_F32, bytes_tokenizer, &err), "nothing is left out: %s", err.text);
    CHECK(export("b", EXPORT_F32, NULL, &err), "%s", err.text);
    CHECK(access(path_of("b/README.md"), F_OK) != 0, "blocks that leave out nothing are warned of");
    CHECK(hf_config_read(path_of("b/config.json"), &read, &err) && read.sparse.window == 1 &&
              read.sparse.first == 1 && read.sparse.random == 2,
          "config.json: %d,%d,%d: %s", read.sparse.window, read.sparse.first, read.sparse.random, err.text);
    model.config.sparse = (SparsePattern){1, 0, 0};
    model.config.max_seq_len = 129;
    refuses("b.gguf", EXPORT_F32, bytes_tokenizer, "sees blocks by --sparse 64,0,0 of 129");
    refuses("blocks.bin", EXPORT_F32, NULL, "--sparse 0");
    model.config.max_seq_len = context;
    char *file = file_read(path_of("b/model.safetensors"), 1 << 24, &size, &err);
    CHECK(file && !strstr(file + 8, "note."), "a tensor warns of blocks that leave out nothing");
    free(file);
    model.config.sparse = (SparsePattern){0};
}

static void write_shard(const char *path) {
    const int32_t header[256] = {20240520, 1, 8};
    const uint16_t tokens[8] = {0};
    FILE *file = fopen(path, "wb");
    REQUIRE(file && fwrite(header, sizeof header, 1, file) == 1 &&
                fwrite(tokens, sizeof tokens, 1, file) == 1 && fclose(file) == 0,
            "writing %s", path);
}

/* A .bin does not make its tokenizer that of shards which have another. */
static void test_among_shards(void) {
    Error err = {0};
    REQUIRE(mkdir(path_of("shards"), 0755) == 0 && mkdir(path_of("shards/mine"), 0755) == 0, "a folder");
    write_shard(path_of("shards/mine/mine_train_000.bin"));
    refuses_early("shards/mine/x.bin", bytes_tokenizer,
                  "taken for that of the token shards in its folder, mine_train_000.bin among them");
    write_bpe(path_of("shards/gpt2_tokenizer.bin"));
    refuses_early("shards/mine/x.bin", bytes_tokenizer,
                  "mine_train_000.bin among them; hint: another folder");
    Tokenizer *bpe = tokenizer_open(path_of("shards/gpt2_tokenizer.bin"), &err);
    CHECK(bpe && export_check(path_of("shards/mine/x.bin"), EXPORT_F32, &model.config, bpe, &err),
          "with the shards' own tokenizer: %s", err.text);
    tokenizer_close(bpe);
    CHECK(export("shards/mine/x.bin", EXPORT_F32, NULL, &err), "without a tokenizer: %s", err.text);
    CHECK(export("shards/x.bin", EXPORT_F32, NULL, &err), "in the folder above: %s", err.text);
}

static void test_refused(void) {
    Error err;
    refuses_early("of_f32.gguf", bytes_tokenizer, "is there already (a file)");
    refuses_early("hf/", NULL, "is there already (a directory)");
    write_text(path_of("mine.Modelfile"), "mine");
    refuses_early("mine.gguf", bytes_tokenizer, "mine.Modelfile is there already");
    REQUIRE(symlink("nowhere", path_of("link.bin")) == 0, "symlink");
    refuses_early("link.bin", NULL, "is there already (a symbolic link)");
    refuses("none.gguf", EXPORT_F32, NULL, "the model has none");
    refuses("x.bin", EXPORT_Q8_0, NULL, "files for llm.c are f32 or bf16");
    refuses("x", EXPORT_BF16, NULL, "files for Hugging Face are f32");
    refuses("nowhere/x", EXPORT_F32, NULL, "no such directory; hint: mkdir -p '");
    refuses("of_f32.gguf/x/y", EXPORT_F32, NULL, "Not a directory");
    refuses(".gguf", EXPORT_F32, bytes_tokenizer, "a name before .gguf");
    refuses("x.GGUF", EXPORT_F32, NULL, "found a name that ends with .GGUF");
    refuses("model.safetensors/", EXPORT_F32, NULL, "found a name that ends with .safetensors");
    write_bpe(path_of("hf/gpt2_tokenizer.bin"));
    refuses("hf/x.bin", EXPORT_F32, bytes_tokenizer, "is another one than the model's");
    write_text(path_of("hf/gpt2_tokenizer.bin"), "mine");
    refuses("hf/x.bin", EXPORT_F32, bytes_tokenizer, "--export: ");
    refuses("hf/x.bin", EXPORT_F32, bytes_tokenizer,
            "is no tokenizer that can be read; hint: another folder");
    CHECK(export("hf/x.bin", EXPORT_F32, NULL, &err), "a .bin without a tokenizer: %s", err.text);
    model.config.n_embd = 24;
    CHECK(!export_check(path_of("y.gguf"), EXPORT_Q8_0, &model.config, bytes_tokenizer, &err) &&
              strstr(err.text, "24 channels are no multiple of 32"),
          "%s", err.text);
    model.config.n_embd = 32;
    const float large = 65536, bad = NAN, infinite = -INFINITY, beyond = 0x1.fffp127f;
    gpt2_set_weights(&model, &large, 7, 1);
    refuses("y.gguf", EXPORT_F16, bytes_tokenizer,
            "token_embd.weight: has the value 65536, which its type cannot hold; hint: --export-type bf16");
    CHECK(export("large.gguf", EXPORT_Q8_0, bytes_tokenizer, &err), "%s", err.text);
    gpt2_set_weights(&model, &bad, 7, 1);
    refuses("y.gguf", EXPORT_F32, bytes_tokenizer, "token_embd.weight: has the value nan");
    gpt2_set_weights(&model, &infinite, 7, 1);
    refuses("y.gguf", EXPORT_F32, bytes_tokenizer, "token_embd.weight: has the value -inf");
    refuses("y.gguf", EXPORT_BF16, bytes_tokenizer, "token_embd.weight: has the value -inf");
    gpt2_set_weights(&model, &beyond, 7, 1);
    refuses("y.gguf", EXPORT_BF16, bytes_tokenizer,
            "e+38, which its type cannot hold; hint: --export-type f32");
    tiny_fill(&model, 3);
}

static int entries(const char *path) {
    DIR *directory = opendir(path);
    int n = 0;
    while (directory && readdir(directory)) n++;
    if (directory) closedir(directory);
    return n - 2;
}

/* A disk that is full at the n-th call, for every n: an error of the run, and nothing of the export stays. */
static void test_full_disk(void) {
    static const char *const names[] = {"full/x.gguf", "full/x.bin", "full/x"};
    Error err;
    for (int i = 0; i < 3; i++) {
        bool done = false;
        int n_failed = 0;
        REQUIRE(mkdir(path_of("full"), 0777) == 0, "mkdir");
        for (int at = 0; !done && at < 60; at++) {
            fault.n = 0;
            fault.at = at;
            done = export(names[i], EXPORT_F32, bytes_tokenizer, &err);
            fault.at = -1;
            if (done) break;
            n_failed++;
            CHECK(err.exit_code == EXIT_RUN && strstr(err.text, "No space left"), "call %d: %s", at,
                  err.text);
            CHECK(strstr(err.text, path_of("full")) && !strstr(err.text, ".tmp-"), "call %d: %s", at,
                  err.text);
            if (access(path_of(names[i]), F_OK) == 0) { /* the last sync, behind the rename */
                remove_tree(path_of("full"));
                REQUIRE(mkdir(path_of("full"), 0777) == 0, "mkdir");
            }
            CHECK(entries(path_of("full")) == 0, "%s: a fault at call %d leaves something", names[i], at);
        }
        CHECK(done && n_failed > 4, "%s: %d calls", names[i], n_failed);
        remove_tree(path_of("full"));
    }
}

/* The words of a full disk are of the path that was asked for, and of what lies beside it. */
static void test_named(void) {
    static const char *const rows[][2] = {
        {"n.gguf", "n.Modelfile"    },
        {"n.bin",  "n.bin"          },
        {"\n.bin", "?.bin"          }, /* as a terminal is shown it */
        {"n",      "n/tokenizer.bin"}
    };
    for (int i = 0; i < 4; i++) {
        char expected[200];
        Error err;
        fault.n = fault.at = 0;
        CHECK(!export(rows[i][0], EXPORT_F32, bytes_tokenizer, &err), "%s is written", rows[i][0]);
        fault.at = -1;
        snprintf(expected, sizeof expected, "--export: cannot write %s: %s", path_of(rows[i][1]),
                 strerror(ENOSPC));
        CHECK(strcmp(err.text, expected) == 0, "'%s', expected '%s'", err.text, expected);
    }
}

/* A killed export leaves a folder that the next one removes, also where it has the same number, as in containers; a living one's
 * stays, as do files of others. */
static void test_leftovers(void) {
    char living[64], own[64];
    Error err;
    snprintf(living, sizeof living, ".tmp-k.bin-%ld", (long)getppid());
    snprintf(own, sizeof own, ".tmp-k.bin-%ld", (long)getpid());
    REQUIRE(mkdir(path_of(".tmp-k.bin-2147480000"), 0777) == 0 && mkdir(path_of(living), 0777) == 0 &&
                mkdir(path_of(own), 0777) == 0 && mkdir(path_of(".tmp-k.bin-mine"), 0777) == 0,
            "mkdir");
    write_text(path_of(".tmp-k.bin-2147480000/k.bin"), "half");
    CHECK(export("k.bin", EXPORT_F32, NULL, &err), "%s", err.text);
    CHECK(access(path_of(".tmp-k.bin-2147480000"), F_OK) != 0, "what a dead export left stays");
    CHECK(access(path_of(living), F_OK) == 0 && access(path_of(".tmp-k.bin-mine"), F_OK) == 0,
          "what others have is removed");
}

int main(void) {
    Error err = {0};
    if (!REQUIRE(mkdtemp(folder) != NULL, "mkdtemp")) return check_finish("export");
    bytes_tokenizer = tokenizer_open("bytes", &err);
    tiny_open(&model, &tiny_config);
    tiny_fill(&model, 3);
    test_type("f16", f32_of_f16, f16_from_f32, 0x7c00);
    test_type("bf16", f32_of_bf16, bf16_from_f32, 0x7f80);
    test_gguf();
    test_gguf_of_bpe();
    test_round_trips();
    test_ended();
    test_window();
    test_documents();
    test_blocks();
    test_among_shards();
    test_refused();
    test_full_disk();
    test_named();
    test_leftovers();
    gpt2_close(&model);
    tokenizer_close(bytes_tokenizer);
    remove_tree(folder);
    return check_finish("export");
}
