/* Statistics and update of every CUDA backend: loss_sum, sum_squares, adamw, weights_from_master, and the flag that
 * keeps NaN and inf out of the weights. */
#include "dev/test/op_test.h"
#include "llmc/base/clock.h"
#include "llmc/cpu/cpu.h"

/* ---- statistics ---- */

typedef struct StatsCase {
    const Ops *ops;
    Guarded stats, sums, values;
} StatsCase;

/* What a step left: its sums, and what was made of them. */
typedef struct StatsResult {
    StepSums sums;
    StepStats stats;
} StatsResult;

static bool stats_open(StatsCase *c, const Ops *ops, const float *values, int64_t n, const StepSums *before) {
    const StepStats stats = {.loss = NAN, .grad_norm = NAN, .bad = 7, .stop = 7, .n_skipped = 3};
    c->ops = ops;
    bool ok = guarded_alloc(&c->stats, ops, sizeof stats, 0);
    ok = guarded_alloc(&c->sums, ops, sizeof *before, 0) && ok;
    ok = guarded_alloc(&c->values, ops, (size_t)n * sizeof *values, 16) && ok;
    if (!CHECK(ok, "%s: device memory", ops->name)) return false;
    ops->device->upload(c->stats.data, &stats, sizeof stats);
    ops->device->upload(c->sums.data, before, sizeof *before);
    ops->device->upload(c->values.data, values, (size_t)n * sizeof *values);
    return true;
}

static StatsResult stats_close(StatsCase *c, const char *what) {
    StatsResult after;
    c->ops->finish_stats((StepStats *)(void *)c->stats.data, (StepSums *)(void *)c->sums.data);
    c->ops->device->download(&after.stats, c->stats.data, sizeof after.stats);
    c->ops->device->download(&after.sums, c->sums.data, sizeof after.sums);
    CHECK(guarded_intact(&c->stats) && guarded_intact(&c->values) && guarded_intact(&c->sums),
          "%s, %s: bytes outside a buffer were written", c->ops->name, what);
    guarded_free(&c->stats);
    guarded_free(&c->values);
    guarded_free(&c->sums);
    return after;
}

static StatsResult loss_sum_of(const Ops *ops, const float *losses, int64_t n, float scale,
                               const StepSums *before) {
    StatsCase c;
    if (!stats_open(&c, ops, losses, n, before)) return (StatsResult){0};
    StepSums *sums = (StepSums *)(void *)c.sums.data;
    ops->loss_sum(&sums->loss, (float *)(void *)c.values.data, scale, n);
    return stats_close(&c, "loss_sum");
}

/* In two parts, as by two ranks; the second begins at a tile. */
static StatsResult sum_squares_of(const Ops *ops, const float *grads, int64_t n, const StepSums *before) {
    StatsCase c;
    if (!stats_open(&c, ops, grads, n, before)) return (StatsResult){0};
    ExactSum *sum = &((StepSums *)(void *)c.sums.data)->squares;
    const float *values = (float *)(void *)c.values.data;
    const int64_t first = n / 3 / PARAMETER_TILE * PARAMETER_TILE;
    ops->sum_squares(sum, values + first, n - first);
    if (first > 0) ops->sum_squares(sum, values, first);
    return stats_close(&c, "sum_squares");
}

static bool close_to(double got, double want) {
    return fabs(got - want) <= 1e-7 * fabs(want);
}

/* Loss and norm against plain sums; the bits against the CPU's, which took the parts in one. */
static void test_statistics(const Ops *ops, int64_t n) {
    float *values = op_malloc((size_t)n * sizeof *values);
    double sum = 0, square = 0;
    for (int64_t i = 0; i < n; i++) {
        values[i] = fabsf(op_normal(1, i));
        sum += values[i];
        square += (double)values[i] * values[i];
    }
    StepSums before = {.stop = 2}, want;
    const float start = 2.5f;
    cpu_loss_sum(&before.loss, &start, 1, 1);
    want = before;
    const StatsResult loss = loss_sum_of(ops, values, n, 0.125f, &before);
    const StatsResult norm = sum_squares_of(ops, values, n, &before);
    cpu_loss_sum(&want.loss, values, 0.125f, n);
    CHECK(memcmp(&loss.sums, &want, sizeof want) == 0, "%s, loss_sum of %lld: not the CPU's bits", ops->name,
          (long long)n);
    want.loss = before.loss;
    cpu_sum_squares(&want.squares, values, n);
    CHECK(memcmp(&norm.sums, &want, sizeof want) == 0, "%s, sum_squares of %lld: not the CPU's bits",
          ops->name, (long long)n);
    CHECK(close_to(loss.stats.loss, 2.5 + 0.125 * sum) && loss.stats.grad_norm == 0,
          "%s, loss_sum of %lld: %.8g, expected %.8g; norm %g", ops->name, (long long)n,
          (double)loss.stats.loss, 2.5 + 0.125 * sum, (double)loss.stats.grad_norm);
    CHECK(close_to(norm.stats.grad_norm, sqrt(square)) && norm.stats.loss == 2.5f,
          "%s, sum_squares of %lld: norm %.8g, expected %.8g; loss %g", ops->name, (long long)n,
          (double)norm.stats.grad_norm, sqrt(square), (double)norm.stats.loss);
    CHECK(norm.stats.bad == 0 && norm.stats.stop == 1 && norm.stats.n_skipped == 3,
          "%s: bad %d, stop %d, %lld steps skipped", ops->name, norm.stats.bad, norm.stats.stop,
          (long long)norm.stats.n_skipped);
    free(values);
}

/* One value that is not finite, wherever it stands, makes the step bad. */
static void test_bad_statistics(const Ops *ops, float value) {
    enum { n = 3003 };
    const StepSums none = {0};
    float values[n];
    for (int at = 0; at < n; at += n - 1) {
        for (int i = 0; i < n; i++) values[i] = 0.5f;
        values[at] = value;
        const StepStats loss = loss_sum_of(ops, values, n, 1, &none).stats,
                        norm = sum_squares_of(ops, values, n, &none).stats;
        CHECK(loss.bad == 1 && !isfinite(loss.loss) && loss.n_skipped == 4,
              "%s, loss_sum with %g at %d: loss %g, bad %d, %lld steps skipped", ops->name, (double)value, at,
              (double)loss.loss, loss.bad, (long long)loss.n_skipped);
        CHECK(norm.bad == 1 && !isfinite(norm.grad_norm) && norm.n_skipped == 4,
              "%s, sum_squares with %g at %d: norm %g, bad %d, %lld steps skipped", ops->name, (double)value,
              at, (double)norm.grad_norm, norm.bad, (long long)norm.n_skipped);
    }
    for (int i = 0; i < n; i++) values[i] = 3e38f;
    const StepStats loss = loss_sum_of(ops, values, n, 1, &none).stats,
                    norm = sum_squares_of(ops, values, n, &none).stats;
    CHECK(loss.bad == 1 && norm.bad == 1, "%s: sums beyond fp32: loss %g, norm %g", ops->name,
          (double)loss.loss, (double)norm.grad_norm);
}

/* The CPU's bits, added to what is there. */
static void test_hash_bytes(const Ops *ops, int64_t pieces) {
    Guarded x, sum;
    const int64_t bytes = 16 * pieces, n = bytes / (int64_t)sizeof(float);
    const uint64_t start = 0xfedcba9876543210u;
    uint64_t got = 0, want = start;
    float *values = op_malloc((size_t)bytes);
    for (int64_t i = 0; i < n; i++) values[i] = op_normal(3, i);
    cpu_hash_bytes(&want, values, bytes);
    bool ok = guarded_alloc(&x, ops, (size_t)bytes, 16);
    ok = guarded_alloc(&sum, ops, sizeof got, 0) && ok;
    if (!CHECK(ok, "%s: device memory", ops->name)) return;
    ops->device->upload(x.data, values, (size_t)bytes);
    ops->device->upload(sum.data, &start, sizeof start);
    ops->hash_bytes((uint64_t *)(void *)sum.data, x.data, bytes);
    ops->device->download(&got, sum.data, sizeof got);
    CHECK(got == want, "%s, hash_bytes of %lld: %llx, the CPU has %llx", ops->name, (long long)bytes,
          (unsigned long long)got, (unsigned long long)want);
    CHECK(guarded_intact(&x) && guarded_intact(&sum), "%s, hash_bytes: bytes outside a buffer were written",
          ops->name);
    guarded_free(&x);
    guarded_free(&sum);
    free(values);
}

/* ---- AdamW ---- */

enum { MASTER, M, V, GRADS, N_ARRAYS };
static const char *const array_names[N_ARRAYS] = {"master", "m", "v", "grads"};

typedef struct AdamWCase {
    int64_t n;
    float *array[N_ARRAYS];       /* on the host: before, then after */
    float *weights;               /* after */
    StepStats stats;              /* before, then after */
    AdamWArgs args;               /* scalars and groups */
    int32_t *tile_groups, *tiles; /* tiles: those that are updated; all where not shared */
    bool shared;                  /* weights are the same buffer as master */
} AdamWCase;

/* n is rounded up to tiles. Groups of tiles by turns: one that decays, one that does not and is slower. Where the buffer is
 * shared, every third tile is another optimizer's. */
static AdamWCase adamw_case(int64_t n, float clip, bool bad, bool shared) {
    const int64_t n_tiles = (n + PARAMETER_TILE - 1) / PARAMETER_TILE;
    AdamWCase c = {.shared = shared};
    c.n = n = n_tiles * PARAMETER_TILE;
    c.stats = (StepStats){.loss = 1, .grad_norm = 4, .bad = bad, .n_skipped = 2};
    c.args.update =
        (UpdateArgs){.step = 5, .lr = NAN, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .clip = clip};
    c.args.groups[0] = (AdamWGroup){1e-3f, 0.1f};
    c.args.groups[1] = (AdamWGroup){5e-4f, 0};
    c.tile_groups = op_malloc((size_t)n_tiles * sizeof *c.tile_groups);
    c.tiles = op_malloc((size_t)n_tiles * sizeof *c.tiles);
    for (int64_t i = 0; i < n_tiles; i++) {
        c.tile_groups[i] = (int32_t)(i % 3 % 2);
        if (!shared || i % 3 != 2) c.tiles[c.args.n_tiles++] = (int32_t)i;
    }
    for (int k = 0; k < N_ARRAYS; k++) {
        c.array[k] = op_malloc((size_t)n * sizeof(float));
        for (int64_t i = 0; i < n; i++)
            c.array[k][i] = (k == MASTER ? 0.02f : 0.1f) * op_normal((uint64_t)k, i);
    }
    for (int64_t i = 0; i < n; i++) c.array[V][i] *= c.array[V][i];
    for (int64_t i = 0; i < n; i += 11) c.array[GRADS][i] = c.array[M][i] = c.array[V][i] = 0;
    c.weights = op_malloc((size_t)n * sizeof(float));
    return c;
}

static void adamw_free(AdamWCase *c) {
    for (int k = 0; k < N_ARRAYS; k++) free(c->array[k]);
    free(c->weights);
    free(c->tile_groups);
    free(c->tiles);
}

/* Runs the case on ops; what it leaves replaces what it started from. */
static void adamw_on(const Ops *ops, AdamWCase *c) {
    Guarded g[N_ARRAYS], weights, stats, groups, tiles;
    const size_t group_bytes = (size_t)(c->n / PARAMETER_TILE) * sizeof *c->tile_groups,
                 tiles_bytes = (size_t)c->args.n_tiles * sizeof *c->tiles;
    const size_t bytes = (size_t)c->n * sizeof(float);
    bool ok = guarded_alloc(&weights, ops, (size_t)c->n * dtype_bytes(ops->dtype), 16);
    ok = guarded_alloc(&stats, ops, sizeof c->stats, 0) && ok;
    ok = guarded_alloc(&groups, ops, group_bytes, 4) && ok;
    ok = guarded_alloc(&tiles, ops, tiles_bytes, 4) && ok;
    for (int k = 0; k < N_ARRAYS; k++) ok = guarded_alloc(&g[k], ops, bytes, 16) && ok;
    if (!CHECK(ok, "%s: device memory", ops->name)) return;
    for (int k = 0; k < N_ARRAYS; k++) ops->device->upload(g[k].data, c->array[k], bytes);
    upload_floats(ops, weights.data, ops->dtype, c->array[MASTER], c->n);
    ops->device->upload(stats.data, &c->stats, sizeof c->stats);
    ops->device->upload(groups.data, c->tile_groups, group_bytes);
    ops->device->upload(tiles.data, c->tiles, tiles_bytes);
    AdamWArgs args = c->args;
    args.tile_groups = (int32_t *)(void *)groups.data;
    args.tiles = c->shared ? (int32_t *)(void *)tiles.data : NULL;
    args.master = (float *)(void *)g[MASTER].data;
    args.m = (float *)(void *)g[M].data;
    args.v = (float *)(void *)g[V].data;
    args.grads = (float *)(void *)g[GRADS].data;
    args.weights = c->shared ? g[MASTER].data : weights.data;
    args.stats = (StepStats *)(void *)stats.data;
    ops->adamw(&args);
    for (int k = 0; k < N_ARRAYS; k++) ops->device->download(c->array[k], g[k].data, bytes);
    download_floats(ops, c->weights, args.weights, ops->dtype, c->n);
    ops->device->download(&c->stats, stats.data, sizeof c->stats);
    for (int k = 0; k < N_ARRAYS; k++) {
        CHECK(guarded_intact(&g[k]), "%s, adamw: bytes outside %s were written", ops->name, array_names[k]);
        guarded_free(&g[k]);
    }
    CHECK(guarded_intact(&weights) && guarded_intact(&stats) && guarded_intact(&groups) &&
              guarded_intact(&tiles),
          "%s, adamw: bytes outside a buffer were written", ops->name);
    guarded_free(&weights);
    guarded_free(&stats);
    guarded_free(&groups);
    guarded_free(&tiles);
}

/* Against the oracle: the step made (not the weight, in which a wrong step drowns), m and v; weights are
 * exactly the rounded master. */
static void test_adamw(const Ops *ops, int64_t n, float clip, bool shared) {
    AdamWCase before = adamw_case(n, clip, false, shared), want = adamw_case(n, clip, false, shared);
    AdamWCase got = adamw_case(n, clip, false, shared);
    n = before.n;
    adamw_on(&ops_cpu, &want);
    adamw_on(ops, &got);
    int64_t not_rounded = 0, grads_changed = 0;
    for (int64_t i = 0; i < n; i++) {
        not_rounded += got.weights[i] != round_to(ops->dtype, got.array[MASTER][i]);
        grads_changed += got.array[GRADS][i] != before.array[GRADS][i];
        want.array[MASTER][i] -= before.array[MASTER][i];
        got.array[MASTER][i] -= before.array[MASTER][i];
    }
    for (int k = MASTER; k <= V; k++) {
        Deviation d = compare_floats(got.array[k], want.array[k], n);
        CHECK(within(d, (Limits){FP32_LIMIT, FP32_LIMIT}),
              "%s, adamw of %lld, clip %g: %s: error %.2e, largest %.2e", ops->name, (long long)n,
              (double)clip, array_names[k], d.norm, d.max);
    }
    CHECK(not_rounded == 0, "%s, adamw: %lld weights are not the rounded master", ops->name,
          (long long)not_rounded);
    CHECK(grads_changed == 0, "%s, adamw: %lld gradients changed", ops->name, (long long)grads_changed);
    CHECK(got.stats.n_skipped == 2 && got.stats.bad == 0 && got.stats.grad_norm == 4,
          "%s, adamw: statistics changed", ops->name);
    adamw_free(&before);
    adamw_free(&want);
    adamw_free(&got);
}

/* A bad step changes no bit, whatever the gradients hold. */
static void test_bad_adamw(const Ops *ops, bool shared) {
    enum { n = 10007 };
    AdamWCase before = adamw_case(n, 1, true, shared), after = adamw_case(n, 1, true, shared);
    for (int i = 0; i < n; i += 3) before.array[GRADS][i] = after.array[GRADS][i] = i % 2 ? NAN : INFINITY;
    before.stats.grad_norm = after.stats.grad_norm = NAN;
    adamw_on(ops, &after);
    for (int k = 0; k < N_ARRAYS; k++)
        CHECK(memcmp(before.array[k], after.array[k], n * sizeof(float)) == 0,
              "%s, adamw, bad step: %s changed", ops->name, array_names[k]);
    int64_t changed = 0;
    for (int i = 0; i < n; i++) changed += after.weights[i] != round_to(ops->dtype, before.array[MASTER][i]);
    CHECK(changed == 0, "%s, adamw, bad step: %lld weights changed", ops->name, (long long)changed);
    CHECK(memcmp(&after.stats, &before.stats, sizeof before.stats) == 0,
          "%s, adamw, bad step: statistics changed", ops->name);
    adamw_free(&before);
    adamw_free(&after);
}

/* Ties, values that overflow bf16, signed zeros, denormals: rounded to nearest even, bit by bit. */
static void test_weights_from_master(const Ops *ops) {
    enum { n = 10007 };
    static float master[n], got[n];
    Guarded from, to;
    for (int i = 0; i < n; i++) master[i] = op_normal(5, i);
    for (int i = 0; i < 4000; i++) master[i] = ldexpf(1.0f + (float)i * 0x1p-9f, i % 200 - 100);
    const float special[] = {0.0f, -0.0f, 3.4e38f, -3.4e38f, 1e-40f, 0x1.fffffep127f, INFINITY};
    memcpy(master + 5000, special, sizeof special);
    bool ok = guarded_alloc(&from, ops, sizeof master, 16);
    ok = guarded_alloc(&to, ops, n * dtype_bytes(ops->dtype), 16) && ok;
    if (!CHECK(ok, "%s: device memory", ops->name)) return;
    ops->device->upload(from.data, master, sizeof master);
    ops->weights_from_master(to.data, (float *)(void *)from.data, n);
    download_floats(ops, got, to.data, ops->dtype, n);
    for (int i = 0; i < n; i++) {
        float want = round_to(ops->dtype, master[i]);
        if (!CHECK(memcmp(&got[i], &want, sizeof want) == 0,
                   "%s, weights_from_master: %a became %a, expected %a", ops->name, (double)master[i],
                   (double)got[i], (double)want))
            break;
    }
    CHECK(guarded_intact(&from) && guarded_intact(&to), "%s, weights_from_master: bytes outside were written",
          ops->name);
    guarded_free(&from);
    guarded_free(&to);
}

/* ---- the queue ---- */

/* A readback on the side stream between two events: behind what the main stream had queued, before what it writes then.
 * The time between two timestamps is a part of the host's. */
static void test_queue(const Ops *ops) {
    const size_t bytes = (size_t)256 << 20;
    char *from = ops->device->alloc(bytes), *to = ops->device->alloc(bytes);
    if (!CHECK(from && to, "%s: device memory", ops->name)) return;
    const double begun = clock_seconds();
    int before = 1, after = 2, got = 0;
    ops->device->upload(from, &before, sizeof before);
    ops->device->readback_begin(0, STREAM_MAIN, from, sizeof before);
    ops->device->readback_end(0, &got, sizeof got);
    CHECK(got == before, "%s: read back %d, expected %d", ops->name, got, before);
    ops->device->timestamp(0);
    for (int i = 0; i < 100; i++) ops->device->copy(to, from, bytes);
    ops->device->upload(from, &after, sizeof after);
    ops->device->event_record(EVENT_STATS_FINAL, STREAM_MAIN);
    ops->device->stream_wait(STREAM_SIDE, EVENT_STATS_FINAL);
    ops->device->readback_begin(0, STREAM_SIDE, from, sizeof after);
    ops->device->event_record(EVENT_STATS_READ, STREAM_SIDE);
    ops->device->stream_wait(STREAM_MAIN, EVENT_STATS_READ);
    ops->device->zero(from, bytes);
    ops->device->timestamp(1);
    ops->device->readback_end(0, &got, sizeof got);
    CHECK(got == after, "%s: read back %d behind a long queue, expected %d", ops->name, got, after);
    const double seconds = ops->device->seconds_between(0, 1), elapsed = clock_seconds() - begun;
    const double least = 100 * 2 * (double)bytes / 20e12; /* no card copies 20 TB/s */
    CHECK(seconds > least && seconds < elapsed, "%s: %g s between two timestamps, %g s on the host",
          ops->name, seconds, elapsed);
    ops->device->free(from);
    ops->device->free(to);
}

/* Of the cards whose data sheets say it: 989 TFLOP/s in bf16, 67 in fp32, at a clock that a card may pass by 10 %. */
static void test_peak(const Ops *ops) {
    const char *how;
    const double peak = ops->device->peak_flops(ops->dtype, &how),
                 sheet = ops->dtype == DTYPE_BF16 ? 989e12 : 67e12;
    if (!strstr(ops->device->name(), "H200") && !strstr(ops->device->name(), "H100 80GB HBM3")) return;
    CHECK(peak > 0.9 * sheet && peak < 1.2 * sheet, "%s: peak %g FLOP/s, the data sheet says %g", ops->name,
          peak, sheet);
}

static void test_backend(const Ops *ops) {
    test_queue(ops);
    test_peak(ops);
    const int64_t sizes[] = {1,      5, 1003, 1 << 20, (1 << 20) + 3,
                             9000005}; /* the last: more than all blocks at once */
    for (int i = 0; i < 6; i++) {
        test_statistics(ops, sizes[i]);
        test_adamw(ops, sizes[i], 1, false);
        test_hash_bytes(ops, sizes[i]);
    }
    test_bad_statistics(ops, NAN);
    test_bad_statistics(ops, INFINITY);
    test_bad_statistics(ops, -INFINITY);
    test_adamw(ops, 10007, 0, false);   /* no clipping */
    test_adamw(ops, 10007, 100, false); /* above the norm */
    test_bad_adamw(ops, false);
    if (ops->dtype == DTYPE_F32) {
        test_adamw(ops, 10007, 1, true);
        test_bad_adamw(ops, true);
    }
    test_weights_from_master(ops);
}

int main(int argc, char **argv) {
    return op_main("ops_update", argc, argv, test_backend);
}
