#include "hf_config.h"
#include <math.h>
#include <stdio.h>
#include "llmc/base/files.h"
#include "llmc/base/json.h"
#include "llmc/tokenizer/tokenizer.h"

typedef struct Reader {
    const char *path;
    const JsonValue *root;
    Error *err;
} Reader;

static bool refuse(const Reader *r, const char *field, const char *expected) {
    return json_refuse(r->path, field, expected, json_get(r->root, field), r->err);
}

static bool read_size(const Reader *r, const char *field, int *out) {
    const JsonValue *value = json_get(r->root, field);
    int64_t number;
    if (!json_int64(value, &number) || number < 1 || number > INT32_MAX)
        return refuse(r, field, "a whole number from 1 on");
    *out = (int)number;
    return true;
}

/* Fields that change the computation: absent, or as GPT-2 has them. To refuse one more, add a row. */
static bool check_switches(const Reader *r) {
    static const struct {
        const char *field;
        JsonType expected;
    } switches[] = {
        {"scale_attn_weights",              JSON_TRUE },
        {"scale_attn_by_inverse_layer_idx", JSON_FALSE},
        {"add_cross_attention",             JSON_FALSE},
        {"tie_word_embeddings",             JSON_TRUE },
        {"quantization_config",             JSON_NULL },
    };
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++) {
        const JsonValue *value = json_get(r->root, switches[i].field);
        if (value && value->type != switches[i].expected)
            return refuse(r, switches[i].field, json_type_name(&(JsonValue){.type = switches[i].expected}));
    }
    return true;
}

static bool check_math(const Reader *r, int n_embd) {
    const JsonValue *activation = json_get(r->root, "activation_function");
    const JsonValue *epsilon = json_get(r->root, "layer_norm_epsilon"),
                    *n_inner = json_get(r->root, "n_inner");
    double eps = 1e-5;
    int64_t inner = 4 * (int64_t)n_embd;
    char expected[40];
    /* Two names of one function, the tanh form. */
    if (activation && !json_equals(activation, "gelu_new") && !json_equals(activation, "gelu_pytorch_tanh"))
        return refuse(r, "activation_function", "gelu_new");
    if (epsilon && (!json_double(epsilon, &eps) || fabs(eps - 1e-5) > 1e-12))
        return refuse(r, "layer_norm_epsilon", "1e-5");
    snprintf(expected, sizeof expected, "null or %lld (4 n_embd)", (long long)inner);
    if (!json_is_absent(n_inner) && (!json_int64(n_inner, &inner) || inner != 4 * (int64_t)n_embd))
        return refuse(r, "n_inner", expected);
    return check_switches(r);
}

/* This program's own keys: transformers has none of them for GPT-2, and ignores them. That of documents is the token that
 * ends one. */
static const char *const window_key = "attention_window", *const documents_key = "attention_documents",
                         *const sparse_key = "attention_sparse_blocks";

/* dropout stays 0: it belongs to a run, not to a model that is read. */
static bool read_window(const Reader *r, GPT2Config *config) {
    return !json_get(r->root, window_key) || read_size(r, window_key, &config->window);
}
static bool read_documents(const Reader *r, GPT2Config *config) {
    const JsonValue *value = json_get(r->root, documents_key);
    int64_t token = 0;
    if (value && !(json_int64(value, &token) && token >= 0 && token <= INT32_MAX))
        return refuse(r, documents_key, "a token, the one that ends a document");
    config->documents = value != NULL;
    config->end_of_text = (int)token;
    return true;
}

/* An array: blocks of the window, at the start, at random. */
static bool read_sparse(const Reader *r, GPT2Config *config) {
    const JsonValue *value = json_get(r->root, sparse_key);
    int *const blocks[] = {&config->sparse.window, &config->sparse.first, &config->sparse.random};
    bool ok = !value || (json_is(value, JSON_ARRAY) && value->n == 3);
    const JsonValue *item = value ? value->first : NULL;
    for (int i = 0; ok && item; i++, item = item->next) {
        int64_t n = 0;
        ok = json_int64(item, &n) && n >= (i == 0) && n <= MOST_BLOCKS;
        *blocks[i] = (int)n;
    }
    return ok || refuse(r, sparse_key, "three counts of blocks: of the window, at the start, at random");
}

static bool read_fields(const Reader *r, GPT2Config *config) {
    const JsonValue *type = json_get(r->root, "model_type");
    *config = (GPT2Config){0};
    if (r->root->type != JSON_OBJECT)
        return fail(r->err, EXIT_INPUT, "%s: expected an object, found %s", r->path, json_type_name(r->root));
    if (!json_equals(type, "gpt2")) return refuse(r, "model_type", "gpt2");
    bool ok = read_size(r, "n_positions", &config->max_seq_len) &&
              read_size(r, "vocab_size", &config->vocab_size) && read_size(r, "n_layer", &config->n_layer) &&
              read_size(r, "n_head", &config->n_head) && read_size(r, "n_embd", &config->n_embd) &&
              read_window(r, config) && read_documents(r, config) && read_sparse(r, config);
    if (!ok) return false;
    if (config->vocab_size > INT32_MAX - VOCAB_PADDING) return refuse(r, "vocab_size", "at most 2147483519");
    config->padded_vocab_size = gpt2_pad_vocab(config->vocab_size);
    return check_math(r, config->n_embd) && gpt2_config_check(config, r->path, r->err);
}

bool hf_config_read(const char *path, GPT2Config *config, Error *err) {
    Json *json = json_read(path, err);
    if (!json) return false;
    Reader reader = {path, json_root(json), err};
    bool ok = read_fields(&reader, config);
    json_free(json);
    return ok;
}

/* Of an id or an array of ids. */
static int other_end(const JsonValue *ids, int n_tokens, int eot) {
    const bool is_list = json_is(ids, JSON_ARRAY);
    for (const JsonValue *id = is_list ? ids->first : ids; id; id = is_list ? id->next : NULL) {
        int64_t token;
        if (json_int64(id, &token) && token >= 0 && token < n_tokens && token != eot) return (int)token;
    }
    return -1;
}

int hf_config_other_end(const char *directory, int n_tokens, int eot) {
    static const char *const names[] = {"generation_config.json", "config.json"};
    int found = -1;
    for (int i = 0; i < 2 && found < 0; i++) {
        char path[PATH_MAX];
        Error ignored = {0};
        Json *json = path_join(path, directory, names[i], &ignored) ? json_read(path, &ignored) : NULL;
        if (json) found = other_end(json_get(json_root(json), "eos_token_id"), n_tokens, eot);
        json_free(json);
    }
    return found;
}

static void write_sizes(JsonWriter *w, const GPT2Config *config) {
    json_write_int(w, "vocab_size", config->vocab_size);
    json_write_int(w, "n_positions", config->max_seq_len);
    json_write_int(w, "n_ctx", config->max_seq_len);
    json_write_int(w, "n_embd", config->n_embd);
    json_write_int(w, "n_layer", config->n_layer);
    json_write_int(w, "n_head", config->n_head);
    json_write_null(w, "n_inner");
}

static void write_token_id(JsonWriter *w, const char *field, int id) {
    if (id < 0)
        json_write_null(w, field); /* transformers then neither starts nor stops at a token */
    else
        json_write_int(w, field, id);
}

static void write_sparse(JsonWriter *w, SparsePattern p) {
    if (p.window == 0) return;
    json_begin_array(w, sparse_key);
    json_write_int(w, NULL, p.window);
    json_write_int(w, NULL, p.first);
    json_write_int(w, NULL, p.random);
    json_end_array(w);
}

void hf_config_write(JsonWriter *w, const GPT2Config *config, int eot) {
    static const char *const dropouts[] = {"resid_pdrop", "embd_pdrop", "attn_pdrop"};
    *w = (JsonWriter){.indent = 2};
    json_begin_object(w, NULL);
    json_write_string(w, "model_type", "gpt2");
    json_begin_array(w, "architectures");
    json_write_string(w, NULL, "GPT2LMHeadModel");
    json_end_array(w);
    write_sizes(w, config);
    json_write_string(w, "activation_function", "gelu_new");
    json_write_double(w, "layer_norm_epsilon", 1e-5);
    json_write_double(w, "initializer_range", 0.02);
    const double dropout = round((double)config->dropout * 1e6) / 1e6; /* 0.1, not 0.1f */
    for (int i = 0; i < 3; i++) json_write_double(w, dropouts[i], dropout);
    if (config->window) json_write_int(w, window_key, config->window);
    if (config->documents) json_write_int(w, documents_key, config->end_of_text);
    write_sparse(w, config->sparse);
    write_token_id(w, "bos_token_id", eot);
    write_token_id(w, "eos_token_id", eot);
    json_write_bool(w, "tie_word_embeddings", true);
    json_write_string(w, "torch_dtype", "float32");
    json_end_object(w);
    buffer_append(&w->text, "\n", 1);
}
