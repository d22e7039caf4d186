/* Back through attention's projection and attention, as a training step goes: D = rowsum(dO * O) from the product that
 * makes dO, where the backend has it so, then attention's gradients with it. Every CUDA backend against the CPU oracle,
 * which computes D by itself. -v prints every error and limit. */
#include "dev/test/plain_attention.h"
#include "llmc/model/ops_testing.h"

enum { DQKV, DATTN, D, DOUT, WEIGHT, ATTN, QKV, LSE, SCRATCH, KEY, OPERANDS };

static int describe(Operand *o, const Sizes *d) {
    const int64_t rows = (int64_t)d->B * d->T, C = (int64_t)d->NH * d->HD, n = rows * C;
    const int64_t part = d->T > 1 ? C : 0; /* of a single key dq and dk are rounding noise */
    const Operand operands[] = {
        {.name = "dqkv",    .role = OUT,                .store = STORE_X, .elems = 3 * n,                                  .part = part},
        {.name = "dattn",                 .role = OUT,                             .store = STORE_X,                  .elems = n                    },
        {.name = "d",                 .role = SPACE,                                 .store = STORE_F32,                    .elems = rows * d->NH},
        {.name = "dout",                 .role = IN,                              .store = STORE_X,                    .elems = n,                          .scale = 1},
        {.name = "weight",       .role = IN,                                 .store = STORE_X,                                  .elems = C * C,                                        .scale = 1 / sqrtf((float)C)},
        {.name = "attn",   .role = IN, .store = STORE_X,.elems = n},
        {.name = "qkv", .role = IN,                 .store = STORE_X,                                                  .elems = 3 * n,                                                                                                           .scale = 1},
        {.name = "lse", .role = IN,.store = STORE_F32,.elems = rows * d->NH},
        {.name = "scratch",       .role = SPACE,                   .store = STORE_F32,                                                             .elems = -1                                                                                                                                                                                                                     },
    };
    memcpy(o, operands, sizeof operands);
    o[KEY] = key_operand(d);
    return OPERANDS;
}

/* On Hopper D comes with a product in bf16 of two tiles of 128 x 128 an SM or more, whose columns are a multiple of 64. */
static bool d_comes(const Ops *ops, const Sizes *d) {
    const int C = d->NH * d->HD;
    const int64_t tiles = ((int64_t)d->B * d->T + 127) / 128 * ((C + 127) / 128);
    const bool head = d->HD == 64 || (d->HD >= 80 && d->HD <= 128 && d->HD % 16 == 0);
    return ops->dtype == DTYPE_BF16 && head && C % 64 == 0 && tiles >= 2 * 132 &&
           strstr(ops->device->name(), "compute capability 9.0");
}

/* (rows, C) of the storage type, or the weight (C, C) */
static Matrix of_rows(const Ops *ops, void *p, const Sizes *d) {
    return matrix(p, ops->dtype, (int64_t)d->B * d->T, d->NH * d->HD);
}
static Matrix of_weight(const Ops *ops, void *p, const Sizes *d) {
    return matrix(p, ops->dtype, d->NH * d->HD, d->NH * d->HD);
}

/* dattn, and whether D came with it; if not, its buffer holds what it held. */
static bool run_projection(const Call *c) {
    void *const *p = c->p;
    const Ops *ops = c->ops;
    const Sizes *d = &c->s;
    const int64_t rows = (int64_t)d->B * d->T;
    const size_t bytes = (size_t)(rows * d->NH) * sizeof(float);
    void *before = op_malloc(bytes), *after = op_malloc(bytes);
    ops->device->download(before, p[D], bytes);
    const bool came = ops->linear_backward_input_row_dots(
        of_rows(ops, p[DATTN], d), p[D], of_rows(ops, p[DOUT], d), of_weight(ops, p[WEIGHT], d),
        of_rows(ops, p[ATTN], d), p[SCRATCH], d->HD);
    ops->device->download(after, p[D], bytes);
    CHECK(came == d_comes(ops, d), "%s, B%d T%d NH%d HD%d: D %s with the product", ops->name, d->B, d->T,
          d->NH, d->HD, came ? "came" : "did not come");
    CHECK(came || memcmp(before, after, bytes) == 0,
          "%s, B%d T%d NH%d HD%d: D did not come with the product, but was written", ops->name, d->B, d->T,
          d->NH, d->HD);
    free(before);
    free(after);
    return came;
}

static void run(const Call *c) {
    void *const *p = c->p;
    const Sizes *d = &c->s;
    const AttentionMask mask = mask_of(d, p[KEY]);
    const bool known = run_projection(c);
    c->ops->attention_backward(p[DQKV], p[DATTN], p[ATTN], p[QKV], p[LSE], known ? p[D] : NULL, &mask,
                               p[SCRATCH], d->B, d->T, d->NH, d->HD);
}

/* out and lse are those of the forward pass on this qkv */
static void prepare(OpCase *c) {
    const Sizes *d = &c->s;
    int32_t *words;
    fill_mask(c);
    const AttentionMask mask = host_mask(c, KEY, &words);
    ops_cpu.attention_forward(c->in[ATTN], c->in[LSE], c->in[QKV], &mask, d->B, d->T, d->NH, d->HD);
    free(words);
}

/* Attention reads dattn as stored, so the oracle gives it a rounded copy. */
static void reference(void **p, const OpCase *c) {
    const Sizes *d = &c->s;
    const int64_t rows = (int64_t)d->B * d->T;
    const int C = d->NH * d->HD;
    const AttentionMask mask = mask_of(d, p[KEY]);
    float *stored = op_malloc((size_t)(rows * C) * sizeof *stored);
    ops_cpu.linear_backward_input(of_rows(&ops_cpu, p[DATTN], d), NULL, no_matrix(),
                                  of_rows(&ops_cpu, p[DOUT], d), of_weight(&ops_cpu, p[WEIGHT], d),
                                  no_matrix(), p[SCRATCH]);
    memcpy(stored, p[DATTN], (size_t)(rows * C) * sizeof *stored);
    op_round(stored, c->dtype, rows * C);
    ops_cpu.attention_backward(p[DQKV], stored, p[ATTN], p[QKV], p[LSE], NULL, &mask, p[SCRATCH], d->B, d->T,
                               d->NH, d->HD);
    free(stored);
}

static void plain(OpCase *c) {
    plain_backward(c, DQKV, c->plain[DATTN], c->in[ATTN], c->in[QKV], KEY);
    /* fp32 noise rounds an element of dattn the other way now and then, by a whole step: 4.1 times was seen, at head size 80 */
    for (int64_t i = 0; i < c->operands[DQKV].elems; i++) c->slack[DQKV][i] *= 6;
}

static const Op op = {.id = N_OPS,
                      .name = "attention_backward behind its projection",
                      .describe = describe,
                      .run = run,
                      .prepare = prepare,
                      .reference = reference,
                      .plain = plain};

/* To add a size: a row. On Hopper D comes with those of many rows, of 273 to 288 tiles (d_comes), but for the last. Their
 * rows end inside a tile, at 25 heads of 64 and 14 of 96 their columns as well; a tile is two heads wide, or one, or heads of
 * 80, 96 and 112 lie across tiles. */
/* clang-format off */
static const Sizes sizes[] = {
    {.B = 1,  .T = 1,   .NH = 2,  .HD = 64},
    {.B = 3,  .T = 100, .NH = 2,  .HD = 64},
    {.B = 2,  .T = 65,  .NH = 1,  .HD = 128},
    {.B = 2,  .T = 65,  .NH = 2,  .HD = 24},
    {.B = 40, .T = 65,  .NH = 25, .HD = 64},
    {.B = 23, .T = 130, .NH = 12, .HD = 128},
    {.B = 27, .T = 130, .NH = 16, .HD = 80},
    {.B = 25, .T = 130, .NH = 14, .HD = 96},
    {.B = 40, .T = 130, .NH = 8,  .HD = 112},
    {.B = 40, .T = 65,  .NH = 25, .HD = 64,  .window = 30},
    {.B = 23, .T = 130, .NH = 12, .HD = 128, .documents = 40},
    {.B = 25, .T = 130, .NH = 14, .HD = 96,  .window = 70},
    {.B = 23, .T = 130, .NH = 12, .HD = 128, .blocks = {1, 0, 0}},
    {.B = 40, .T = 65,  .NH = 25, .HD = 64,  .blocks = {1, 0, 0}},
    {.B = 40, .T = 65,  .NH = 25, .HD = 64,  .p = 0.1f},
    {.B = 23, .T = 129, .NH = 12, .HD = 128, .p = 0.3f},
    {.B = 27, .T = 129, .NH = 16, .HD = 80,  .p = 0.1f},
    {.B = 25, .T = 130, .NH = 17, .HD = 80},
};
/* clang-format on */

static void test_sizes(const Ops *ops) {
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        if (!op_small || sizes[s].B * sizes[s].T <= 300) op_case(ops, &op, sizes[s]);
}

/* The kernels of this card, and those of older cards, which it runs as well. */
static void test_backend(const Ops *ops) {
    test_sizes(ops);
    if (ops->dtype == DTYPE_F32) return;
    cuda_limit_capability(80);
    op_path = " sm80";
    test_sizes(ops);
    op_path = "";
    cuda_limit_capability(0);
}

int main(int argc, char **argv) {
    return op_main("ops_attention_projection", argc, argv, test_backend);
}
