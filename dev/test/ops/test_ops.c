/* Embedding, layernorm, linear and GELU of every CUDA backend against the CPU oracle, case by case. Attention:
 * test_ops_attention.c, with the product before its backward: test_ops_attention_projection.c. Loss: test_ops_loss.c.
 * Update and statistics: test_ops_update.c. Past 2^31 elements: test_ops_large.c. -v prints every error and
 * limit. Without a card, the CPU runs the cases for the descriptions' sake. */
#include "dev/test/op_case.h"

/* To add a case: a row. */
static const struct {
    const Op *op;
    Sizes s;
} cases[] = {
    {&op_embedding_forward,          {.B = 1, .T = 1, .C = 8, .V = 211}                                       },
    {&op_embedding_forward,          {.B = 3, .T = 127, .C = 768, .V = 50257}                                 },
    {&op_embedding_forward,          {.B = 2, .T = 1023, .C = 40, .V = 1}                                     },
    {&op_embedding_forward,          {.B = 9, .T = 1, .C = 768, .V = 50257, .flags = BEGINS}                  },
    {&op_embedding_forward,          {.B = 3, .T = 7, .C = 24, .V = 11, .flags = BEGINS}                      },
    {&op_embedding_backward,         {.B = 1, .T = 1, .C = 8, .V = 211}                                       },
    {&op_embedding_backward,         {.B = 2, .T = 65, .C = 24, .V = 7}                                       },
    {&op_embedding_backward,         {.B = 3, .T = 127, .C = 768, .V = 50257}                                 },
    {&op_embedding_backward,         {.B = 5, .T = 1000, .C = 96, .V = 50257, .fill = FILL_EQUAL}             },
    {&op_embedding_backward,         {.B = 2, .T = 1023, .C = 128, .V = 50257, .fill = FILL_DISTINCT}         },
    {&op_embedding_backward,         {.B = 300, .T = 1000, .C = 8, .V = 50257}                                }, /* more tiles than one scan takes */
    {&op_layernorm_forward,          {.N = 1, .C = 8}                                                         },
    {&op_layernorm_forward,          {.N = 65, .C = 24}                                                       },
    {&op_layernorm_forward,          {.N = 381, .C = 768}                                                     },
    {&op_layernorm_forward,          {.N = 7, .C = 1600}                                                      },
    {&op_layernorm_forward,          {.N = 14, .C = 12288}                                                    },
    {&op_layernorm_forward,          {.N = 130, .C = 256, .scale = 0.01f}                                     },
    {&op_layernorm_forward,          {.N = 1023, .C = 80, .scale = 100}                                       },
    {&op_layernorm_forward,          {.N = 33, .C = 1024}                                                     },
    {&op_layernorm_forward,          {.N = 33, .C = 2048}                                                     },
    {&op_layernorm_forward,          {.N = 33, .C = 2056}                                                     },
    {&op_residual_layernorm_forward, {.N = 1, .C = 8}                                                         },
    {&op_residual_layernorm_forward, {.N = 65, .C = 40, .flags = ALIAS_A}                                     },
    {&op_residual_layernorm_forward, {.N = 1023, .C = 768}                                                    },
    {&op_residual_layernorm_forward, {.N = 381, .C = 768, .flags = ALIAS_B}                                   },
    {&op_residual_layernorm_forward, {.N = 14, .C = 5120}                                                     },
    {&op_residual_layernorm_forward, {.N = 33, .C = 1600, .flags = ALIAS_A}                                   },
    {&op_residual_layernorm_forward, {.N = 33, .C = 2056, .flags = ALIAS_B}                                   },
    {&op_layernorm_backward,         {.N = 1, .C = 8}                                                         },
    {&op_layernorm_backward,         {.N = 65, .C = 24, .flags = ALIAS_A}                                     },
    {&op_layernorm_backward,         {.N = 381, .C = 768}                                                     },
    {&op_layernorm_backward,         {.N = 2046, .C = 768, .flags = ALIAS_A}                                  },
    {&op_layernorm_backward,         {.N = 127, .C = 1600, .flags = NO_RESIDUAL}                              },
    {&op_layernorm_backward,         {.N = 381, .C = 1024, .flags = ALIAS_A | NO_SUMS}                        },
    {&op_layernorm_backward,         {.N = 65, .C = 3072}                                                     },
    {&op_layernorm_backward,         {.N = 14, .C = 12288, .flags = ALIAS_A}                                  },
    {&op_layernorm_backward,         {.N = 5000, .C = 768, .flags = ALIAS_A}                                  },
    {&op_linear_forward,             {.N = 1, .OC = 8, .IC = 8}                                               },
    {&op_linear_forward,             {.N = 1003, .OC = 8, .IC = 8, .scale = 4, .flags = GELU}                 },
    {&op_linear_forward,             {.N = 512, .OC = 8, .IC = 16, .scale = 100, .flags = GELU | NO_BIAS}     },
    {&op_linear_forward,             {.N = 7, .OC = 16, .IC = 24, .flags = NO_BIAS}                           },
    {&op_linear_forward,             {.N = 65, .OC = 24, .IC = 16, .flags = GELU}                             },
    {&op_linear_forward,             {.N = 1, .OC = 3072, .IC = 768, .flags = GELU}                           },
    {&op_linear_forward,             {.N = 127, .OC = 3072, .IC = 768, .flags = GELU}                         },
    {&op_linear_forward,             {.N = 1023, .OC = 2304, .IC = 768}                                       },
    {&op_linear_forward,             {.N = 130, .OC = 768, .IC = 3072}                                        },
    {&op_linear_forward,             {.N = 33, .OC = 50304, .IC = 768, .flags = NO_BIAS}                      },
    {&op_linear_forward,             {.N = 2101, .OC = 2304, .IC = 768}                                       },
    {&op_linear_forward,             {.N = 1025, .OC = 3072, .IC = 768, .flags = GELU}                        },
    {&op_linear_forward,             {.N = 2113, .OC = 2048, .IC = 192, .flags = GELU}                        },
    {&op_linear_forward,             {.N = 4481, .OC = 1984, .IC = 64, .flags = GELU | NO_BIAS}               },
    {&op_linear_forward,             {.N = 16, .OC = 2304, .IC = 768}                                         },
    {&op_linear_forward,             {.N = 17, .OC = 2304, .IC = 768}                                         },
    {&op_linear_forward,             {.N = 5, .OC = 40, .IC = 264, .flags = NO_BIAS}                          },
    {&op_linear_forward,             {.N = 1, .OC = 8, .IC = 8, .flags = GELU}                                },
    {&op_linear_forward,             {.N = 1, .OC = 768, .IC = 3072}                                          },
    {&op_linear_forward,             {.N = 1, .OC = 50304, .IC = 768, .flags = NO_BIAS}                       },
    {&op_linear_forward,             {.N = 32, .OC = 1000, .IC = 1000}                                        },
    {&op_linear_forward,             {.N = 64, .OC = 768, .IC = 3072}                                         },
    {&op_linear_forward,             {.N = 40, .OC = 2304, .IC = 768, .flags = GELU}                          },
    {&op_linear_forward,             {.N = 64, .OC = 50304, .IC = 768, .flags = NO_BIAS}                      },
    {&op_linear_forward,             {.N = 61, .OC = 3072, .IC = 768, .flags = GELU}                          },
    {&op_linear_backward_input,      {.N = 1, .OC = 8, .IC = 8}                                               },
    {&op_linear_backward_input,      {.N = 7, .OC = 16, .IC = 24, .flags = GELU}                              },
    {&op_linear_backward_input,      {.N = 65, .OC = 24, .IC = 16, .flags = NO_SUMS}                          },
    {&op_linear_backward_input,      {.N = 65, .OC = 64, .IC = 128, .flags = GELU | NO_SUMS}                  },
    {&op_linear_backward_input,      {.N = 1, .OC = 768, .IC = 3072, .flags = GELU}                           },
    {&op_linear_backward_input,      {.N = 4101, .OC = 16, .IC = 4096, .flags = GELU}                         },
    {&op_linear_backward_input,      {.N = 4101, .OC = 192, .IC = 4096, .flags = GELU | NO_SUMS}              },
    {&op_linear_backward_input,      {.N = 127, .OC = 768, .IC = 3072, .flags = GELU}                         },
    {&op_linear_backward_input,      {.N = 1023, .OC = 2304, .IC = 768}                                       },
    {&op_linear_backward_input,      {.N = 33, .OC = 50304, .IC = 768}                                        },
    {&op_linear_backward_input,      {.N = 2101, .OC = 2304, .IC = 768}                                       },
    {&op_linear_backward_input,      {.N = 2113, .OC = 192, .IC = 2048, .flags = GELU}                        },
    {&op_linear_backward_input,      {.N = 4481, .OC = 64, .IC = 1984, .flags = GELU | NO_SUMS}               },
    {&op_linear_backward_input,      {.N = 4481, .OC = 128, .IC = 1984, .flags = GELU}                        },
    {&op_linear_backward_input,      {.N = 1025, .OC = 768, .IC = 3072, .flags = GELU}                        },
    {&op_linear_backward_input,      {.N = 1, .OC = 8, .IC = 8, .flags = GELU | GELU_TOO}                     },
    {&op_linear_backward_input,      {.N = 65, .OC = 64, .IC = 128, .flags = GELU | GELU_TOO | NO_SUMS}       },
    {&op_linear_backward_input,      {.N = 4101, .OC = 16, .IC = 4160, .flags = GELU | GELU_TOO}              },
    {&op_linear_backward_input,      {.N = 4101, .OC = 320, .IC = 4160, .flags = GELU | GELU_TOO}             },
    {&op_linear_backward_input,      {.N = 7, .OC = 16, .IC = 24, .flags = GELU | GELU_IN_PLACE}              },
    {&op_linear_backward_input,      {.N = 1023, .OC = 24, .IC = 264, .flags = GELU | GELU_IN_PLACE | NO_SUMS}},
    {&op_linear_backward_input,
     {.N = 127, .OC = 768, .IC = 3072, .scale = 30, .flags = GELU | GELU_IN_PLACE}                            },
    {&op_linear_backward_input,      {.N = 8501, .OC = 64, .IC = 1984, .flags = GELU | GELU_IN_PLACE}         },
    {&op_linear_backward_input,
     {.N = 2177, .OC = 128, .IC = 2112, .scale = 30, .flags = GELU | GELU_IN_PLACE}                           },
    {&op_linear_backward_weight,     {.N = 1, .OC = 8, .IC = 8}                                               },
    {&op_linear_backward_weight,     {.N = 7, .OC = 16, .IC = 24, .flags = NO_BIAS}                           },
    {&op_linear_backward_weight,     {.N = 65, .OC = 24, .IC = 16}                                            },
    {&op_linear_backward_weight,     {.N = 127, .OC = 3072, .IC = 768}                                        },
    {&op_linear_backward_weight,     {.N = 2046, .OC = 768, .IC = 768}                                        },
    {&op_linear_backward_weight,     {.N = 2101, .OC = 2304, .IC = 768}                                       },
    {&op_linear_backward_weight,     {.N = 33, .OC = 50304, .IC = 768, .flags = NO_BIAS}                      },
    {&op_linear_backward_weight,     {.N = 65, .OC = 24, .IC = 16, .flags = FIRST}                            },
    {&op_linear_backward_weight,     {.N = 2101, .OC = 2304, .IC = 768, .flags = FIRST}                       },
    {&op_linear_backward_weight,     {.N = 33, .OC = 50304, .IC = 768, .flags = FIRST | NO_BIAS}              },
    {&op_qkv_bias_backward,          {.N = 1, .C = 8}                                                         },
    {&op_qkv_bias_backward,          {.N = 65, .C = 40}                                                       },
    {&op_qkv_bias_backward,          {.N = 2101, .C = 768}                                                    },
    {&op_qkv_bias_backward,          {.N = 127, .C = 1600}                                                    },
    {&op_transpose_rows,             {.B = 1, .T = 1, .C = 8}                                                 },
    {&op_transpose_rows,             {.B = 7, .T = 3, .C = 384}                                               },
    {&op_transpose_rows,             {.B = 2, .T = 1025, .C = 136}                                            },
    {&op_transpose_rows,             {.B = 3, .T = 5, .C = 100008}                                            },
    {&op_muon_momentum,              {.N = 1024}                                                              },
    {&op_muon_momentum,              {.N = 1024 * 1001}                                                       },
    {&op_muon_update,                {.N = 1024}                                                              },
    {&op_muon_update,                {.N = 1024 * 1001}                                                       },
    {&op_orthogonalise,              {.N = 1, .OC = 8, .IC = 8}                                               },
    {&op_orthogonalise,              {.N = 2, .OC = 24, .IC = 72}                                             },
    {&op_orthogonalise,              {.N = 3, .OC = 32, .IC = 128, .flags = FIRST}                            },
    {&op_orthogonalise,              {.N = 2, .OC = 136, .IC = 136}                                           },
    {&op_orthogonalise,              {.N = 3, .OC = 64, .IC = 256}                                            },
    {&op_orthogonalise,              {.N = 1, .OC = 192, .IC = 192, .flags = FIRST}                           },
    {&op_orthogonalise,              {.N = 2, .OC = 320, .IC = 640}                                           },
    {&op_orthogonalise,              {.N = 1, .OC = 264, .IC = 520}                                           },
    {&op_sum_gradients,              {.N = 1}                                                                 },
    {&op_sum_gradients,              {.N = 1003, .flags = ALIAS_A}                                            },
    {&op_sum_gradients,              {.N = 65536 + 3, .flags = ALIAS_B}                                       },
    {&op_sum_gradients,              {.N = 3000005}                                                           }, /* more than all blocks at once */
};

/* More than racecheck gets through in some seconds; but the kernels that take GELU along with a product serve no
 * less than a tile an SM. */
static bool too_large(const Sizes *d) {
    const int64_t elems = d->N * (d->C + d->OC + d->IC);
    return elems > (d->flags & GELU ? 5 << 20 : 1 << 19);
}

/* Which kernel a card of capability 9.0 takes; in fp32 all are the library's, with a pass of ours for GELU. The rows of
 * one op differ only in shape or wants, so that a kernel that no longer serves is seen though the library's results are
 * right, too. */
static const struct {
    const Op *op;
    Sizes s;
    const char *bf16, *fp32; /* how its name begins; NULL: "cublaslt_" */
} chosen[] = {
    {&op_linear_forward,
     {.N = 2177, .OC = 2048, .IC = 128, .flags = GELU},
     "linear_gelu_sm90",                                                                                            "cublaslt_forward_pass"},
    {&op_linear_forward,                 {.N = 2177, .OC = 2048, .IC = 128},                NULL,                   NULL                   },
    {&op_linear_forward,
     {.N = 64, .OC = 2048, .IC = 128, .flags = GELU},
     "linear_few_rows",                                                                                             "linear_few_rows"      },
    {&op_linear_forward,                 {.N = 2177, .OC = 2048, .IC = 136, .flags = GELU}, NULL,                   NULL                   },
    {&op_linear_forward,                 {.N = 65, .OC = 2048, .IC = 128, .flags = GELU},   NULL,                   NULL                   },
    {&op_linear_backward_input,
     {.N = 2177, .OC = 128, .IC = 2048, .flags = GELU},
     "linear_gelu_backward_sm90",                                                                                   NULL                   },
    {&op_linear_backward_input,
     {.N = 2177, .OC = 128, .IC = 2048, .flags = GELU | GELU_TOO},
     "linear_gelu_backward_sm90",                                                                                   NULL                   },
    {&op_linear_backward_input,          {.N = 2177, .OC = 128, .IC = 2048},                NULL,                   NULL                   },
    {&op_linear_backward_input,          {.N = 65, .OC = 128, .IC = 2048, .flags = GELU},   NULL,                   NULL                   },
    {&op_linear_backward_input_row_dots, {.N = 4481, .OC = 128, .IC = 1984},                "linear_row_dots_sm90", NULL                   },
    {&op_linear_backward_input_row_dots, {.N = 65, .OC = 128, .IC = 1984},                  NULL,                   NULL                   },
    {&op_linear_backward_weight,         {.N = 65, .OC = 128, .IC = 64},                    NULL,                   NULL                   },
};

/* Kernels with TMA do not run in sanitizer runs. */
static void test_chosen(const Ops *ops) {
    if (op_small || !strstr(ops->device->name(), "compute capability 9.0")) {
        SKIP("%s: the kernels that Hopper takes: %s", ops->name,
             op_small ? "a sanitizer run" : ops->device->name());
        return;
    }
    for (size_t i = 0; i < sizeof chosen / sizeof *chosen; i++) {
        const char *kernel = ops->dtype == DTYPE_BF16 ? chosen[i].bf16 : chosen[i].fp32;
        op_case_by(ops, chosen[i].op, chosen[i].s, kernel ? kernel : "cublaslt_");
    }
}

/* A row's result has the same bits whatever rows are beside it, up to 64 of them: samples do not depend on their number. */
static void test_rows_alone_of(const Ops *ops, int OC, int IC) {
    enum { N = 64, NUMBERS = 5 };
    static const int numbers[NUMBERS] = {1, 2, 17, 33, 64};
    const size_t width = dtype_bytes(ops->dtype), row = OC * width;
    float *values = op_normal_bf16(OC * IC, 1);
    char *x = ops->device->alloc(N * IC * width), *w = ops->device->alloc((size_t)OC * IC * width);
    char *y = ops->device->alloc(N * row), *got = op_malloc(N * row), *all = op_malloc(N * row);
    if (!CHECK(x && w && y, "%s: device memory", ops->name)) return;
    upload_floats(ops, w, ops->dtype, values, OC * IC);
    upload_floats(ops, x, ops->dtype, values + 1000, N * IC);
    for (int i = NUMBERS - 1; i >= 0; i--) {
        const int n = numbers[i], first = N - n; /* the last n rows */
        ops->linear_forward(matrix(y, ops->dtype, n, OC), no_matrix(),
                            matrix(x + (size_t)first * IC * width, ops->dtype, n, IC),
                            matrix(w, ops->dtype, OC, IC), NULL);
        ops->device->download(got, y, (size_t)n * row);
        if (n == N) memcpy(all, got, N * row);
        CHECK(memcmp(got, all + (size_t)first * row, (size_t)n * row) == 0,
              "%s: %d rows of %d channels, %d outputs, have other bits than among %d", ops->name, n, IC, OC,
              N);
    }
    ops->device->free(x);
    ops->device->free(w);
    ops->device->free(y);
    free(values);
    free(got);
    free(all);
}

/* Shapes of d12; channels or outputs that fill no round or tile; a layer with more channels than are loaded at once; as many
 * outputs as a head has, of which a block of a card with 132 SMs has four tiles, and more than are loaded at once. */
static void test_rows_alone(const Ops *ops) {
    if (!op_wanted("linear_forward_rows", ops->name)) return;
    test_rows_alone_of(ops, 2304, 768);
    test_rows_alone_of(ops, 3072, 768);
    test_rows_alone_of(ops, 3072, 776);
    test_rows_alone_of(ops, 768, 768);
    test_rows_alone_of(ops, 808, 264);
    test_rows_alone_of(ops, 768, 3072);
    test_rows_alone_of(ops, 1000, 3592);
    test_rows_alone_of(ops, 8456, 712);
    test_rows_alone_of(ops, 17004, 264);
}

static void test_backend(const Ops *ops) {
    test_chosen(ops);
    test_rows_alone(ops);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (!op_small || !too_large(&cases[i].s)) op_case(ops, cases[i].op, cases[i].s);
}

/* The CPU beside itself says nothing of its results; but a description must fit its op: what is written, what is only
 * read, where operands end. Cases of about a tenth of a second at most. */
static void test_descriptions(const Ops *cpu) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const Sizes *s = &cases[i].s;
        if (!too_large(s) && s->N * s->OC * s->IC <= 1 << 27 && (int64_t)s->V * s->C <= 1 << 22)
            op_case(cpu, cases[i].op, *s);
    }
}

int main(int argc, char **argv) {
    op_without_card = test_descriptions;
    return op_main("ops", argc, argv, test_backend);
}
