/* What ranks do together (llmc/model/comm.h), by processes of this host: over sockets, 1 to 4 on the CPU; over NCCL where
 * there are two cards. Every call against a plain computation, at odd sizes, with guard bands.
 *
 *   build/test_comm_ranks time    NCCL's calls on two cards: time and rate, queued one by one and in a graph; memory. `time light`:
 *                                 of the Comm that leaves gradients and weights to copies */
#include <fcntl.h>
#include "dev/test/comm_case.h"

static void test_sockets(void) {
    for (int n = 1; n <= 4; n++) {
        const Case c = {.device = &device_cpu, .n_members = n, .is_large = n == 2 || n == 3};
        run_ranks(n, calls_of_rank, &c, NULL);
    }
    const Case pairs = {.device = &device_cpu, .n_members = 2};
    run_ranks(4, calls_of_rank, &pairs, NULL);
}

/* The order of additions shows in the data; else the tests above could not see it. */
static void test_order_shows(void) {
    int64_t differ = 0;
    float size;
    for (int64_t i = 0; i < 1024; i++)
        differ += sum_of(0, 3, i, &size) != number(2, i) + number(1, i) + number(0, i);
    REQUIRE(differ > 100, "%lld of 1024 sums have other bits in another order", (long long)differ);
}

/* ---- a rank that is gone ---- */

#define SAID "build/test_comm_ranks.said"

/* Rank 1 ends without a word in the middle of a call; the others say so and end. */
static void leave_alone(Rendezvous *r, const void *context) {
    const Case *c = context;
    Error err = {0};
    Comm *comm = open_comm(c, r, &err);
    float *x = calloc(LARGE, 3 * sizeof *x);
    if (!REQUIRE(comm && x, "%s", err.text)) return;
    if (r->ranks.rank == 1) _exit(0);
    const int said = open(SAID, O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(said, STDERR_FILENO);
    comm->reduce_scatter(comm, STREAM_MAIN, x, LARGE);
    CHECK(false, "rank %d goes on alone", r->ranks.rank);
}

static void test_lost_rank(void) {
    const Case c = {.device = &device_cpu, .n_members = 2};
    int statuses[2];
    char said[2000] = "";
    remove(SAID);
    run_ranks(2, leave_alone, &c, statuses);
    FILE *file = fopen(SAID, "r");
    if (file) said[fread(said, 1, sizeof said - 1, file)] = '\0';
    if (file) fclose(file);
    remove(SAID);
    CHECK(WIFEXITED(statuses[0]) && WEXITSTATUS(statuses[0]) == 1, "rank 0 ends with %x", statuses[0]);
    CHECK(strstr(said, "rank 1 (") && strstr(said, "lost in reduce_scatter") &&
              strchr(said, '\n') == said + strlen(said) - 1,
          "not one line: %s", said);
}

/* ---- two cards ---- */

static const Device *card(void) {
    return ops_cuda_fp32 ? ops_cuda_fp32->device : NULL;
}

/* In a process of its own, because a card does not survive a fork. */
static bool is_here(bool (*thing)(void)) {
    int status = -1;
    const pid_t child = fork();
    if (child == 0) _exit(!thing());
    return waitpid(child, &status, 0) == child && status == 0;
}

static bool two_cards(void) {
    Error err = {0};
    return card() && cuda_available() && card()->open(1, &err);
}

static void test_nccl(void) {
    if (!is_here(two_cards)) {
        SKIP("NCCL: this machine has no two cards");
        return;
    }
    const Case c = {.device = card(), .n_members = 2, .is_nccl = true, .is_large = true};
    run_ranks(2, calls_of_rank, &c, NULL);
}

/* ---- times ---- */

typedef void (*Call)(Comm *comm, void *x, void *y, int64_t bytes);

static void time_reduce_scatter(Comm *comm, void *x, void *y, int64_t bytes) {
    (void)y;
    comm->reduce_scatter(comm, STREAM_SIDE, x, bytes / comm->ranks.n_ranks / 4);
}

static void time_all_gather(Comm *comm, void *x, void *y, int64_t bytes) {
    (void)y;
    comm->all_gather(comm, STREAM_SIDE, x, bytes / comm->ranks.n_ranks / 2, DTYPE_BF16);
}

static void time_all_to_all(Comm *comm, void *x, void *y, int64_t bytes) {
    comm->all_to_all(comm, STREAM_SIDE, y, x, bytes / comm->ranks.n_ranks);
}

static const struct {
    const char *name;
    Call call;
} timed[] = {
    {"reduce_scatter", time_reduce_scatter},
    {"all_gather",     time_all_gather    },
    {"all_to_all",     time_all_to_all    },
};
enum { CALLS = 20 };

/* CALLS of them on the side stream, from the main stream and back to it. */
static void queue_calls(const Device *device, Comm *comm, Call call, void *x, void *y, int64_t bytes) {
    device->event_record(EVENT_GRADS_FINAL, STREAM_MAIN);
    device->stream_wait(STREAM_SIDE, EVENT_GRADS_FINAL);
    for (int i = 0; i < CALLS; i++) call(comm, x, y, bytes);
    device->event_record(EVENT_GRADS_REDUCED, STREAM_SIDE);
    device->stream_wait(STREAM_MAIN, EVENT_GRADS_REDUCED);
}

/* Microseconds a call: the least of three; captured, the graph is launched. */
static double microseconds(const Device *device, Comm *comm, Call call, void *x, void *y, int64_t bytes,
                           bool captured) {
    Graph *graph = NULL;
    double best = INFINITY;
    if (captured) {
        if (!device->capture_begin()) return NAN;
        queue_calls(device, comm, call, x, y, bytes);
        if (!(graph = device->capture_end())) return NAN;
    }
    for (int i = 0; i < 4; i++) {
        device->timestamp(2 * i);
        if (graph)
            device->graph_launch(graph);
        else
            queue_calls(device, comm, call, x, y, bytes);
        device->timestamp(2 * i + 1);
        device->synchronize();
        const double us = device->seconds_between(2 * i, 2 * i + 1) * 1e6 / CALLS;
        if (i > 0 && us < best) best = us;
    }
    device->graph_free(graph);
    return best;
}

/* GB/s: what leaves and enters a card in one direction, so the whole less the own part. */
static void times_of_rank(Rendezvous *r, const void *context) {
    static const int64_t sizes[] = {2, 28, 157, 498}; /* MB in all */
    const Case *c = context;
    const Device *device = c->device;
    size_t before, opened, after, total;
    Error err = {0};
    if (!device->open(r->ranks.rank, &err)) die(&err);
    void *x = device->alloc(512 << 20), *y = device->alloc(512 << 20);
    device->memory_info(&before, &total);
    Comm *comm = open_comm(c, r, &err);
    if (!comm || !x || !y) die(&err);
    device->memory_info(&opened, &total);
    device->zero(x, 512 << 20);
    device->zero(y, 512 << 20);
    device->synchronize();
    for (size_t k = 0; k < sizeof timed / sizeof *timed; k++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            const int64_t bytes = sizes[i] * 1000000 / 4096 * 4096;
            const double moved = (double)bytes * (c->n_members - 1) / c->n_members;
            const double queued = microseconds(device, comm, timed[k].call, x, y, bytes, false);
            const double graph = microseconds(device, comm, timed[k].call, x, y, bytes, true);
            if (r->ranks.rank == 0)
                printf("%-15s %4lld MB %9.1f us %7.1f GB/s   in a graph %9.1f us %7.1f GB/s\n", timed[k].name,
                       (long long)sizes[i], queued, moved / queued * 1e-3, graph, moved / graph * 1e-3);
        }
    device->memory_info(&after, &total);
    if (r->ranks.rank == 0)
        printf("%s\n%.1f MB of device memory for one Comm when it is opened, %.1f MB after these calls\n",
               comm_nccl_description(), (double)(before - opened) / 1e6, (double)(before - after) / 1e6);
    comm_close(comm);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "time") == 0) {
        if (!is_here(two_cards)) return printf("no two cards\n"), 1;
        const Case c = {
            .device = card(), .n_members = 2, .is_nccl = true, .load = argc > 2 ? NCCL_LIGHT : NCCL_HEAVY};
        run_ranks(2, times_of_rank, &c, NULL);
        return check_failed != 0;
    }
    test_order_shows();
    test_sockets();
    test_lost_rank();
    test_nccl();
    return check_finish("comm ranks");
}
