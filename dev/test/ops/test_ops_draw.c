/* The draw of tokens: on the CPU its frequencies against exact probabilities (chi-square), ties, and logits that are not
 * finite; on a card the CPU's tokens, one by one. */
#include "dev/test/op_test.h"
#include "llmc/base/random.h"

/* ---- a call ---- */

typedef struct How {
    float temperature, top_p, min_p;
    int top_k;
} How;

/* Buffers of B sequences on a device. */
typedef struct Draw {
    const Ops *ops;
    Guarded logits, tokens, positions, drawn, rng;
    DrawArgs args;
} Draw;

static bool open_draw(Draw *d, const Ops *ops, int B, int V, int Vp) {
    const size_t n = (size_t)B;
    *d = (Draw){
        .ops = ops, .args = {.B = B, .V = V, .Vp = Vp}
    };
    const bool ok = guarded_alloc(&d->logits, ops, n * (size_t)Vp * dtype_bytes(ops->dtype), 0) &&
                    guarded_alloc(&d->tokens, ops, n * sizeof(int32_t), 0) &&
                    guarded_alloc(&d->positions, ops, n * sizeof(int32_t), 0) &&
                    guarded_alloc(&d->drawn, ops, DRAWN_ROWS * n * sizeof(int32_t), 0) &&
                    guarded_alloc(&d->rng, ops, n * sizeof(uint64_t), 0);
    d->args.logits = d->logits.data;
    d->args.tokens = (int32_t *)(void *)d->tokens.data;
    d->args.positions = (int32_t *)(void *)d->positions.data;
    d->args.drawn = (int32_t *)(void *)d->drawn.data;
    d->args.rng = (uint64_t *)(void *)d->rng.data;
    return CHECK(ok, "%s: device memory", ops->name);
}

static void close_draw(Draw *d) {
    Guarded *all[] = {&d->logits, &d->tokens, &d->positions, &d->drawn, &d->rng};
    for (int i = 0; i < 5; i++) {
        CHECK(guarded_intact(all[i]), "%s, draw_tokens: bytes outside of buffer %d were written",
              d->ops->name, i);
        guarded_free(all[i]);
    }
}

static void set_how(Draw *d, How how) {
    d->args.temperature = how.temperature;
    d->args.top_k = how.top_k;
    d->args.top_p = how.top_p;
    d->args.min_p = how.min_p;
}

/* logits (B,Vp); every sequence at `position`, its numbers from stream b. */
static void fill_draw(Draw *d, const float *logits, int position) {
    const int64_t n = (int64_t)d->args.B * d->args.Vp;
    upload_floats(d->ops, d->logits.data, d->ops->dtype, logits, n);
    for (int b = 0; b < d->args.B; b++) {
        const uint64_t rng = random_stream(11, (uint64_t)b);
        const int32_t at = position;
        d->ops->device->upload(d->args.rng + b, &rng, sizeof rng);
        d->ops->device->upload(d->args.positions + b, &at, sizeof at);
    }
}

/* One draw of the first sequence. */
static int draw_first(Draw *d) {
    int32_t token;
    d->ops->draw_tokens(&d->args);
    d->ops->device->download(&token, d->args.tokens, sizeof token);
    return token;
}

/* ---- frequencies ---- */

/* What is drawn, of at most 8 ids, written down by its definition: a sort in the order of the draw. */
static void exact_shares(double *shares, const float *z, int V, How how) {
    int order[8], n = V;
    double sum = 0, kept = 0;
    for (int i = 0; i < V; i++) { /* insertion: of equals the lowest id first */
        int at = i;
        for (; at > 0 && z[order[at - 1]] < z[i]; at--) order[at] = order[at - 1];
        order[at] = i;
    }
    if (how.top_k > 0 && how.top_k < n) n = how.top_k;
    for (int i = 0; i < V; i++) shares[i] = 0;
    for (int i = 0; i < n; i++) sum += exp((double)(z[order[i]] - z[order[0]]) / (double)how.temperature);
    for (int i = 0; i < n; i++) {
        const double share = exp((double)(z[order[i]] - z[order[0]]) / (double)how.temperature);
        if (how.top_p < 1 && i > 0 && kept >= (double)how.top_p * sum - 1e-9) break;
        kept += share;
        if (share >= (double)how.min_p) shares[order[i]] = share;
    }
    sum = 0;
    for (int i = 0; i < V; i++) sum += shares[i];
    for (int i = 0; i < V; i++) shares[i] /= sum;
}

/* Chi-square of many draws against the exact shares, at 1e-6 for up to 7 degrees of freedom: 40. */
static void check_shares(Draw *d, const float *z, int V, How how) {
    const int n_draws = d->ops == &ops_cpu ? 20000 : 2000;
    double shares[8], chi = 0;
    int drawn[8] = {0};
    set_how(d, how);
    fill_draw(d, z, 0);
    exact_shares(shares, z, V, how);
    for (int i = 0; i < n_draws; i++) drawn[draw_first(d)]++;
    for (int i = 0; i < V; i++) {
        const double expected = shares[i] * n_draws, difference = drawn[i] - expected;
        CHECK(expected > 0 || drawn[i] == 0, "%s: id %d drawn, temperature %g, top-k %d, top-p %g, min-p %g",
              d->ops->name, i, (double)how.temperature, how.top_k, (double)how.top_p, (double)how.min_p);
        if (expected > 0) chi += difference * difference / expected;
    }
    CHECK(chi < 40, "%s: chi-square %g, temperature %g, top-k %d, top-p %g, min-p %g", d->ops->name, chi,
          (double)how.temperature, how.top_k, (double)how.top_p, (double)how.min_p);
}

/* Padding holds what would always be drawn. */
static void test_shares(const Ops *ops) {
    enum { V = 6, VP = 128 };
    static const How hows[] = {
        {1,    1,     0,    0  },
        {0.5f, 1,     0,    6  },
        {2,    1,     0,    100},
        {1,    1,     0,    3  }, /* all of two equals */
        {1,    1,     0,    2  },
        {2,    1,     0,    5  },
        {1,    0.5f,  0,    0  }, /* ends among two equals: one stays */
        {1,    0.3f,  0,    0  },
        {1,    0.9f,  0,    0  },
        {2,    0.8f,  0,    4  },
        {1,    0.6f,  0,    2  },
        {1,    0.99f, 0,    1  },
        {1,    1,     0.3f, 0  },
        {2,    1,     0.5f, 4  },
        {1,    0.9f,  0.2f, 5  },
        {1,    0,     0,    0  },
    };
    const float z[V] = {0.5f, 2, -1, 2, 1, 0.25f}, equal[V] = {1, 1, 1, 1, 1, 1};
    float row[VP];
    Draw d;
    if (!open_draw(&d, ops, 1, V, VP)) return;
    for (int i = 0; i < VP; i++) row[i] = 1e4f;
    memcpy(row, z, sizeof z);
    for (size_t i = 0; i < sizeof hows / sizeof *hows; i++) check_shares(&d, row, V, hows[i]);
    memcpy(row, equal, sizeof equal);
    check_shares(&d, row, V, (How){1, 1, 0, 2});
    check_shares(&d, row, V, (How){1, 0.5f, 0, 0});
    close_draw(&d);
}

/* ---- single draws ---- */

static void test_greedy(const Ops *ops) {
    enum { V = 5, VP = 128 };
    float z[VP] = {1, 5, -3, 5, 2};
    const How hows[] = {
        {0,   1, 0, 0},
        {-1,  1, 0, 0},
        {NAN, 1, 0, 0},
        {1,   1, 0, 1}
    };
    Draw d;
    if (!open_draw(&d, ops, 1, V, VP)) return;
    for (int i = V; i < VP; i++) z[i] = 9;
    for (int i = 0; i < 4; i++) {
        uint64_t rng;
        set_how(&d, hows[i]);
        fill_draw(&d, z, 7);
        CHECK(draw_first(&d) == 1, "%s: greedy takes the largest, of equals the lowest id (%d)", ops->name,
              i);
        ops->device->download(&rng, d.args.rng, sizeof rng);
        CHECK(rng == random_stream(11, 0), "%s: greedy draws no random number (%d)", ops->name, i);
    }
    close_draw(&d);
}

/* Some, and only, logits that are not finite: what is drawn, and what `drawn` says. */
static void test_not_finite(const Ops *ops) {
    enum { V = 6, VP = 128, N = 4 };
    static const struct {
        float z[V];
        int n_bad, allowed[2];
    } rows[N] = {
        {{NAN, 1, -INFINITY, NAN, 2, NAN},                             4, {1, 4}},
        {{NAN, NAN, NAN, NAN, NAN, NAN},                               6, {0, 0}},
        {{-INFINITY, -INFINITY, NAN, -INFINITY, -INFINITY, -INFINITY}, 6, {0, 1}},
        {{1, INFINITY, NAN, INFINITY, 0, 2},                           3, {1, 3}},
    };
    static const How hows[] = {
        {1,        1,    0,    0},
        {1,        1,    0,    3},
        {1e30f,    1,    0,    5},
        {1,        0.9f, 0.1f, 0},
        {1e-38f,   1,    0,    0},
        {INFINITY, 1,    0,    0},
        {0,        1,    0,    0}
    };
    for (size_t h = 0; h < sizeof hows / sizeof *hows; h++)
        for (int i = 0; i < N; i++) {
            float z[VP] = {0};
            int32_t drawn = 0, position = 0;
            Draw d;
            if (!open_draw(&d, ops, 1, V, VP)) return;
            memcpy(z, rows[i].z, sizeof rows[i].z);
            set_how(&d, hows[h]);
            fill_draw(&d, z, DRAWN_ROWS - 1);
            const int token = draw_first(&d);
            ops->device->download(&drawn, d.args.drawn, sizeof drawn); /* row 0: position 64 */
            ops->device->download(&position, d.args.positions, sizeof position);
            CHECK(token == rows[i].allowed[0] || token == rows[i].allowed[1],
                  "%s: row %d of bad logits, form %zu: %d drawn", ops->name, i, h, token);
            CHECK(drawn == -rows[i].n_bad, "%s: row %d of bad logits, form %zu: %d, expected %d", ops->name,
                  i, h, drawn, -rows[i].n_bad);
            CHECK(position == DRAWN_ROWS, "%s: position %d", ops->name, position);
            close_draw(&d);
        }
}

/* ---- the CPU's tokens ---- */

/* Numbers between -4 and 4, as stored; peaked: a few far above the others, as a trained model has them; zeros: the largest
 * are some of either sign, of which 0 is above -0; bad: some are not finite. Of the first two all bits of fp32 differ.
 * Padding, which is behind V, is what would always be drawn. */
typedef enum Form { EVEN, PEAKED, ZEROS, BAD } Form;
static float *random_logits(DType dtype, int B, int V, int Vp, Form form) {
    const int64_t n = (int64_t)B * Vp;
    float *z = op_normal_bf16(n, 3);
    for (int64_t i = 0; i < n; i++) {
        const uint64_t mixed = op_mix((uint64_t)i);
        if (form == PEAKED && mixed % 1000 == 0) z[i] = round_bf16(z[i] + 8);
        if (form == ZEROS) z[i] = mixed % 200 ? -fabsf(z[i]) : mixed / 200 % 2 ? 0.0f : -0.0f;
        if (form == BAD && mixed % 500 == 0) z[i] = mixed / 500 % 2 ? NAN : -INFINITY;
        if (dtype == DTYPE_F32 && form <= PEAKED) z[i] *= 1 + (float)(mixed >> 44) * 0x1p-28f;
        if (i % Vp >= V) z[i] = INFINITY;
    }
    return z;
}

enum { MAX_B = 140 };
static void same_tokens(const Ops *ops, int B, int V, int Vp, How how, Form form) {
    int32_t got[2][6 * MAX_B];
    uint64_t rng[2][MAX_B];
    float *z = random_logits(ops->dtype, B, V, Vp, form);
    const Ops *both[2] = {&ops_cpu, ops};
    for (int k = 0; k < 2; k++) {
        Draw d;
        if (!open_draw(&d, both[k], B, V, Vp)) return;
        set_how(&d, how);
        fill_draw(&d, z, 60); /* past the end of the rows */
        for (int i = 0; i < 6; i++) both[k]->draw_tokens(&d.args);
        for (int i = 0; i < 6; i++)
            both[k]->device->download(got[k] + i * B, d.args.drawn + (61 + i) % DRAWN_ROWS * B,
                                      (size_t)B * sizeof(int32_t));
        both[k]->device->download(rng[k], d.args.rng, (size_t)B * sizeof(uint64_t));
        close_draw(&d);
    }
    const size_t bytes = (size_t)(6 * B) * sizeof(int32_t);
    CHECK(memcmp(got[0], got[1], bytes) == 0,
          "%s: other tokens than the CPU's: B %d, V %d, temperature %g, top-k %d, top-p %g, min-p %g, form "
          "%d",
          ops->name, B, V, (double)how.temperature, how.top_k, (double)how.top_p, (double)how.min_p, form);
    CHECK(memcmp(rng[0], rng[1], (size_t)B * sizeof(uint64_t)) == 0, "%s: other random states than the CPU's",
          ops->name);
    free(z);
}

static void test_tokens(const Ops *ops) {
    static const How hows[] = {
        {0,    1,     0,     0    },
        {1,    1,     0,     0    },
        {0.8f, 1,     0,     200  },
        {1,    0.95f, 0,     0    },
        {1.5f, 0.5f,  0,     1000 },
        {1,    1,     0.1f,  0    },
        {0.7f, 0.9f,  0.05f, 50   },
        {1,    1,     0,     50256},
        {0.9f, 1,     0,     2    },
        {1,    0.8f,  0.01f, 1024 },
    };
    static const int sizes[][2] = {
        {1,     128  },
        {61,    128  },
        {1024,  1024 },
        {1025,  1152 },
        {1030,  1152 },
        {1031,  1152 },
        {50257, 50304},
        {90001, 90112}
    }; /* the last is past shared memory, in fp32 */
    for (size_t h = 0; h < sizeof hows / sizeof *hows; h++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            if (op_small && sizes[i][0] > 1031) continue;
            for (int form = EVEN; form <= BAD; form++)
                same_tokens(ops, 7, sizes[i][0], sizes[i][1], hows[h], (Form)form);
        }
}

/* Greedy, a sequence has as many blocks as the card has for it: one, two, four, and seven have eight each. */
static void test_numbers(const Ops *ops) {
    static const int numbers[] = {MAX_B, 64, 20};
    for (int i = 0; i < 3; i++)
        for (int form = EVEN; form <= BAD; form++) {
            same_tokens(ops, numbers[i], 1031, 1152, (How){0, 1, 0, 0}, (Form)form);
            if (!op_small) same_tokens(ops, numbers[i], 9005, 9088, (How){0, 1, 0, 0}, (Form)form);
        }
}

static void test_alone(const Ops *ops) {
    test_greedy(ops);
    test_not_finite(ops);
    test_shares(ops);
}

static void test_backend(const Ops *ops) {
    test_alone(ops);
    test_tokens(ops);
    test_numbers(ops);
}

int main(int argc, char **argv) {
    op_without_card = test_alone;
    return op_main("ops_draw", argc, argv, test_backend);
}
