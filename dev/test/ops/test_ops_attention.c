/* Attention of every CUDA backend against the CPU oracle: flash and standard, forward and backward, with and without
 * a window, documents and dropout, and decoding. -v prints every error and limit. */
#include "dev/test/long_attention.h"

/* ---- standard ---- */

static int describe_standard_forward(Operand *o, const Sizes *d) {
    const int64_t n = (int64_t)d->B * d->T * d->NH;
    const Operand rows[] = {
        {.name = "out",   .role = OUT, .store = STORE_X,   .elems = n * d->HD       },
        {.name = "probs", .role = OUT, .store = STORE_X,   .elems = n * d->T        },
        {.name = "qkv",   .role = IN,  .store = STORE_X,   .elems = 3 * n * d->HD,    .scale = scale_of(d)},
        {.name = "dropped",               .role = SPACE,          .store = STORE_X, .elems = d->p > 0 ? n * d->T : 0},
    };
    memcpy(o, rows, sizeof rows);
    o[4] = key_operand(d);
    return 5;
}

static void run_standard_forward(const Call *c) {
    void *const *p = c->p;
    const Sizes *d = &c->s;
    const AttentionMask mask = mask_of(d, p[4]);
    c->ops->attention_standard_forward(p[0], p[1], p[3], p[2], &mask, d->B, d->T, d->NH, d->HD);
}

/* A materialised score s is rounded before the softmax, so P = exp(s - lse) is off by |s| half steps, and by what lse is off:
 * their mean over the row. probs: a row of P; s: its scores. */
static void slack_of_probs(float *slack, const float *probs, const float *s, int T) {
    float mean = 0;
    for (int j = 0; j < T; j++) mean += probs[j] * fabsf(s[j]);
    for (int j = 0; j < T; j++)
        slack[j] = fmaxf(slack[j], probs[j] * (fabsf(s[j]) + mean) * (float)BF16_HALF_STEP);
}

/* out (HD) of a row: what P may be off by is each element's own, so three times the root of the squares' sum. scale: what
 * dropout multiplies P with. */
static void slack_of_weighted_sum(float *slack, const float *of_probs, const float *v, int64_t stride, int T,
                                  int HD, float scale) {
    for (int e = 0; e < HD; e++) {
        double square = 0;
        for (int j = 0; j < T; j++) square += pow((double)of_probs[j] * v[j * stride + e], 2);
        slack[e] = fmaxf(slack[e], 3 * scale * (float)sqrt(square));
    }
}

static void plain_of_standard_forward(OpCase *c) {
    const Sizes *d = &c->s;
    const int C = d->NH * d->HD;
    plain_forward(c, 0, 1, c->in[2], 4);
    for (int k = 0; k < 2; k++) slack_of_plain(c->slack[k], c->plain[k], c->want[k], c->operands[k].elems);
    float *s = op_malloc((size_t)d->T * sizeof *s);
    for (int64_t row = 0; row < (int64_t)d->B * d->NH * d->T; row++) { /* (B,NH,T) */
        const int64_t i = row % d->T, head = row / d->T % d->NH, b = row / d->T / d->NH;
        const float *q = c->in[2] + (b * d->T + i) * 3 * C + head * d->HD;
        for (int64_t j = 0; j < d->T; j++) {
            const float *k = c->in[2] + (b * d->T + j) * 3 * C + C + head * d->HD;
            s[j] = 0;
            for (int e = 0; e < d->HD; e++) s[j] += q[e] * k[e];
            s[j] /= sqrtf((float)d->HD);
        }
        float *of_probs = c->slack[1] + row * d->T;
        slack_of_probs(of_probs, c->want[1] + row * d->T, s, d->T);
        slack_of_weighted_sum(c->slack[0] + (b * d->T + i) * C + head * d->HD, of_probs,
                              c->in[2] + b * d->T * 3 * C + 2 * C + head * d->HD, 3 * (int64_t)C, (int)i + 1,
                              d->HD, d->p > 0 ? dropout_scale(dropout_threshold(d->p)) : 1);
    }
    free(s);
}

static int describe_standard_backward(Operand *o, const Sizes *d) {
    const int64_t n = (int64_t)d->B * d->T * d->NH;
    const Operand rows[] = {
        {.name = "dqkv",    .role = OUT,            .store = STORE_X,     .elems = 3 * n * d->HD, .part = parts_of(d)},
        {.name = "dprobs",  .role = SPACE,          .store = STORE_X,     .elems = n * d->T     },
        {.name = "dout",       .role = IN,       .store = STORE_X,   .elems = n * d->HD,             .scale = 1                   },
        {.name = "probs",       .role = IN,       .store = STORE_X,    .elems = n * d->T                      },
        {.name = "qkv", .role = IN, .store = STORE_X, .elems = 3 * n * d->HD,                       .scale = scale_of(d)},
    };
    memcpy(o, rows, sizeof rows);
    o[5] = key_operand(d);
    return 6;
}

static void run_standard_backward(const Call *c) {
    void *const *p = c->p;
    const Sizes *d = &c->s;
    const AttentionMask mask = mask_of(d, p[5]);
    c->ops->attention_standard_backward(p[0], p[1], p[2], p[3], p[4], &mask, d->B, d->T, d->NH, d->HD);
}

static void prepare_standard_backward(OpCase *c) {
    const Sizes *d = &c->s;
    fill_qkv(d, c->in[4]);
    op_round(c->in[4], c->dtype, c->operands[4].elems);
    float *out = op_malloc((size_t)c->operands[2].elems * sizeof *out);
    int32_t *words;
    fill_mask(c);
    AttentionMask mask = host_mask(c, 5, &words);
    mask.dropout.p = 0; /* probs are those before dropout */
    ops_cpu.attention_standard_forward(out, c->in[3], NULL, c->in[4], &mask, d->B, d->T, d->NH, d->HD);
    free(out);
    free(words);
}

static void plain_of_standard_backward(OpCase *c) {
    plain_backward(c, 0, c->in[2], NULL, c->in[4], 5);
    slack_of_plain(c->slack[0], c->plain[0], c->want[0], c->operands[0].elems);
}

/* ---- decoding: the last row of a forward pass ---- */

/* Of one sequence, whose rows (n,3,C) are `packed`: the cache's, with the new token's q. */
static void plain_decode_sequence(OpCase *c, const float *packed, int n, float *plain, float *slack) {
    const int C = c->s.NH * c->s.HD, HD = c->s.HD, last = n - 1;
    const HeadMask mask = {.window = c->s.window, .blocks = c->s.blocks, .chosen = c->in[6]};
    float *p = op_malloc((size_t)n * 2 * sizeof *p);
    for (int h = 0; h < c->s.NH; h++) {
        const float *q = packed + h * HD;
        plain_probs(p, q, q + C, 3 * (int64_t)C, last, HD, &mask);
        plain_out(plain + h * HD, p, q + 2 * C, 3 * (int64_t)C, last, HD, &mask);
        const float of_p = exact_probs(p, p + n, q, q + C, 3 * (int64_t)C, last, HD, &mask);
        slack_of_out(slack + h * HD, p + n, of_p, q + 2 * C, 3 * (int64_t)C, last, HD);
    }
    free(p);
}

static void plain_decode(OpCase *c) {
    const size_t C = (size_t)(c->s.NH * c->s.HD), T = (size_t)c->s.T;
    float *packed = op_malloc(T * 3 * C * sizeof *packed);
    for (size_t b = 0; b < (size_t)c->s.B; b++) {
        const float *cache = c->want[1] + b * T * 2 * C; /* with the new token */
        for (size_t t = 0; t < T; t++) {
            memcpy(packed + t * 3 * C, c->in[2] + b * 3 * C, C * sizeof *packed);
            memcpy(packed + t * 3 * C + C, cache + t * 2 * C, 2 * C * sizeof *packed);
        }
        const int begin = c->in[4] ? (int)c->in[4][b] : 0;
        plain_decode_sequence(c, packed + (size_t)begin * 3 * C, (int)c->in[3][b] + 1 - begin,
                              c->plain[0] + b * C, c->slack[0] + b * C);
    }
    free(packed);
}

static Op decoding(void) {
    Op op = op_attention_decode;
    op.plain = plain_decode;
    return op;
}

/* ---- the table ---- */

static const Op standard_forward = {.id = N_OPS,
                                    .name = "attention_standard_forward",
                                    .describe = describe_standard_forward,
                                    .run = run_standard_forward,
                                    .prepare = prepare_forward,
                                    .plain = plain_of_standard_forward};
static const Op standard_backward = {.id = N_OPS,
                                     .name = "attention_standard_backward",
                                     .describe = describe_standard_backward,
                                     .run = run_standard_backward,
                                     .prepare = prepare_standard_backward,
                                     .plain = plain_of_standard_backward};

/* tuned: there are kernels for Hopper. The others: each size of tiles of older cards' kernels, and its neighbours. */
static const struct {
    int HD;
    bool tuned;
} head_sizes[] = {
    {64,  true },
    {128, true },
    {80,  true },
    {96,  true },
    {112, true },
    {256, true },
    {8,   false},
    {24,  false},
    {32,  false},
    {40,  false},
    {56,  false},
    {72,  false},
    {104, false},
    {120, false},
    {136, false},
    {160, false},
    {192, false},
    {200, false},
};
/* To add a size: a row. T runs past one tile, and just below and above multiples of 64. */
static const struct {
    int B, T, NH;
    bool tuned_only;
} sizes[] = {
    {1, 1,    3,  false},
    {2, 7,    1,  false},
    {1, 65,   2,  false},
    {3, 127,  2,  false},
    {1, 1023, 2,  false},
    {2, 1024, 3,  true },
    {1, 1300, 2,  true },
    {1, 64,   1,  true },
    {2, 129,  5,  true },
    {5, 700,  10, true }, /* more tiles than SMs, at either head size */
};

static void test_sizes(const Ops *ops) {
    const Op decode = decoding();
    for (size_t h = 0; h < sizeof head_sizes / sizeof *head_sizes; h++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            if (sizes[s].tuned_only && !head_sizes[h].tuned) continue;
            if (op_small && (sizes[s].T > 129 || sizes[s].B > 1)) continue;
            Sizes d = {.B = sizes[s].B, .T = sizes[s].T, .NH = sizes[s].NH, .HD = head_sizes[h].HD};
            op_case(ops, &forward, d);
            op_case(ops, &backward, d);
            op_case(ops, &decode, d);
            if (d.T > 129) continue;
            op_case(ops, &standard_forward, d);
            op_case(ops, &standard_backward, d);
        }
}

/* So many heads that each is a block's. */
static void test_many_sequences(const Ops *ops) {
    const Op decode = decoding();
    if (op_small) return;
    op_case(ops, &decode, (Sizes){.B = 40, .T = 300, .NH = 7, .HD = 64});
    op_case(ops, &decode, (Sizes){.B = 34, .T = 300, .NH = 8, .HD = 128, .window = 200, .flags = BEGINS});
    op_case(ops, &decode, (Sizes){.B = 67, .T = 260, .NH = 4, .HD = 64, .window = 100});
    op_case(ops, &decode, (Sizes){.B = 67, .T = 1024, .NH = 4, .HD = 64, .flags = BEGINS});
}

/* So long that a piece of keys is more than one tile. */
static void test_long_caches(const Ops *ops) {
    const Op decode = decoding();
    if (op_small) return;
    op_case(ops, &decode, (Sizes){.B = 1, .T = 8193, .NH = 2, .HD = 64});
    op_case(ops, &decode, (Sizes){.B = 2, .T = 20000, .NH = 1, .HD = 64, .window = 9000});
    op_case(ops, &decode, (Sizes){.B = 1, .T = 8200, .NH = 1, .HD = 256});
}

/* Windows and documents shorter and longer than a tile, their ends inside tiles; a tenth, a quarter and half dropped. */
static const struct {
    int B, T, NH, window, documents;
    float p;
} masks[] = {
    {2, 129,  3, 50,  0,   0    },
    {1, 195,  2, 1,   0,   0    },
    {1, 300,  2, 64,  0,   0    },
    {1, 515,  1, 130, 0,   0    },
    {1, 771,  2, 256, 0,   0    }, /* Hopper: tiles of which one half sees more blocks than the other */
    {2, 643,  3, 320, 0,   0    },
    {2, 129,  3, 0,   20,  0    },
    {3, 700,  2, 0,   90,  0    },
    {2, 901,  2, 200, 250, 0    },
    {2, 129,  2, 0,   0,   0.25f},
    {1, 65,   3, 0,   0,   0.5f },
    {1, 300,  2, 70,  100, 0.1f },
    {1, 129,  2, 0,   0,   0.7f }, /* on any card by the kernels of older ones */
    {3, 700,  7, 0,   0,   0.1f }, /* Hopper: the kernels of short and of longer sequences */
    {2, 1300, 3, 0,   0,   0.05f},
    {2, 176,  3, 0,   0,   0.1f }, /* Hopper: keys in pairs, of which a tile reaches into the next sequence; */
    {2, 1296, 3, 0,   0,   0.05f}, /* the same, longer */
};

static void test_masks(const Ops *ops) {
    const int some_head_sizes[] = {64, 128, 24, 256, 80, 96, 112, 136};
    const Op decode = decoding();
    for (int h = 0; h < 8; h++)
        for (size_t m = 0; m < sizeof masks / sizeof *masks; m++) {
            Sizes d = {.B = masks[m].B,
                       .T = masks[m].T,
                       .NH = masks[m].NH,
                       .HD = some_head_sizes[h],
                       .window = masks[m].window,
                       .documents = masks[m].documents,
                       .p = masks[m].p};
            if (op_small && d.T > 195) continue;
            op_case(ops, &forward, d);
            op_case(ops, &backward, d);
            if (d.p == 0) op_case(ops, &decode, d);
            d.flags |= BEGINS;
            if (d.p == 0) op_case(ops, &decode, d);
            d.flags &= ~BEGINS;
            if (h > 0) continue;
            op_case(ops, &standard_forward, d);
            op_case(ops, &standard_backward, d);
        }
}

/* Blocks of 64, all lengths of Hopper's first tile. T128: no random block yet. */
static const struct {
    int B, T, NH;
    SparsePattern blocks;
    float p;
} patterns[] = {
    {2, 300,  3,  {1, 1, 1}, 0   },
    {1, 195,  2,  {1, 0, 0}, 0   },
    {1, 643,  2,  {2, 1, 2}, 0   },
    {1, 771,  1,  {1, 3, 5}, 0   },
    {2, 1000, 3,  {2, 0, 3}, 0   },
    {1, 1300, 2,  {4, 1, 2}, 0   },
    {2, 1985, 2,  {3, 2, 1}, 0   },
    {1, 64,   2,  {1, 1, 1}, 0   }, /* nothing is left out */
    {1, 515,  2,  {1, 1, 1}, 0.1f},
    {2, 1500, 12, {4, 1, 2}, 0   }, /* more tiles than SMs */
};

static void test_blocks(const Ops *ops) {
    const int some_head_sizes[] = {64, 128, 80, 96, 112, 24, 256};
    const Op decode = decoding();
    for (int h = 0; h < 7; h++)
        for (size_t m = 0; m < sizeof patterns / sizeof *patterns; m++) {
            const Sizes d = {.B = patterns[m].B,
                             .T = patterns[m].T,
                             .NH = patterns[m].NH,
                             .HD = some_head_sizes[h],
                             .blocks = patterns[m].blocks,
                             .p = patterns[m].p};
            if ((op_small || h > 2) && d.T > 771) continue; /* 64, 128 and 80: kernels of their own shape */
            op_case(ops, &forward, d);
            op_case(ops, &backward, d);
            if (d.p == 0) op_case(ops, &decode, d);
            if (h > 0 || d.T > 771) continue;
            op_case(ops, &standard_forward, d);
            op_case(ops, &standard_backward, d);
        }
}

/* More tiles than SMs, so that one follows another; and more heads than have sums of dQ at once, which then take turns. */
static void test_many_heads(const Ops *ops) {
    const int own_shape[] = {64, 80, 128};
    for (int h = 0; h < 3; h++) {
        Sizes d = {.B = 10, .T = 195, .NH = 25, .HD = own_shape[h], .documents = 70};
        op_case(ops, &backward, d);
        d.documents = 0;
        d.p = 0.1f;
        op_case(ops, &backward, d);
        d.T = 208; /* keys in pairs */
        op_case(ops, &backward, d);
    }
}

/* Scores that the textbook softmax or a careless online one gets wrong. */
static void test_adversarial(const Ops *ops) {
    const FillKind fills[] = {FILL_EQUAL, FILL_GROWING, FILL_HUGE, FILL_FALLING, FILL_PEAKS, FILL_STEP};
    const int some_head_sizes[] = {64, 128, 24, 80, 96, 256};
    for (int f = 0; f < 6; f++)
        for (int h = 0; h < 6; h++) {
            Sizes d = {
                .B = 1, .T = op_small ? 195 : 515, .NH = 2, .HD = some_head_sizes[h], .fill = fills[f]};
            op_case(ops, &forward, d);
            op_case(ops, &backward, d);
        }
}

/* ---- NaN ---- */

/* out (B,T,C) of the backend for qkv on the host */
static void attention_on(const Ops *ops, float *out, const float *qkv, const Sizes *d) {
    const int64_t n = (int64_t)d->B * d->T * d->NH * d->HD;
    Guarded buffer[3];
    bool ok = guarded_alloc(&buffer[0], ops, (size_t)n * dtype_bytes(ops->dtype), 0);
    ok = guarded_alloc(&buffer[1], ops, (size_t)d->B * (size_t)d->T * (size_t)d->NH * sizeof(float), 0) && ok;
    ok = guarded_alloc(&buffer[2], ops, 3 * (size_t)n * dtype_bytes(ops->dtype), 0) && ok;
    if (!ok) abort();
    upload_floats(ops, buffer[2].data, ops->dtype, qkv, 3 * n);
    ops->attention_forward(buffer[0].data, (float *)(void *)buffer[1].data, buffer[2].data,
                           &(AttentionMask){0}, d->B, d->T, d->NH, d->HD);
    download_floats(ops, out, buffer[0].data, ops->dtype, n);
    for (int i = 0; i < 3; i++) guarded_free(&buffer[i]);
}

/* A NaN in q, k or v of one row shows in every output that depends on it: a softmax whose maximum drops NaN
 * hides it. Other heads and other sequences keep their bits. */
static void test_nan(const Ops *ops, int HD, int part) {
    const Sizes d = {.B = 2, .T = 130, .NH = 2, .HD = HD};
    const int C = d.NH * HD, row = 70, head = 1;
    char label[64];
    snprintf(label, sizeof label, "%s%s HD%d %c", ops->name, op_path, HD, "qkv"[part]);
    if (!op_wanted("attention_nan", label)) return;
    const int64_t n = (int64_t)d.B * d.T * C;
    float *qkv = op_malloc((size_t)(5 * n) * sizeof *qkv), *clean = qkv + 3 * n, *out = clean + n;
    for (int64_t i = 0; i < 3 * n; i++) qkv[i] = op_normal(99, i);
    attention_on(ops, clean, qkv, &d);
    qkv[((int64_t)row * 3 + part) * C + head * HD + 3] = NAN;
    attention_on(ops, out, qkv, &d);
    int hidden = 0, spread = 0;
    for (int64_t i = 0; i < n; i++) {
        int b = (int)(i / C / d.T), t = (int)(i / C % d.T), h = (int)(i % C) / HD;
        bool here = b == 0 && h == head;
        bool depends = here && (part == 0 ? t == row : t >= row) && (part != 2 || i % HD == 3);
        hidden += depends && !isnan(out[i]);
        spread += !here && memcmp(&out[i], &clean[i], sizeof *out) != 0;
    }
    CHECK(hidden == 0, "%s, HD%d: a NaN in %c does not show in %d outputs", ops->name, HD, "qkv"[part],
          hidden);
    CHECK(spread == 0, "%s, HD%d: a NaN in %c changes %d outputs of other heads", ops->name, HD, "qkv"[part],
          spread);
    free(qkv);
}

/* So long that Hopper's kernels do otherwise than where the oracle holds them: pairs of tiles in clusters, forward from
 * T = 4096 on, backward from 2048 (HD 96 and 112), 4096 (128) and 32768 (64) on. By the small ones sanitizers reach the pairs: forward's of
 * either head size, backward's of 128. */
static void test_long_sequences(const Ops *ops) {
    static const struct {
        int HD, T;
        bool small;
        float p;
        int window, documents;
    } cases[] =
        {
            {64,  4133,  true,  0,    0,    0   },
            {64,  32800, false, 0,    0,    0   }, /* here and at 4133 the number of tiles is odd: the last pair has one */
            {64,  66000, false, 0,    0,    0   },
            {128, 4133,  true,  0,    0,    0   }, /* of blocks of queries, too */
            {128, 33000, false, 0,    0,    0   },
            {80,  4133,  true,  0,    0,    0   },
            {96,  4133,  true,  0,    0,    0   },
            {96,  8190,  false, 0,    0,    0   },
            {256, 4133,  false, 0,    0,    0   },
            {64,  4133,  true,  0.1f, 0,    0   },
            {64,  32800, false, 0.5f, 0,    0   },
            {128, 4133,  true,  0.1f, 0,    0   },
            {128, 16421, true,  0,    2100, 0   },
            {128, 16421, true,  0,    0,    700 },
            {128, 32805, false, 0,    3000, 4000},
            {64,  32805, false, 0,    0,    4000},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (!op_small || cases[i].small)
            test_long_sequence(ops, (Sizes){.T = cases[i].T,
                                            .HD = cases[i].HD,
                                            .p = cases[i].p,
                                            .window = cases[i].window,
                                            .documents = cases[i].documents});
}

static void test_path(const Ops *ops) {
    test_sizes(ops);
    test_many_sequences(ops);
    test_long_caches(ops);
    test_masks(ops);
    test_blocks(ops);
    test_adversarial(ops);
    const int nan_head_sizes[] = {64, 128, 24, 80, 96, 256};
    for (int h = 0; h < 6; h++)
        for (int part = 0; part < 3; part++) test_nan(ops, nan_head_sizes[h], part);
}

/* What a run says of a head size at its start: whether all of its kernels are this card's. */
static void test_tuned(const Ops *ops) {
    const bool hopper = strstr(ops->device->name(), "capability 9.0") != NULL;
    const int tuned[] = {64, 80, 96, 112, 128}, others[] = {8, 72, 104, 120, 256};
    for (int i = 0; i < 5; i++) {
        CHECK(cuda_attention_tuned(tuned[i]), "head size %d is not tuned", tuned[i]);
        cuda_limit_capability(80);
        CHECK(cuda_attention_tuned(others[i]), "head size %d is slower than 64 on an older card", others[i]);
        cuda_limit_capability(0);
        CHECK(cuda_attention_tuned(others[i]) == !hopper, "head size %d beside 64", others[i]);
    }
}

/* The kernels of this card, and those of older cards, which it runs as well. */
static void test_backend(const Ops *ops) {
    test_path(ops);
    if (ops->dtype == DTYPE_F32) return; /* one path serves every card */
    test_long_sequences(ops);
    if (!op_small) test_many_heads(ops);
    if (op_wanted("attention_tuned", ops->name)) test_tuned(ops);
    cuda_limit_capability(80);
    op_path = " sm80";
    test_path(ops);
    op_path = "";
    cuda_limit_capability(0);
}

int main(int argc, char **argv) {
    return op_main("ops_attention", argc, argv, test_backend);
}
