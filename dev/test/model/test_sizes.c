/* Sizes that are known from elsewhere: the descriptors' layers, heads, channels and parameters (Radford et al. 2019, Brown
 * et al. 2020), the parameter tensors, the memory that a model of a size takes, FLOPs of a token. */
#include <string.h>
#include "llmc/model/gpt2.h"
#include "llmc/model/op_cost.h"
#include "dev/test/check.h"

/* ---- descriptors ---- */

static const struct {
    const char *name;
    int n_layer, n_head, n_embd;
    int64_t n_parameters; /* at context 1024 and vocabulary 50257, as transformers counts; 0: not known */
} sizes[] = {
    {"nano",        4,  4,  128,   0         },
    {"baby",        6,  6,  384,   0         },
    {"d6",          6,  6,  384,   0         },
    {"d12",         12, 12, 768,   124439808 },
    {"d24",         24, 16, 1024,  354823168 },
    {"d36",         36, 20, 1280,  774030080 },
    {"d48",         48, 25, 1600,  1557611200},
    {"d60",         60, 30, 1920,  0         },
    {"d72",         72, 30, 2880,  0         },
    {"d84",         84, 36, 3456,  0         },
    {"gpt3:c384",   6,  6,  384,   0         },
    {"gpt3:c768",   12, 12, 768,   124439808 },
    {"gpt3:c1024",  24, 16, 1024,  354823168 },
    {"gpt3:c1536",  24, 16, 1536,  0         },
    {"gpt3:c2048",  24, 16, 2048,  0         },
    {"gpt3:c2560",  32, 32, 2560,  0         },
    {"gpt3:c4096",  32, 32, 4096,  0         },
    {"gpt3:c5120",  40, 40, 5120,  0         },
    {"gpt3:c12288", 96, 96, 12288, 0         },
};

static GPT2Config gpt2_size(const char *name) {
    GPT2Config config = {.max_seq_len = 1024, .vocab_size = 50257, .padded_vocab_size = 50304};
    Error err = {0};
    CHECK(gpt2_config_from_descriptor(&config, name, &err), "%s: %s", name, err.text);
    return config;
}

/* Names that others have for these sizes are no models here: the hint is of the size, and of the weights that are OpenAI's. */
static void test_other_names(void) {
    static const char *const of_size[][2] = {
        {"124M",  "d12"},
        {"350m",  "d24"},
        {"355M",  "d24"},
        {"774M",  "d36"},
        {"1558M", "d48"},
        {"1.5B",  "d48"}
    };
    static const char *const of_weights[][2] = {
        {"gpt2",        "d12"},
        {"gpt2-medium", "d24"},
        {"gpt2-large",  "d36"},
        {"GPT2-XL",     "d48"}
    };
    GPT2Config c;
    char hint[80];
    for (size_t i = 0; i < sizeof of_size / sizeof *of_size; i++) {
        Error err = {0};
        snprintf(hint, sizeof hint, "hint: --model %s is of that size", of_size[i][1]);
        CHECK(!gpt2_config_from_descriptor(&c, of_size[i][0], &err) && strstr(err.text, hint), "%s: %s",
              of_size[i][0], err.text);
    }
    for (size_t i = 0; i < sizeof of_weights / sizeof *of_weights; i++) {
        Error err = {0};
        snprintf(hint, sizeof hint, "--model %s is a new one of its size", of_weights[i][1]);
        CHECK(!gpt2_config_from_descriptor(&c, of_weights[i][0], &err) &&
                  strstr(err.text, "hint: hf download") && strstr(err.text, hint),
              "%s: %s", of_weights[i][0], err.text);
    }
}

static void test_descriptors(void) {
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const GPT2Config c = gpt2_size(sizes[i].name);
        const int64_t L = sizes[i].n_layer, C = sizes[i].n_embd;
        Error err = {0};
        CHECK(c.n_layer == sizes[i].n_layer && c.n_head == sizes[i].n_head && c.n_embd == sizes[i].n_embd,
              "%s: %d layers, %d heads, %d channels", sizes[i].name, c.n_layer, c.n_head, c.n_embd);
        CHECK(gpt2_config_check(&c, sizes[i].name, &err), "%s", err.text);
        const int64_t expected = (50257 + 1024) * C + L * (12 * C * C + 13 * C) + 2 * C,
                      n = gpt2_n_parameters(&c);
        CHECK(n == expected && (!sizes[i].n_parameters || n == sizes[i].n_parameters),
              "%s: %lld parameters, expected %lld", sizes[i].name, (long long)n, (long long)expected);
    }
    GPT2Config c;
    Error err = {0};
    CHECK(!gpt2_config_from_descriptor(&c, "d13", &err) && err.exit_code == EXIT_INPUT &&
              strstr(err.text, "'d13'") && strstr(err.text, "nano, baby, d6, d12,") &&
              strstr(err.text, "gpt3:c12288"),
          "an unknown size: %s", err.text);
}

/* ---- tensors ---- */

/* Embeddings, three blocks, the final norm: layer after layer, tensor after tensor, each from a tile on, and each tile of
 * its tensor's group. */
static void test_places(const Tensor table[N_TENSORS]) {
    int32_t groups[200];
    int64_t at = 0;
    REQUIRE(gpt2_n_elements(table) <= 200 * PARAMETER_TILE, "%lld elements",
            (long long)gpt2_n_elements(table));
    gpt2_tile_groups(groups, table);
    for (int layer = -1; layer <= 3; layer++) {
        const ParameterRange range = gpt2_layer_range(table, layer);
        const int first = layer < 0 ? WTE : layer < 3 ? LN_1_W : LN_F_W;
        const int last = layer < 0 ? WPE : layer < 3 ? MLP_PROJ_B : LN_F_B;
        CHECK(range.begin == at, "layer %d begins at %lld, not %lld", layer, (long long)range.begin,
              (long long)at);
        for (int id = first; id <= last; id++) {
            const bool matrix = strstr(table[id].name, ".weight") && !strstr(table[id].name, "ln_");
            const GroupId group = !matrix ? GROUP_VECTORS : layer < 0 ? GROUP_EMBEDDINGS : GROUP_MATRICES;
            CHECK(tensor_at(&table[id], layer < 0 || layer == 3 ? 0 : layer) == at,
                  "%s of layer %d is not at %lld", table[id].name, layer, (long long)at);
            const int64_t end = at + table[id].layer_elems;
            for (; at < end; at += PARAMETER_TILE)
                CHECK(groups[at / PARAMETER_TILE] == (int32_t)group, "%s: group %d", table[id].name,
                      groups[at / PARAMETER_TILE]);
        }
        CHECK(range.begin + range.n == at, "layer %d has %lld elements, and ends at %lld", layer,
              (long long)range.n, (long long)at);
    }
    CHECK(gpt2_n_elements(table) == at, "%lld elements, not %lld", (long long)gpt2_n_elements(table),
          (long long)at);
}

static void test_tensors(void) {
    const GPT2Config c = {.max_seq_len = 40,
                          .vocab_size = 200,
                          .padded_vocab_size = 256,
                          .n_layer = 3,
                          .n_head = 2,
                          .n_embd = 16};
    static const struct {
        const char *name;
        int rows, cols;
        bool matrix;
    } rows[N_TENSORS] = {
        {"wte.weight",              256, 16, true },
        {"wpe.weight",              40,  16, true },
        {"h.%d.ln_1.weight",        1,   16, false},
        {"h.%d.ln_1.bias",          1,   16, false},
        {"h.%d.attn.c_attn.weight", 48,  16, true },
        {"h.%d.attn.c_attn.bias",   1,   48, false},
        {"h.%d.attn.c_proj.weight", 16,  16, true },
        {"h.%d.attn.c_proj.bias",   1,   16, false},
        {"h.%d.ln_2.weight",        1,   16, false},
        {"h.%d.ln_2.bias",          1,   16, false},
        {"h.%d.mlp.c_fc.weight",    64,  16, true },
        {"h.%d.mlp.c_fc.bias",      1,   64, false},
        {"h.%d.mlp.c_proj.weight",  16,  64, true },
        {"h.%d.mlp.c_proj.bias",    1,   16, false},
        {"ln_f.weight",             1,   16, false},
        {"ln_f.bias",               1,   16, false},
    };
    Tensor table[N_TENSORS];
    const int64_t n = gpt2_tensors(table, &c, 1);
    int64_t n_expected = 0;
    for (int i = 0; i < N_TENSORS; i++) {
        const Tensor *t = &table[i];
        const bool per_layer = rows[i].name[0] == 'h';
        CHECK(strcmp(t->name, rows[i].name) == 0 && t->rows == rows[i].rows && t->cols == rows[i].cols &&
                  (t->rank == 2) == rows[i].matrix && t->n_layers == (per_layer ? 3 : 1),
              "tensor %d: %s, %lld x %lld", i, t->name, (long long)t->rows, (long long)t->cols);
        CHECK(t->layer_elems == t->rows * t->cols, "%s has %lld elements", t->name,
              (long long)t->layer_elems);
        n_expected += t->layer_elems * t->n_layers;
    }
    CHECK(n == n_expected, "%lld elements, not %lld", (long long)n, (long long)n_expected);
    test_places(table);
    CHECK(gpt2_pad_vocab(1) == 128 && gpt2_pad_vocab(128) == 128 && gpt2_pad_vocab(129) == 256 &&
              gpt2_pad_vocab(50257) == 50304,
          "vocabularies are padded to multiples of 128");
}

/* ---- what a config may be ---- */

static const GPT2Config small = {
    .max_seq_len = 8, .vocab_size = 256, .padded_vocab_size = 256, .n_layer = 1, .n_head = 1, .n_embd = 8};

static void accepts(GPT2Config c, const char *what) {
    Error err = {0};
    CHECK(gpt2_config_check(&c, "size", &err), "%s: %s", what, err.text);
}

static void refuses(GPT2Config c, const char *says) {
    Error err = {0};
    CHECK(!gpt2_config_check(&c, "size", &err) && err.exit_code == EXIT_INPUT && strstr(err.text, "size: ") &&
              strstr(err.text, says),
          "expected a refusal with '%s': %s", says, err.text);
}

/* Each field at its ends, and one beyond. */
static void test_ranges(void) {
    const struct {
        size_t offset;
        const char *name;
        int low, high;
    } fields[] = {
        {offsetof(GPT2Config, max_seq_len), "max_seq_len is", 1, 1 << 26},
        {offsetof(GPT2Config, n_layer),     "n_layer is",     1, 4096   },
    };
    for (size_t i = 0; i < 2; i++)
        for (int end = 0; end < 2; end++) {
            GPT2Config c = small;
            int *field = (int *)(void *)((char *)&c + fields[i].offset);
            *field = end ? fields[i].high : fields[i].low;
            accepts(c, fields[i].name);
            *field += end ? 1 : -1;
            refuses(c, fields[i].name);
        }
    GPT2Config c = small;
    c.vocab_size = 1, c.padded_vocab_size = 128;
    accepts(c, "a vocabulary of 1");
    c.vocab_size = 0, c.padded_vocab_size = 0;
    refuses(c, "vocab_size is 0");
    c.vocab_size = c.padded_vocab_size = 1 << 24;
    accepts(c, "a vocabulary of 2^24");
    c.vocab_size++, c.padded_vocab_size += 128;
    refuses(c, "vocab_size is 16777217, expected 1 to 16777216");
    c = small, c.padded_vocab_size = 384;
    refuses(c, "padded vocabulary is 384, expected 256");
    c = small, c.window = 1 << 26, c.dropout = 0.99f;
    accepts(c, "window and dropout at their ends");
    c.window++;
    refuses(c, "window 67108865");
    c.window = -1;
    refuses(c, "window -1");
    c.window = 0, c.dropout = 1;
    refuses(c, "dropout 1");
    c.dropout = -0.1f;
    refuses(c, "dropout -0.1");
    c.dropout = NAN;
    refuses(c, "dropout");
}

static void test_heads(void) {
    static const struct {
        int n_embd, n_head;
        const char *says; /* NULL: they fit */
    } rows[] = {
        {8,      1,    NULL                                                                       },
        {256,    1,    NULL                                                                       },
        {131072, 512,  NULL                                                                       },
        {131080, 4096, "n_embd is 131080, expected 8 to 131072"                                   },
        {0,      1,    "n_embd is 0"                                                              },
        {8,      0,    "n_head is 0"                                                              },
        {8,      4097, "n_head is 4097"                                                           },
        {100,    3,    "100 channels do not divide into 3 heads; hint: channels in multiples of 8"},
        {768,    7,    "768 channels do not divide into 7 heads; nearest: 6 heads of 128"         },
        {768,    11,   "nearest: 12 heads of 64"                                                  },
        {768,    1,
         "head size is 768 (768 channels / 1 heads), expected a multiple of 8 up to 256; nearest: 3 heads of "
         "256"                                                                                    },
        {64,     16,
         "head size is 4 (64 channels / 16 heads), expected a multiple of 8 up to 256; nearest: 8 heads of "
         "8"                                                                                      },
        {264,    1,    "nearest: 3 heads of 88"                                                   },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        GPT2Config c = small;
        c.n_embd = rows[i].n_embd;
        c.n_head = rows[i].n_head;
        if (rows[i].says)
            refuses(c, rows[i].says);
        else
            accepts(c, "heads");
    }
}

/* ---- the memory plan ---- */

/* Activations by what they hold for one token; `shared_from`: the level of --recompute from which all layers share one. */
typedef struct PlanRow {
    const char *name;
    int per_token, layers, shared_from;
} PlanRow;

enum { NEVER = 9, L = 12, C = 768, NH = 12, B = 3, T = 100, N = B * T };

static size_t plan_bytes(const MemoryPlan *plan, const char *name, const char *category) {
    for (int i = 0; i < plan->n_rows; i++)
        if (strcmp(plan->rows[i].name, name) == 0 && strcmp(plan->rows[i].category, category) == 0)
            return plan->rows[i].bytes;
    return 0;
}

static void check_row(const MemoryPlan *plan, const char *name, const char *category, int64_t elems,
                      int level) {
    const size_t got = plan_bytes(plan, name, category), want = (size_t)elems * 4;
    CHECK(got == want, "level %d: %s (%s) takes %zu bytes, expected %zu", level, name, category, got, want);
}

static int64_t round_up(int64_t elems) {
    return (elems + 127) / 128 * 128;
}

static void check_activations(const MemoryPlan *plan, int level, bool training) {
    static const PlanRow rows[] = {
        {"encoded",    C,     1, NEVER           },
        {"ln_1",       C,     L, RECOMPUTE_LINEAR},
        {"ln_1.mean",  1,     L, RECOMPUTE_LINEAR},
        {"ln_1.rstd",  1,     L, RECOMPUTE_LINEAR},
        {"qkv",        3 * C, L, RECOMPUTE_LINEAR},
        {"attn",       C,     L, RECOMPUTE_BLOCK },
        {"lse",        NH,    L, RECOMPUTE_BLOCK },
        {"residual_2", C,     L, RECOMPUTE_LINEAR},
        {"ln_2",       C,     L, RECOMPUTE_LINEAR},
        {"ln_2.mean",  1,     L, RECOMPUTE_LINEAR},
        {"ln_2.rstd",  1,     L, RECOMPUTE_LINEAR},
        {"fch",        4 * C, L, RECOMPUTE_LINEAR},
        {"fch_gelu",   4 * C, L, RECOMPUTE_GELU  },
        {"residual_3", C,     L, NEVER           },
        {"ln_f",       C,     1, NEVER           },
        {"ln_f.mean",  1,     1, NEVER           },
        {"ln_f.rstd",  1,     1, NEVER           },
        {"losses",     1,     1, NEVER           },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const PlanRow *r = &rows[i];
        const int64_t one = (int64_t)r->per_token * N;
        const bool shared = !training || level >= r->shared_from;
        check_row(plan, r->name, shared && r->layers > 1 ? "recomputed" : "activations",
                  shared ? one : round_up(one) * (r->layers - 1) + one, level);
    }
    check_row(plan, "branch", "scratch", (int64_t)N * C, level);
    check_row(plan, "logits", "scratch", (int64_t)N * 50304, level);
    check_row(plan, "dresidual", "scratch", training ? (int64_t)N * C : 0, level);
}

static void test_plan(void) {
    const GPT2Config c = gpt2_size("d12");
    /* padded to tiles: of a block four norm vectors, two biases of C and one of 3C; the final norm's two */
    const int64_t n = 124439808 + 47 * C + (6 * 12 + 2) * (1024 - C) + 12 * (3072 - 3 * C);
    MemoryPlan plan;
    for (int level = RECOMPUTE_NONE; level <= RECOMPUTE_BLOCK + 1; level++) {
        const bool training = level <= RECOMPUTE_BLOCK;
        const GPT2Options o = {.B = B, .T = T, .recompute = training ? level : 0, .training = training};
        size_t sum = 0;
        gpt2_memory_plan(&plan, &ops_cpu, &c, &o);
        check_activations(&plan, level, training);
        check_row(&plan, "master weights (fp32)", "weights", n, level);
        check_row(&plan, "gradients (fp32)", "gradients", training ? n : 0, level);
        check_row(&plan, "AdamW m", "optimizer", training ? n : 0, level);
        check_row(&plan, "AdamW v", "optimizer", training ? n : 0, level);
        check_row(&plan, "parameter groups", "optimizer", training ? n / PARAMETER_TILE : 0, level);
        check_row(&plan, "tokens", "scratch", N, level);
        check_row(&plan, "targets", "scratch", N, level);
        for (int i = 0; i < plan.n_rows; i++) sum += plan.rows[i].bytes;
        CHECK(plan.total_bytes == sum, "level %d: the total is %zu, the rows' sum %zu", level,
              plan.total_bytes, sum);
    }
    const GPT2Options standard = {.B = B, .T = T, .attention = ATTENTION_STANDARD, .training = true};
    const int64_t probs = (int64_t)B * NH * T * T;
    gpt2_memory_plan(&plan, &ops_cpu, &c, &standard);
    check_row(&plan, "probs", "activations", round_up(probs) * (L - 1) + probs, 0);
    check_row(&plan, "dprobs", "scratch", probs, 0);
    CHECK(plan_bytes(&plan, "lse", "activations") == 0, "standard attention keeps no logsumexp");
}

static size_t own_bytes(void) {
    return 12345;
}

/* What the backend holds for itself is a part of the plan. */
static void test_backend_bytes(void) {
    const GPT2Config c = gpt2_size("nano");
    const GPT2Options o = {.B = 1, .T = 16, .training = true};
    MemoryPlan plan, larger;
    Device device = device_cpu;
    Ops ops = ops_cpu;
    gpt2_memory_plan(&plan, &ops, &c, &o);
    const size_t others = plan.total_bytes - ops_cpu.device->fixed_bytes();
    device.fixed_bytes = own_bytes;
    ops.device = &device;
    gpt2_memory_plan(&larger, &ops, &c, &o);
    CHECK(larger.total_bytes == others + 12345, "the plan has %zu bytes, of which %zu are not the backend's",
          larger.total_bytes, others);
    CHECK(plan_bytes(&larger, "library workspace", "scratch") == 12345, "no row of the backend's bytes");
}

/* Sizes that no device has are still larger than any, and do not wrap around. */
static void test_huge(void) {
    for (int heads = 1; heads <= 4096; heads *= 2)
        for (int layers = 1; layers <= 4096; layers *= 8) {
            const GPT2Config c = {.max_seq_len = 1 << 26,
                                  .vocab_size = 256,
                                  .padded_vocab_size = 256,
                                  .n_layer = layers,
                                  .n_head = heads,
                                  .n_embd = 8 * heads};
            const GPT2Options o = {.B = 31, .T = 1 << 26, .attention = ATTENTION_STANDARD, .training = true};
            const double least = 4.0 * heads * o.B * (double)o.T * o.T;
            MemoryPlan plan;
            gpt2_memory_plan(&plan, &ops_cpu, &c, &o);
            CHECK((double)plan.total_bytes >= fmin(least, 0x1p57) && plan.total_bytes < (size_t)1 << 62,
                  "%d heads, %d layers: %zu bytes, expected %g or more", heads, layers, plan.total_bytes,
                  least);
        }
}

/* The visits of a table are counted in 32 bits: a pattern with more is refused before anything is allocated. */
static void test_visits(void) {
    GPT2Config c = {.max_seq_len = 1 << 24, .vocab_size = 256, .n_layer = 1, .n_head = 1, .n_embd = 8};
    const GPT2Options o = {.B = 1, .T = c.max_seq_len};
    GPT2 model;
    Error err = {0};
    c.padded_vocab_size = gpt2_pad_vocab(c.vocab_size);
    c.sparse = (SparsePattern){.window = 1 << 14};
    CHECK(!gpt2_open(&model, &ops_cpu, &c, &o, &err) && err.exit_code == EXIT_INPUT &&
              strstr(err.text, "--sparse in --seq 16777216: ") && strstr(err.text, " 2147745792 times"),
          "%s", err.text);
}

/* The logits of at most 1.65 GB: 8192 rows of GPT-2's vocabulary in fp32, and never less than 128. */
static void test_chunks(void) {
    static const struct {
        int batch, seq, vocab;
        int64_t rows;
    } cases[] = {
        {64, 1024, 50304,   8192 },
        {8,  1024, 50304,   8192 },
        {8,  1023, 50304,   8184 },
        {64, 1024, 256,     65536},
        {1,  1024, 1 << 24, 128  },
        {1,  100,  1 << 24, 100  },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        GPT2Config c = gpt2_size("nano");
        MemoryPlan plan;
        c.vocab_size = c.padded_vocab_size = cases[i].vocab;
        const GPT2Options o = {.B = cases[i].batch, .T = cases[i].seq, .training = true};
        gpt2_memory_plan(&plan, &ops_cpu, &c, &o);
        const int64_t rows = (int64_t)(plan_bytes(&plan, "logits", "scratch") / 4) / cases[i].vocab;
        CHECK(rows == cases[i].rows, "%d x %d, vocabulary %d: logits of %lld tokens, expected %lld",
              cases[i].batch, cases[i].seq, cases[i].vocab, (long long)rows, (long long)cases[i].rows);
    }
}

static void test_largest_batch(void) {
    const GPT2Config c = gpt2_size("d12");
    GPT2Options o = {.T = 1024, .training = true};
    for (size_t gib = 1; gib <= 1024; gib *= 8) {
        MemoryPlan fits, larger;
        const size_t budget = gib << 30;
        const int batch = gpt2_largest_batch(&ops_cpu, &c, &o, budget);
        o.B = batch + 1;
        gpt2_memory_plan(&larger, &ops_cpu, &c, &o);
        o.B = batch;
        gpt2_memory_plan(&fits, &ops_cpu, &c, &o);
        CHECK(larger.total_bytes > budget && (batch == 0 || fits.total_bytes <= budget), "%zu GiB: batch %d",
              gib, batch);
        CHECK((batch == 0) == (gib == 1), "%zu GiB: batch %d", gib, batch);
    }
    o.T = 1 << 20; /* a micro-batch has at most 2^31 - 1 tokens, however large the device */
    CHECK(gpt2_largest_batch(&ops_cpu, &c, &o, (size_t)1 << 60) == 2047, "batch %d of 2^20 tokens",
          gpt2_largest_batch(&ops_cpu, &c, &o, (size_t)1 << 60));
    o.T = 1;
    CHECK(gpt2_largest_batch(&ops_cpu, &small, &o, (size_t)1 << 62) == (1 << 20) - 1,
          "the largest --batch there is");
}

/* ---- FLOPs of a token ---- */

/* Two for each weight of a matrix product, and as many again for either gradient; attention's two products over the keys that a
 * query sees in the mean. Embeddings, biases and norms are no products. */
static void test_flops(void) {
    static const struct {
        int seq, window;
        double keys;
    } rows[] = {
        {1024, 0,    512                         },
        {8192, 0,    4096                        },
        {8192, 8192, 4096                        },
        {8192, 9000, 4096                        },
        {8192, 4096, 4096 - 1024                 },
        {8192, 100,  100 - 100.0 * 100 / 2 / 8192},
    };
    const double products = L * 12.0 * C * C + 50257.0 * C;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        GPT2Config c = gpt2_size("d12");
        c.window = rows[i].window;
        const double got = gpt2_flops_per_token(&c, rows[i].seq),
                     want = 6 * products + 12.0 * L * C * rows[i].keys;
        CHECK(fabs(got / want - 1) <= 1e-12, "%d tokens, window %d: %g FLOPs a token, expected %g",
              rows[i].seq, rows[i].window, got, want);
    }
}

/* Attention's products over the keys that each query sees, counted one by one: two in forward; five in backward, the
 * scores again, dP, dV, dQ and dK. */
static void test_attention_flops(void) {
    enum { KEYS = 4096, HEADS = 3, HD = 64 };
    for (int window = 0; window <= KEYS / 2; window += KEYS / 4) {
        const OpSizes s = {.B = 2, .T = KEYS, .NH = HEADS, .HD = HD, .window = window};
        int64_t pairs = 0;
        for (int t = 0; t < KEYS; t++) pairs += window && t + 1 > window ? window : t + 1;
        const double product = 2.0 * s.B * HEADS * HD * (double)pairs;
        const double forward = op_cost(OP_attention_forward, &s, DTYPE_BF16).flops,
                     backward = op_cost(OP_attention_backward, &s, DTYPE_BF16).flops;
        CHECK(fabs(forward / product - 2) < 1e-3, "window %d: %g products forward", window,
              forward / product);
        CHECK(fabs(backward / product - 5) < 3e-3, "window %d: %g products backward", window,
              backward / product);
    }
}

int main(void) {
    test_attention_flops();
    test_descriptors();
    test_other_names();
    test_tensors();
    test_ranges();
    test_heads();
    test_plan();
    test_backend_bytes();
    test_huge();
    test_visits();
    test_chunks();
    test_flops();
    test_largest_batch();
    return check_finish("sizes");
}
