/* The calls of a Comm (llmc/model/comm.h) by forked ranks of this host, whatever carries them: each against a plain
 * computation, at odd sizes, with guard bands. */
#pragma once
#include <string.h>
#include <unistd.h>
#include "llmc/comm/transport.h"
#include "llmc/model/ops.h"
#include "ranks_case.h"

enum {
    GUARD = 768 /* shared out evenly by 1 to 4 ranks */,
    LARGE = 2100001 /* floats: more than sockets hold, no multiple of a piece */
};

typedef struct Case {
    const Device *device;
    int n_members; /* of a group: neighbours */
    bool is_nccl;  /* else sockets */
    NcclLoad load;
    bool is_large; /* with sizes that take their time */
} Case;

static Comm *open_comm(const Case *c, Rendezvous *r, Error *err) {
    return c->is_nccl ? comm_nccl_open(r, c->device, c->n_members, c->load, err)
                      : comm_sockets_open(r, c->n_members, err);
}

/* ---- buffers with guard bands ---- */

typedef struct Buffer {
    const Device *device;
    char *whole, *host; /* GUARD, bytes, GUARD; on the device and here */
    size_t bytes;
} Buffer;

static Buffer new_buffer(const Device *device, int64_t bytes) {
    const size_t whole = (size_t)bytes + 2 * GUARD;
    Buffer b = {device, device->alloc(whole), malloc(whole), (size_t)bytes};
    if (!b.whole || !b.host) abort();
    memset(b.host, 0xa5, whole);
    return b;
}

static void *on_host(const Buffer *b) {
    return b->host + GUARD;
}

static void *on_device(const Buffer *b) {
    return b->whole + GUARD;
}

/* To the device; what is queued on the side stream comes behind it. */
static void send_buffer(const Buffer *b) {
    b->device->upload(b->whole, b->host, b->bytes + 2 * GUARD);
    b->device->event_record(EVENT_GRADS_FINAL, STREAM_MAIN);
    b->device->stream_wait(STREAM_SIDE, EVENT_GRADS_FINAL);
}

/* Back, behind what is queued on the side stream. */
static void fetch_buffer(const Buffer *b, const char *what) {
    int64_t wrong = 0;
    b->device->event_record(EVENT_GRADS_REDUCED, STREAM_SIDE);
    b->device->stream_wait(STREAM_MAIN, EVENT_GRADS_REDUCED);
    memset(b->host, 0, b->bytes + 2 * GUARD);
    b->device->download(b->host, b->whole, b->bytes + 2 * GUARD);
    for (size_t i = 0; i < GUARD; i++)
        wrong += b->host[i] != (char)0xa5 || b->host[GUARD + b->bytes + i] != (char)0xa5;
    CHECK(wrong == 0, "%s writes %lld bytes beside its buffer", what, (long long)wrong);
}

static void free_buffer(const Buffer *b) {
    b->device->free(b->whole);
    free(b->host);
}

/* ---- what the ranks have ---- */

static uint32_t hashed(int64_t a, int64_t b) {
    uint64_t x = (uint64_t)a * 0x9e3779b97f4a7c15u + (uint64_t)b * 0xbf58476d1ce4e5b9u + 1;
    x = (x ^ x >> 31) * 0x94d049bb133111ebu;
    return (uint32_t)(x >> 32);
}

/* Of many magnitudes, so that another order of additions gives other bits. */
static float number(int rank, int64_t i) {
    const uint32_t h = hashed(rank, i), sign = h >> 31, exponent = 127 - 8 + (h >> 22 & 15);
    const uint32_t bits = sign << 31 | exponent << 23 | (h & 0x3fffff) << 1;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Byte i of what `a` has: blocks of 1024 differ, too. */
static char byte_of(int a, int64_t i) {
    const uint32_t block = (uint32_t)(i >> 10) * 0x9e3779b1u + (uint32_t)a * 0x85ebca6bu;
    return (char)((block >> 24) + (uint32_t)i * 37);
}

/* x[0..n) is what `a` has from `first` on. */
static void put_bytes(char *x, int a, int64_t first, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = byte_of(a, first + i);
}

static int64_t wrong_bytes(const char *x, int a, int64_t first, int64_t n) {
    int64_t wrong = 0;
    for (int64_t i = 0; i < n; i++) wrong += x[i] != byte_of(a, first + i);
    return wrong;
}

/* The sum of ranks `first` and on, n of them; *size: of the magnitudes. */
static float sum_of(int first, int n, int64_t i, float *size) {
    float sum = number(first, i);
    *size = fabsf(sum);
    for (int m = 1; m < n; m++) {
        sum += number(first + m, i);
        *size += fabsf(number(first + m, i));
    }
    return sum;
}

/* ---- the calls on the device ---- */

typedef struct Group {
    Comm *comm;
    const Device *device;
    int first;   /* the group's first rank */
    int rank, n; /* within the group */
} Group;

/* Whether x is the sum of n numbers whose magnitudes add up to `size`, in whatever order: each of the n - 1 additions is
 * within 2^-24 of a part of `size`, in x and in `sum`. */
static bool is_sum(float x, float sum, float size, int n) {
    return fabsf(x - sum) <= 2 * (float)(n - 1) * 0x1p-24f * size;
}

/* Over sockets the order of the sum is promised; NCCL's is its own, of two the same. */
static void test_reduce_scatter(const Group *g, int64_t n) {
    const Buffer b = new_buffer(g->device, g->n * n * 4);
    const bool exact = g->device == &device_cpu || g->n <= 2;
    float *x = on_host(&b), size;
    int64_t wrong = 0;
    for (int64_t i = 0; i < g->n * n; i++) x[i] = number(g->first + g->rank, i);
    send_buffer(&b);
    g->comm->reduce_scatter(g->comm, STREAM_SIDE, on_device(&b), n);
    g->comm->reduce_scatter_end(g->comm, STREAM_SIDE);
    fetch_buffer(&b, "reduce_scatter");
    for (int64_t i = g->rank * n; i < (g->rank + 1) * n; i++) {
        const float sum = sum_of(g->first, g->n, i, &size);
        wrong += exact ? x[i] != sum : !is_sum(x[i], sum, size, g->n);
    }
    CHECK(wrong == 0, "reduce_scatter of %lld: %lld wrong on rank %d of %d", (long long)n, (long long)wrong,
          g->rank, g->n);
    free_buffer(&b);
}

static void test_all_gather(const Group *g, int64_t n, DType dtype) {
    const int64_t bytes = n * (int64_t)dtype_bytes(dtype);
    const Buffer b = new_buffer(g->device, g->n * bytes);
    char *x = on_host(&b);
    int64_t wrong = 0;
    put_bytes(x + g->rank * bytes, g->first + g->rank, g->rank * bytes, bytes);
    send_buffer(&b);
    g->comm->all_gather(g->comm, STREAM_SIDE, on_device(&b), n, dtype);
    g->comm->all_gather_end(g->comm, STREAM_SIDE);
    fetch_buffer(&b, "all_gather");
    for (int m = 0; m < g->n; m++) wrong += wrong_bytes(x + m * bytes, g->first + m, m * bytes, bytes);
    CHECK(wrong == 0, "all_gather of %lld: %lld bytes wrong on rank %d of %d", (long long)n, (long long)wrong,
          g->rank, g->n);
    free_buffer(&b);
}

/* Who has the bytes that member `from` has for member `to`. */
static int pair(const Group *g, int from, int to) {
    return (g->first + from) * 16 + g->first + to;
}

static void test_all_to_all(const Group *g, int64_t bytes) {
    const Buffer in = new_buffer(g->device, g->n * bytes), out = new_buffer(g->device, g->n * bytes);
    char *x = on_host(&in), *y = on_host(&out);
    int64_t wrong = 0, changed = 0;
    for (int m = 0; m < g->n; m++) put_bytes(x + m * bytes, pair(g, g->rank, m), 0, bytes);
    send_buffer(&out);
    send_buffer(&in);
    g->comm->all_to_all(g->comm, STREAM_SIDE, on_device(&out), on_device(&in), bytes);
    fetch_buffer(&in, "all_to_all's input");
    fetch_buffer(&out, "all_to_all");
    for (int m = 0; m < g->n; m++) {
        wrong += wrong_bytes(y + m * bytes, pair(g, m, g->rank), 0, bytes);
        changed += wrong_bytes(x + m * bytes, pair(g, g->rank, m), 0, bytes);
    }
    CHECK(wrong == 0 && changed == 0,
          "all_to_all of %lld: %lld bytes wrong, %lld of its input, on rank %d of %d", (long long)bytes,
          (long long)wrong, (long long)changed, g->rank, g->n);
    free_buffer(&in);
    free_buffer(&out);
}

static int64_t integer(int rank, int64_t i) {
    return (int64_t)((uint64_t)hashed(rank, i) << 28) * (i % 2 ? 1 : -1) + i; /* sums stay below 2^63 */
}

/* On the main stream, where the others are on the side stream. */
static void test_sum_int64(const Group *g, int64_t n) {
    const Buffer b = new_buffer(g->device, n * 8);
    int64_t *x = on_host(&b), wrong = 0;
    for (int64_t i = 0; i < n; i++) x[i] = integer(g->first + g->rank, i);
    send_buffer(&b);
    g->comm->sum_int64(g->comm, STREAM_MAIN, on_device(&b), n);
    fetch_buffer(&b, "sum_int64");
    for (int64_t i = 0; i < n; i++) {
        int64_t sum = 0;
        for (int m = 0; m < g->n; m++) sum += integer(g->first + m, i);
        wrong += x[i] != sum;
    }
    CHECK(wrong == 0, "sum_int64 of %lld: %lld wrong on rank %d of %d", (long long)n, (long long)wrong,
          g->rank, g->n);
    free_buffer(&b);
}

/* A step's calls in one graph, on the side stream between two waits, run again and again: at its end every rank has the
 * sum of all parts, each time from what it was given before. */
static void test_graph(const Group *g, int64_t n) {
    const Device *device = g->device;
    const Buffer b = new_buffer(device, g->n * n * 4);
    float *x = on_host(&b), size;
    int64_t wrong = 0;
    if (!device->capture_begin()) {
        free_buffer(&b);
        return;
    }
    device->event_record(EVENT_GRADS_FINAL, STREAM_MAIN);
    device->stream_wait(STREAM_SIDE, EVENT_GRADS_FINAL);
    g->comm->reduce_scatter(g->comm, STREAM_SIDE, on_device(&b), n);
    g->comm->reduce_scatter_end(g->comm, STREAM_SIDE);
    g->comm->all_gather(g->comm, STREAM_SIDE, on_device(&b), n, DTYPE_F32);
    g->comm->all_gather_end(g->comm, STREAM_SIDE);
    device->event_record(EVENT_GRADS_REDUCED, STREAM_SIDE);
    device->stream_wait(STREAM_MAIN, EVENT_GRADS_REDUCED);
    Graph *graph = device->capture_end();
    if (!CHECK(graph != NULL, "the calls are not captured")) return;
    for (int again = 0; again < 3; again++) {
        for (int64_t i = 0; i < g->n * n; i++) x[i] = number(g->first + g->rank, i + again);
        send_buffer(&b);
        device->graph_launch(graph);
        fetch_buffer(&b, "a graph of calls");
        for (int64_t i = 0; i < g->n * n; i++) {
            const float sum = sum_of(g->first, g->n, i + again, &size);
            wrong += !is_sum(x[i], sum, size, g->n);
        }
    }
    CHECK(wrong == 0, "in a graph %lld are wrong", (long long)wrong);
    device->graph_free(graph);
    free_buffer(&b);
}

/* ---- attached memory ---- */

enum { RANGES = 20, HOLE = 7 }; /* nothing is exchanged of range HOLE */
typedef struct Attached {
    Buffer grads, weights;
    int64_t begin[RANGES + 1]; /* elements, of both */
} Attached;

/* What a step does with gradients: range by range on the side stream, from the last on, and the end on the main one. */
static void reduce_ranges(const Group *g, const Attached *a, bool pauses) {
    const Device *device = g->device;
    float *grads = on_device(&a->grads);
    for (int k = RANGES - 1; k >= 0; k--) {
        if (k == HOLE) continue;
        if (pauses) usleep(300);
        device->event_record(EVENT_GRADS_FINAL, STREAM_MAIN);
        device->stream_wait(STREAM_SIDE, EVENT_GRADS_FINAL);
        g->comm->reduce_scatter(g->comm, STREAM_SIDE, grads + a->begin[k],
                                (a->begin[k + 1] - a->begin[k]) / g->n);
    }
    device->event_record(EVENT_GRADS_REDUCED, STREAM_SIDE);
    device->stream_wait(STREAM_MAIN, EVENT_GRADS_REDUCED);
    g->comm->reduce_scatter_end(g->comm, STREAM_MAIN);
}

static void gather_ranges(const Group *g, const Attached *a) {
    for (int k = 0; k < RANGES; k++)
        if (k != HOLE)
            g->comm->all_gather(g->comm, STREAM_SIDE, (char *)on_device(&a->weights) + 2 * a->begin[k],
                                (a->begin[k + 1] - a->begin[k]) / g->n, DTYPE_BF16);
    g->comm->all_gather_end(g->comm, STREAM_SIDE);
}

static void fill_attached(const Group *g, const Attached *a, int again) {
    float *x = on_host(&a->grads);
    for (int64_t i = 0; i < a->begin[RANGES]; i++) x[i] = number(g->first + g->rank, i + again);
    put_bytes(on_host(&a->weights), g->first + g->rank, again, 2 * a->begin[RANGES]);
    send_buffer(&a->weights);
    send_buffer(&a->grads);
}

/* The bytes of weights that are not what every member brought of its part. */
static int64_t wrong_weights(const Group *g, const Attached *a, int again) {
    const char *w = on_host(&a->weights);
    int64_t wrong = 0;
    for (int k = 0; k < RANGES; k++) {
        const int64_t begin = 2 * a->begin[k], part = (2 * a->begin[k + 1] - begin) / g->n;
        for (int m = 0; k != HOLE && m < g->n; m++)
            wrong += wrong_bytes(w + begin + m * part, g->first + m, begin + m * part + again, part);
    }
    return wrong;
}

static void check_attached(const Group *g, const Attached *a, int again) {
    const float *x = on_host(&a->grads);
    const bool exact = g->n <= 2 || !g->device->is_async; /* NCCL's order is its own */
    const int64_t weights = wrong_weights(g, a, again);
    int64_t wrong = 0;
    float size;
    for (int k = 0; k < RANGES; k++) {
        const int64_t begin = a->begin[k], part = (a->begin[k + 1] - begin) / g->n;
        if (k == HOLE) continue;
        for (int64_t i = begin + g->rank * part; i < begin + (g->rank + 1) * part; i++) {
            const float sum = sum_of(g->first, g->n, i + again, &size);
            wrong += exact ? x[i] != sum : !is_sum(x[i], sum, size, g->n);
        }
    }
    CHECK(wrong == 0 && weights == 0,
          "step %d: of attached memory %lld sums are wrong, %lld bytes of weights", again, (long long)wrong,
          (long long)weights);
}

/* Gathers alone: a slow rank still reads what the last one brought. */
static void gather_again(const Group *g, const Attached *a) {
    for (int again = 10; again < 14; again++) {
        put_bytes(on_host(&a->weights), g->first + g->rank, again, 2 * a->begin[RANGES]);
        send_buffer(&a->weights);
        gather_ranges(g, a);
        if (again % g->n == g->rank) usleep(5000);
        fetch_buffer(&a->weights, "a gather by itself");
        const int64_t wrong = wrong_weights(g, a, again);
        CHECK(wrong == 0, "gather %d: %lld bytes of weights are wrong", again, (long long)wrong);
    }
}

/* Steps over attached memory, each rank at its own pace; the gradients' calls queued one by one, then in a graph. */
static void test_attached(const Group *g) {
    const Device *device = g->device;
    Attached a = {.begin = {0}};
    Graph *graph = NULL;
    for (int k = 0; k < RANGES; k++) { /* layers are alike */
        const int64_t part = k == 0 ? 9000 : k == RANGES - 1 ? 40 : 4000;
        a.begin[k + 1] = a.begin[k] + part * g->n;
    }
    a.grads = new_buffer(device, 4 * a.begin[RANGES]);
    a.weights = new_buffer(device, 2 * a.begin[RANGES]);
    g->comm->attach(g->comm, (float *)a.grads.whole, (int64_t)(a.grads.bytes + 2 * GUARD) / 4,
                    a.weights.whole, a.weights.bytes + 2 * GUARD);
    for (int again = 0; again < 6; again++) {
        if (again == 3 && device->capture_begin()) {
            reduce_ranges(g, &a, false);
            graph = device->capture_end();
            CHECK(graph != NULL, "the calls are not captured");
        }
        fill_attached(g, &a, again);
        usleep((useconds_t)((g->rank + again) % g->n) * 5000);
        if (graph)
            device->graph_launch(graph);
        else
            reduce_ranges(g, &a, again % g->n == g->rank);
        gather_ranges(g, &a);
        fetch_buffer(&a.weights, "all_gather of attached memory");
        fetch_buffer(&a.grads, "reduce_scatter of attached memory");
        check_attached(g, &a, again);
    }
    gather_again(g, &a);
    device->graph_free(graph);
    g->comm->detach(g->comm);
    free_buffer(&a.weights);
    free_buffer(&a.grads);
}

/* ---- the calls on the host ---- */

static void test_host_sums(const Group *g, int64_t n) {
    double *x = malloc((size_t)n * sizeof *x);
    int64_t wrong = 0;
    for (int64_t i = 0; i < n; i++) x[i] = number(g->first + g->rank, i) / 3.0;
    g->comm->sum_on_host(g->comm, x, n);
    for (int64_t i = 0; i < n; i++) {
        double sum = number(g->first, i) / 3.0;
        for (int m = 1; m < g->n; m++) sum += number(g->first + m, i) / 3.0;
        wrong += x[i] != sum;
    }
    CHECK(wrong == 0, "sum_on_host of %lld: %lld wrong", (long long)n, (long long)wrong);
    free(x);
}

/* Of every member, in their order; a byte beyond them stays. */
static void test_host_gather(const Group *g, int64_t bytes) {
    char *mine = malloc((size_t)bytes), *all = malloc((size_t)(g->n * bytes + 1));
    int64_t wrong = 0;
    all[g->n * bytes] = 'g';
    put_bytes(mine, g->first + g->rank, 0, bytes);
    g->comm->gather_on_host(g->comm, all, mine, bytes);
    for (int m = 0; m < g->n; m++) wrong += wrong_bytes(all + m * bytes, g->first + m, 0, bytes);
    CHECK(wrong == 0 && all[g->n * bytes] == 'g', "gather_on_host of %lld bytes: %lld wrong",
          (long long)bytes, (long long)wrong);
    free(mine);
    free(all);
}

static void test_broadcast(const Group *g, int64_t bytes) {
    char *x = malloc((size_t)bytes);
    put_bytes(x, g->first + g->rank, 0, bytes);
    g->comm->broadcast_on_host(g->comm, x, bytes);
    const int64_t wrong = wrong_bytes(x, g->first, 0, bytes);
    CHECK(wrong == 0, "broadcast_on_host of %lld bytes: %lld wrong", (long long)bytes, (long long)wrong);
    free(x);
}

/* The members from `first` on fail, each with its own code. */
static void test_agree(const Group *g, int first) {
    Error err = {0};
    char name[16];
    const bool fails = g->rank >= first;
    if (fails) fail(&err, 10 + g->rank, "disk %d is full", g->rank);
    const bool ok = g->comm->agree(g->comm, !fails, &err);
    CHECK(ok == (first >= g->n), "rank %d thinks %d", g->rank, ok);
    if (ok || first >= g->n) return;
    snprintf(name, sizeof name, "rank %d (", g->first + first);
    CHECK(strncmp(err.text, name, strlen(name)) == 0 && strstr(err.text, "is full") &&
              err.exit_code == 10 + first,
          "rank %d has '%s', exit code %d", g->rank, err.text, err.exit_code);
}

/* ---- all calls ---- */

static void test_calls(const Group *g, bool is_large) {
    static const int64_t sizes[] = {1, 2, 3, 63, 1024, 4099, 90001, LARGE};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (sizes[i] == LARGE && !is_large) continue;
        test_reduce_scatter(g, sizes[i]);
        test_all_gather(g, sizes[i], i % 2 ? DTYPE_BF16 : DTYPE_F32);
        test_all_gather(g, sizes[i], i % 2 ? DTYPE_F32 : DTYPE_BF16);
        test_all_to_all(g, sizes[i]);
        test_sum_int64(g, sizes[i]);
    }
    if (is_large) test_all_to_all(g, 4 * LARGE);
    test_graph(g, 100003);
}

/* Those that a Comm of all ranks has. */
static void test_calls_of_all(const Group *g) {
    test_attached(g);
    test_host_sums(g, 1);
    test_host_sums(g, 20001);
    test_host_gather(g, 1);
    test_host_gather(g, 70001);
    test_broadcast(g, 1);
    test_broadcast(g, 300001);
    for (int first = 0; first <= g->n; first++) test_agree(g, first);
}

/* Two Comms of the same group, as for two streams: their calls do not mix. */
static void calls_of_rank(Rendezvous *r, const void *context) {
    const Case *c = context;
    Error err = {0};
    if (!REQUIRE(c->device->open(r->ranks.rank, &err), "%s", err.text)) exit(1);
    Group g = {.comm = open_comm(c, r, &err),
               .device = c->device,
               .first = r->ranks.rank / c->n_members * c->n_members,
               .rank = r->ranks.rank % c->n_members,
               .n = c->n_members};
    Comm *second = g.comm ? open_comm(c, r, &err) : NULL;
    if (!CHECK(second != NULL, "%s", err.text)) return;
    CHECK(g.comm->ranks.rank == g.rank && g.comm->ranks.n_ranks == g.n, "rank %d of %d", g.comm->ranks.rank,
          g.comm->ranks.n_ranks);
    CHECK(g.comm->fixed_bytes > 0, "it takes memory");
    test_calls(&g, c->is_large);
    if (g.n == r->ranks.n_ranks) test_calls_of_all(&g);
    Group other = g;
    other.comm = second;
    for (int i = 0; i < 3; i++) {
        test_all_to_all(&other, 1001);
        test_reduce_scatter(&g, 1001);
    }
    comm_close(second);
    comm_close(g.comm);
}
