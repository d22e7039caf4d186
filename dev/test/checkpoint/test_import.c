/* Models from elsewhere: Hugging Face directories in their variants, sharded ones, llm.c's .bin; and what is
 * refused. */
#include "llmc/base/json.h"
#include "llmc/checkpoint/safetensors.h"
#include "dev/test/tiny_model.h"

static GPT2 model;

/* ---- Hugging Face directories ---- */
/* What a copy of the checkpoint's tensors changes. */
typedef struct Variant {
    bool bare;         /* names without "transformer." */
    const char *head;  /* "equal" or "other": adds lm_head.weight */
    const char *extra; /* adds a vector of that name */
    const char *omit;  /* leaves out a tensor */
    const char *flat;  /* stores a tensor with rank 1 */
    int shard;         /* 1 or 2: every second tensor only */
} Variant;

static bool takes(const Variant *variant, const SafetensorsEntry *entry, int k) {
    if (variant->omit && strstr(entry->name, variant->omit)) return false;
    return variant->shard == 0 || k % 2 == variant->shard - 1;
}

static void describe(SafetensorsHeader *header, const Variant *variant, const Safetensors *from) {
    for (int k = 0; k < from->n; k++) {
        const SafetensorsEntry *entry = &from->entries[k];
        if (!takes(variant, entry, k)) continue;
        bool flat = variant->flat && strstr(entry->name, variant->flat);
        safetensors_header_add(header, entry->name + (variant->bare ? strlen("transformer.") : 0),
                               flat ? 1 : entry->rank, flat ? &entry->n_elems : entry->shape);
    }
    if (variant->head) safetensors_header_add(header, "lm_head.weight", 2, (int64_t[]){250, 32});
    if (variant->extra) safetensors_header_add(header, variant->extra, 1, (int64_t[]){4});
}

/* FOLDER/name from FOLDER/run/step_00000001/model.safetensors. */
static void write_variant(const char *name, const Variant *variant) {
    static float values[250 * 32];
    Safetensors from;
    SafetensorsHeader header;
    OutFile out;
    Error err = {0};
    unlink(path_of(name));
    if (!CHECK(safetensors_open(&from, path_of("run/step_00000001/model.safetensors"), &err), "%s", err.text))
        return;
    safetensors_header_begin(&header);
    describe(&header, variant, &from);
    bool ok = outfile_open(&out, path_of(name), &err) && safetensors_header_write(&header, &out, &err);
    for (int k = 0; ok && k < from.n; k++) {
        const SafetensorsEntry *entry = &from.entries[k];
        if (!takes(variant, entry, k)) continue;
        ok = safetensors_read(&from, entry, values, 0, entry->n_elems, &err) &&
             outfile_write(&out, values, (size_t)entry->n_elems * 4, &err);
    }
    if (variant->head) {
        ok = ok && safetensors_read(&from, safetensors_find(&from, "transformer.wte.weight"), values, 0,
                                    250 * 32, &err);
        if (strcmp(variant->head, "other") == 0) values[250 * 32 - 1] += 1;
        ok = ok && outfile_write(&out, values, sizeof values, &err);
    }
    if (variant->extra) ok = ok && outfile_write(&out, values, 16, &err);
    CHECK(ok && outfile_close(&out, &err), "%s", err.text);
    safetensors_close(&from);
}

static void copy_config(const char *directory) {
    char path[300];
    size_t size;
    Error err = {0};
    CHECK(directory_make(directory, &err), "%s", err.text);
    char *text = file_read(path_of("run/step_00000001/config.json"), 1 << 20, &size, &err);
    snprintf(path, sizeof path, "%s/config.json", directory);
    if (CHECK(text, "%s", err.text)) write_text(path, text);
    free(text);
}

static void test_hugging_face(void) {
    const char *file = "hf/model.safetensors";
    copy_config(path_of("hf"));
    write_variant(file, &(Variant){.bare = true});
    load_accepts(&model, path_of("hf"), 1);
    write_variant(file, &(Variant){.head = "equal"});
    load_accepts(&model, path_of("hf"), 1);
    const char *masks[] = {"h.0.attn.bias", "h.1.attn.masked_bias", "transformer.h.11.attn.bias"};
    for (int i = 0; i < 3; i++) {
        write_variant(file, &(Variant){.bare = i < 2, .extra = masks[i]});
        load_accepts(&model, path_of("hf"), 1);
    }
    write_variant(file, &(Variant){.head = "other"});
    load_refuses(&model, path_of("hf"), "expected lm_head.weight equal to wte.weight");
    write_variant(file, &(Variant){.extra = "lm_head.weight"});
    load_refuses(&model, path_of("hf"),
                 "'lm_head.weight': expected shape (250, 32) by config.json, found (4)");
    const char *extras[] = {"score.weight", "h.2.ln_1.weight", "wte.weight", "h.0.attn.bias2",
                            "h.x.attn.bias"};
    for (int i = 0; i < 5; i++) {
        write_variant(file, &(Variant){.extra = extras[i]});
        load_refuses(&model, path_of("hf"), extras[i]);
    }
    write_variant(file, &(Variant){.omit = "h.1.mlp.c_fc.bias"});
    load_refuses(&model, path_of("hf"), "expected tensor 'transformer.h.1.mlp.c_fc.bias', found none");
    write_variant(file, &(Variant){.flat = "h.0.attn.c_attn.weight"});
    load_refuses(&model, path_of("hf"), "expected shape (32, 96) by config.json, found (3072)");
    unlink(path_of(file));
    load_refuses(&model, path_of("hf"), "expected model.safetensors or model.safetensors.index.json");
    load_refuses(&model, folder, "expected config.json or step_* directories");
    load_refuses(&model, path_of("nowhere"), "No such file");
}

/* The index of two shards with one of its entries replaced by `entry`, if that is not NULL. */
static void write_index(const char *key, const char *file_name) {
    Safetensors from;
    Error err = {0};
    JsonWriter w = {.indent = 2};
    if (!CHECK(safetensors_open(&from, path_of("run/step_00000001/model.safetensors"), &err), "%s", err.text))
        return;
    json_begin_object(&w, NULL);
    json_begin_object(&w, "weight_map");
    for (int k = 0; k < from.n; k++) {
        bool replaced = key && strcmp(from.entries[k].name, key) == 0;
        json_write_string(&w, from.entries[k].name,
                          replaced ? file_name
                          : k % 2  ? "two.safetensors"
                                   : "one.safetensors");
    }
    if (key && !safetensors_find(&from, key)) json_write_string(&w, key, file_name);
    json_end_object(&w);
    json_end_object(&w);
    write_text(path_of("shards/model.safetensors.index.json"), w.text.data);
    json_writer_free(&w);
    safetensors_close(&from);
}

static void test_shards(void) {
    copy_config(path_of("shards"));
    write_variant("shards/one.safetensors", &(Variant){.shard = 1});
    write_variant("shards/two.safetensors", &(Variant){.shard = 2});
    write_index(NULL, NULL);
    load_accepts(&model, path_of("shards"), 1);
    const struct {
        const char *key, *file, *part;
    } cases[] = {
        {"transformer.wte.weight", "../shards/one.safetensors", "expected the name of a file beside it"              },
        {"transformer.wte.weight", "three.safetensors",         "No such file"                                       },
        {"transformer.wte.weight", "two.safetensors",           "expected tensor 'transformer.wte.weight' in"        },
        {"transformer.more",       "two.safetensors",           "tensor 'transformer.more' is not in two.safetensors"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_index(cases[i].key, cases[i].file);
        load_refuses(&model, path_of("shards"), cases[i].part);
    }
    write_text(path_of("shards/model.safetensors.index.json"), "{\"weight_map\": []}");
    load_refuses(&model, path_of("shards"), "weight_map: expected an object of tensors, found an array");
}

/* ---- llm.c ---- */
/* The weights of tiny_fill(seed) as llm.c writes them, with padded_rows rows of wte; bf16 keeps the upper
 * half. */
static void write_bin(const char *path, uint64_t seed, bool bf16, int padded_rows) {
    const int32_t header[256] = {20240326, bf16 ? 5 : 3, 16, 250, 2, 2, 32, padded_rows};
    FILE *file = fopen(path, "wb");
    if (!REQUIRE(file && fwrite(header, 4, 256, file) == 256, "writing %s", path)) return;
    for (int64_t i = 0; i < model.n_parameters + (padded_rows - 256) * 32; i++) {
        int64_t flat = i < padded_rows * 32 ? i : i - (padded_rows - 256) * 32;
        float value = i >= 250 * 32 && i < padded_rows * 32 ? 9 : tiny_value(3 * seed, flat);
        char bytes[4];
        memcpy(bytes, &value, 4);
        fwrite(bytes + (bf16 ? 2 : 0), bf16 ? 2 : 4, 1, file);
    }
    REQUIRE(fclose(file) == 0, "closing %s", path);
}

static void edit_header(const char *path, int field, int32_t value) {
    FILE *file = fopen(path, "r+b");
    CHECK(file && fseek(file, 4L * field, SEEK_SET) == 0 && fwrite(&value, 4, 1, file) == 1 &&
              fclose(file) == 0,
          "editing %s", path);
}

static void test_llmc_bin(void) {
    const char *path = path_of("model.bin");
    GPT2Config config;
    Error err = {0};
    write_bin(path, 5, false, 256);
    CHECK(checkpoint_read_config(path, &config, &err) && memcmp(&config, &tiny_config, sizeof config) == 0,
          "%s", err.text);
    load_accepts(&model, path, 5);
    write_bin(path, 5, false, 270);
    load_accepts(&model, path, 5);
    write_bin(path, 5, false, 250);
    load_accepts(&model, path, 5);
    write_bin(path, 5, true, 256);
    tiny_poison(&model);
    CHECK(checkpoint_load_weights(path, &model, &err), "%s", err.text);
    int n_wrong = 0;
    TinyPiece pieces[4 + 2 * 12];
    const int n_pieces = tiny_pieces(&model, pieces);
    for (const TinyPiece *p = pieces; p < pieces + n_pieces; p++)
        for (int64_t i = 0; i < p->n; i++) {
            const float value = tiny_element(p, 5, 0, i);
            uint32_t bits;
            memcpy(&bits, &value, 4);
            bits &= 0xffff0000u;
            n_wrong += memcmp(&bits, &model.master[p->at + i], 4) != 0;
        }
    CHECK(n_wrong == 0, "%d bf16 values differ", n_wrong);
}

static void test_bad_llmc_bin(void) {
    const struct {
        int field;
        int32_t value;
        const char *part;
    } cases[] = {
        {0, 20240327,   "expected magic 20240326 of a llm.c model, found 20240327"},
        {0, 1179993927, "a GGUF file is written by --export, and not read"        },
        {1, 4,          "expected version 3 (fp32) or 5 (bf16), found 4"          },
        {1, 5,          "bytes by its header, found"                              },
        {2, 0,          "max_seq_len is 0"                                        },
        {2, 17,         "bytes by its header, found"                              },
        {3, -1,         "found -1"                                                },
        {3, 257,        "expected a vocabulary of 1 to 256"                       },
        {4, 3,          "bytes by its header, found"                              },
        {4, INT32_MAX,  "n_layer is 2147483647"                                   },
        {5, 3,          "do not divide"                                           },
        {6, INT32_MIN,  "n_embd is -2147483648"                                   },
        {7, INT32_MAX,  "bytes by its header, found"                              },
    };
    const char *path = path_of("model.bin");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_bin(path, 5, false, 256);
        edit_header(path, cases[i].field, cases[i].value);
        load_refuses(&model, path, cases[i].part);
    }
    const off_t bytes = 1024 + 4 * (off_t)model.n_parameters,
                lengths[] = {0, 100, 1023, 1024, bytes - 1, bytes + 1};
    for (int i = 0; i < 6; i++) {
        write_bin(path, 5, false, 256);
        CHECK(truncate(path, lengths[i]) == 0, "truncate");
        load_refuses(&model, path,
                     lengths[i] < 1024 ? "the file is cut short" : "bytes by its header, found");
    }
}

int main(void) {
    Error err = {0};
    if (!REQUIRE(mkdtemp(folder) != NULL, "mkdtemp")) return check_finish("import");
    tiny_open(&model, &tiny_config);
    CHECK(tiny_save(&model, path_of("run"), 1, &(TrainerState){.step = 1}, 0, false, &err), "%s", err.text);
    test_hugging_face();
    test_shards();
    test_llmc_bin();
    test_bad_llmc_bin();
    gpt2_close(&model);
    remove_tree(folder);
    return check_finish("import");
}
