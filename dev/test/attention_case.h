/* Attention forward and backward as op_case.h calls them, with inputs that a careless softmax gets wrong. */
#pragma once
#include "plain_attention.h"

/* ---- inputs ---- */

/* Nats that key t of T is above the others. FILL_GROWING: so that the running maximum of an online softmax changes with
 * every tile. FILL_HUGE: key T/2 outweighs all others, so that earlier tiles must be scaled away. FILL_FALLING: from the
 * diagonal back to key 0 scores rise by 200 nats, which no maximum taken at the diagonal survives in fp32. FILL_PEAKS:
 * the same by single keys, one at every place of a tile, each above the peaks after it. FILL_STEP: the older half of the
 * keys is 60 nats up, and slopes (slope_scores). */
static float key_height(const Sizes *d, int t) {
    const float place = (float)t / (float)d->T;
    switch (d->fill) {
    case FILL_GROWING:
        return 16 * (place + 1 / (float)d->T);
    case FILL_HUGE:
        return t == d->T / 2 ? 40 : 0;
    case FILL_FALLING:
        return 200 * (1 - place);
    case FILL_PEAKS:
        return t % 61 == 3 ? 220 - 100 * place : 0;
    case FILL_STEP:
        return t < d->T / 2 ? 60 : 0;
    default:
        return 0;
    }
}

/* Row t of q and k: over the older half of the keys, on the way back to key 0, scores rise by 4 nats for the first 8 of
 * every 16 queries and fall by as much for the others. So every tile brings such neighbours another new maximum. */
static void slope_scores(const Sizes *d, int t, float *q, float *k) {
    const float up = 1 - 2 * (float)t / (float)d->T;
    for (int head = 0; head < d->NH; head++) {
        q[head * d->HD] = t % 16 < 8 ? 4 : -4;
        k[head * d->HD] = up > 0 ? up * sqrtf((float)d->HD) : 0;
    }
}

/* qkv (B,T,3,NH,HD). FILL_EQUAL: every score of a row alike. */
static void fill_qkv(const Sizes *d, float *qkv) {
    const int C = d->NH * d->HD;
    const bool heights = d->fill != FILL_NORMAL && d->fill != FILL_EQUAL;
    for (int64_t row = 0; row < (int64_t)d->B * d->T; row++) {
        float *q = qkv + row * 3 * C, *k = q + C;
        const float height = key_height(d, (int)(row % d->T));
        for (int i = 0; i < C; i++) {
            if (d->fill == FILL_EQUAL) k[i] = qkv[C + i];
            if (!heights) continue;
            q[i] = 1 + 0.1f * q[i];
            k[i] = (height + 0.1f * k[i]) / sqrtf((float)d->HD);
        }
        if (d->fill == FILL_STEP) slope_scores(d, (int)(row % d->T), q, k);
    }
}

/* Where every gradient of q and k but rounding noise vanishes, dq and dk mean nothing by themselves. */
static int64_t parts_of(const Sizes *d) {
    return d->T > 1 && d->window != 1 && d->fill == FILL_NORMAL ? (int64_t)d->NH * d->HD : 0;
}

/* ---- flash ---- */

static int describe_forward(Operand *o, const Sizes *d) {
    const int64_t n = (int64_t)d->B * d->T * d->NH;
    const Operand rows[] = {
        {.name = "out",     .role = OUT,            .store = STORE_X,     .elems = n * d->HD},
        {             .name = "lse",      .role = OUT,     .store = STORE_F32,           .elems = n                  },
        { .name = "qkv", .role = IN, .store = STORE_X, .elems = 3 * n * d->HD,                   .scale = scale_of(d)},
    };
    memcpy(o, rows, sizeof rows);
    o[3] = key_operand(d);
    return 4;
}

static void run_forward(const Call *c) {
    void *const *p = c->p;
    const Sizes *d = &c->s;
    const AttentionMask mask = mask_of(d, p[3]);
    c->ops->attention_forward(p[0], p[1], p[2], &mask, d->B, d->T, d->NH, d->HD);
}

static void prepare_forward(OpCase *c) {
    fill_qkv(&c->s, c->in[2]);
    fill_mask(c);
}

static void plain_of_forward(OpCase *c) {
    plain_forward(c, 0, -1, c->in[2], 3);
}

static int describe_backward(Operand *o, const Sizes *d) {
    const int64_t n = (int64_t)d->B * d->T * d->NH;
    const Operand rows[] = {
        {.name = "dqkv",          .role = OUT,          .store = STORE_X, .elems = 3 * n * d->HD,           .part = parts_of(d)},
        {.name = "dout",                       .role = IN,                              .store = STORE_X,              .elems = n * d->HD, .scale = 1},
        {.name = "out",             .role = IN,                                 .store = STORE_X,                                     .elems = n * d->HD                                              },
        {.name = "qkv",     .role = IN,                         .store = STORE_X,.elems = 3 * n * d->HD,.scale = scale_of(d)},
        {.name = "lse", .role = IN, .store = STORE_F32,                         .elems = n                                                                                },
        {.name = "scratch",     .role = SPACE,               .store = STORE_F32,       .elems = -1},
    };
    memcpy(o, rows, sizeof rows);
    o[6] = key_operand(d);
    return 7;
}

static void run_backward(const Call *c) {
    void *const *p = c->p;
    const Sizes *d = &c->s;
    const AttentionMask mask = mask_of(d, p[6]);
    c->ops->attention_backward(p[0], p[1], p[2], p[3], p[4], NULL, &mask, p[5], d->B, d->T, d->NH, d->HD);
}

/* out and lse are those of the forward pass on this qkv */
static void prepare_backward(OpCase *c) {
    const Sizes *d = &c->s;
    fill_qkv(d, c->in[3]);
    op_round(c->in[3], c->dtype, c->operands[3].elems);
    int32_t *words;
    fill_mask(c);
    const AttentionMask mask = host_mask(c, 6, &words);
    ops_cpu.attention_forward(c->in[2], c->in[4], c->in[3], &mask, d->B, d->T, d->NH, d->HD);
    free(words);
}

static void plain_of_backward(OpCase *c) {
    plain_backward(c, 0, c->in[1], c->in[2], c->in[3], 6);
}

static const Op forward = {.id = N_OPS,
                           .name = "attention_forward",
                           .describe = describe_forward,
                           .run = run_forward,
                           .prepare = prepare_forward,
                           .plain = plain_of_forward};
static const Op backward = {.id = N_OPS,
                            .name = "attention_backward",
                            .describe = describe_backward,
                            .run = run_backward,
                            .prepare = prepare_backward,
                            .plain = plain_of_backward};
