/* GPUs: the calls of a Comm by NCCL, one communicator for a group. It is non-blocking, so no call of NCCL waits without
 * end: what does not come about within a time limit ends the process with a line.
 *
 * Kernels are queued on the caller's stream and may be captured into a graph. All calls are made once when the Comm is
 * opened, because their first use connects the ranks and takes memory, which a capture allows from other threads alone.
 * Graphs that hold calls are freed before the Comm is closed. */
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "comm_host.h"
#include "llmc/base/clock.h"
#include "nccl.h"
#include "peers.h"
#include "watchdog.h"

/* For the memory plan, as two H200 and NCCL 2.28 have it: kernels, and a communicator's buffers. Another NCCL or more
 * ranks may take more; build/test_comm_ranks time measures it. */
static const size_t kernels_bytes = (size_t)453 << 20,
                    buffers_bytes[] = {[NCCL_LIGHT] = (size_t)124 << 20, [NCCL_HEAVY] = (size_t)853 << 20};
static const int max_ctas[] = {[NCCL_LIGHT] = 4, [NCCL_HEAVY] = INT_MIN}; /* INT_MIN: as NCCL likes it */
static bool is_loaded;                                                    /* a Comm was opened before */
double nccl_seconds = 60, nccl_seconds_to_close = 2;

typedef struct NcclComm {
    GroupComm group;
    const Nccl *nccl;
    const Device *device;
    NcclHandle *handle;
    NcclLoad load;
    bool first;        /* of this process */
    double end_within; /* seconds, in each of two calls */
    char description[PATH_MAX + 128];
    Peers *peers; /* NULL: what is attached goes by NCCL, too */
} NcclComm;

/* NCCL's own variable says where cards must not write to each other. */
static bool may_be_peers(void) {
    const char *disabled = getenv("NCCL_P2P_DISABLE");
    return !disabled || atoi(disabled) == 0;
}

/* ---- errors, waiting ---- */

/* The state of what was queued last, once it is known: NCCL_IN_PROGRESS where it is not within `seconds`. */
static NcclResult settled(const NcclComm *c, NcclResult result, double seconds) {
    const double begin = clock_seconds();
    NcclResult state = result;
    if (result != NCCL_SUCCESS && result != NCCL_IN_PROGRESS) return result;
    for (int64_t i = 0; c->handle; i++) {
        result = c->nccl->ncclCommGetAsyncError(c->handle, &state);
        if (result != NCCL_SUCCESS) return result;
        if (state != NCCL_IN_PROGRESS || clock_seconds() - begin > seconds) return state;
        if (i > 100) nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
    return state;
}

static bool fail_nccl(const NcclComm *c, NcclResult result, const char *call, Error *err) {
    if (result == NCCL_IN_PROGRESS)
        return fail(err, EXIT_RUN, "NCCL: %s is not done within %g s; hint: NCCL_DEBUG=INFO", call,
                    nccl_seconds);
    const char *more = c->nccl->ncclGetLastError(c->handle);
    const bool no_room = more && strstr(more, "/dev/shm");
    return fail(err, EXIT_RUN, "NCCL: %s: %s%s%s%s", call, c->nccl->ncclGetErrorString(result),
                more && *more ? ": " : "", more ? more : "",
                no_room ? "; hint: a container has 64 MB there unasked: docker run --shm-size 1g" : "");
}

static void check(const NcclComm *c, NcclResult result, const char *call) {
    Error err = {0};
    result = settled(c, result, nccl_seconds);
    if (result == NCCL_SUCCESS) return;
    fail_nccl(c, result, call, &err);
    watchdog_lost(err.text); /* most often it is another rank that is gone */
}

/* ---- the calls ---- */

static void reduce_scatter(Comm *comm, StreamId stream, float *x, int64_t n) {
    const NcclComm *c = (NcclComm *)comm;
    if (c->peers && peers_have_gradients(c->peers, x)) {
        peers_reduce(c->peers, stream, x, n);
        return;
    }
    check(c,
          c->nccl->ncclReduceScatter(x, x + comm->ranks.rank * n, (size_t)n, NCCL_FLOAT32, NCCL_SUM,
                                     c->handle, c->device->stream_handle(stream)),
          "ncclReduceScatter");
}

static void all_gather(Comm *comm, StreamId stream, void *x, int64_t n, DType dtype) {
    const NcclComm *c = (NcclComm *)comm;
    const size_t bytes = (size_t)n * dtype_bytes(dtype);
    const char *own = (const char *)x + (size_t)comm->ranks.rank * bytes;
    if (c->peers && peers_have_weights(c->peers, x)) {
        peers_gather(c->peers, stream, x, bytes);
        return;
    }
    check(c, c->nccl->ncclAllGather(own, x, bytes, NCCL_INT8, c->handle, c->device->stream_handle(stream)),
          "ncclAllGather");
}

static void reduce_scatter_end(Comm *comm, StreamId stream) {
    const NcclComm *c = (NcclComm *)comm;
    if (c->peers) peers_reduce_end(c->peers, stream);
}

static void all_gather_end(Comm *comm, StreamId stream) {
    const NcclComm *c = (NcclComm *)comm;
    if (c->peers) peers_gather_end(c->peers, stream);
}

static void sum_int64(Comm *comm, StreamId stream, int64_t *x, int64_t n) {
    const NcclComm *c = (NcclComm *)comm;
    check(c,
          c->nccl->ncclAllReduce(x, x, (size_t)n, NCCL_INT64, NCCL_SUM, c->handle,
                                 c->device->stream_handle(stream)),
          "ncclAllReduce");
}

/* Sends and receives of a group run at once. */
static void all_to_all(Comm *comm, StreamId stream, void *out, const void *in, int64_t bytes) {
    const NcclComm *c = (NcclComm *)comm;
    const size_t part = (size_t)bytes;
    void *handle = c->device->stream_handle(stream);
    check(c, c->nccl->ncclGroupStart(), "ncclGroupStart");
    for (int r = 0; r < comm->ranks.n_ranks; r++) {
        c->nccl->ncclSend((const char *)in + (size_t)r * part, part, NCCL_INT8, r, c->handle, handle);
        c->nccl->ncclRecv((char *)out + (size_t)r * part, part, NCCL_INT8, r, c->handle, handle);
    }
    check(c, c->nccl->ncclGroupEnd(), "all_to_all by ncclSend and ncclRecv"); /* it has their errors, too */
}

size_t comm_nccl_fixed_bytes(NcclLoad load, bool first) {
    return (first ? kernels_bytes : 0) + buffers_bytes[load];
}

NcclLoad comm_nccl_load(NcclLoad asked, bool one_host) {
    return one_host && may_be_peers() ? asked : NCCL_HEAVY;
}

size_t comm_nccl_attached_bytes(const Comm *comm, int64_t n) {
    return may_be_peers() ? peers_bytes(comm->ranks, n) : 0;
}

/* ---- close ---- */

/* NCCL waits for the other ranks in the first, and for graphs that still hold calls in the second. */
static void *finish(void *argument) {
    NcclComm *c = argument;
    if (settled(c, c->nccl->ncclCommFinalize(c->handle), c->end_within) != NCCL_SUCCESS) return NULL;
    c->nccl->ncclCommDestroy(c->handle);
    c->handle = NULL;
    return NULL;
}

/* False where it does not end in time, on a machine with much else to do, say: it is left to the end of the process. */
static bool disconnect_ranks(NcclComm *c, double seconds) {
    pthread_t thread;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)(2 * seconds);
    c->end_within = seconds;
    if (!c->handle) return true;
    if (pthread_create(&thread, NULL, finish, c) != 0) return false;
    if (pthread_timedjoin_np(thread, NULL, &until) == 0) return !c->handle;
    pthread_detach(thread);
    return false;
}

static void close_nccl(GroupComm *group) {
    if (disconnect_ranks((NcclComm *)group, nccl_seconds_to_close)) free(group);
}

/* ---- open ---- */

/* Every group's first member makes an id, and all get it. */
static bool share_id(const NcclComm *c, NcclId *id, Error *err) {
    Rendezvous *r = c->group.rendezvous;
    NcclId mine = {{0}}, *all = must_allocate((size_t)r->ranks.n_ranks * sizeof *all, "NCCL's ids");
    bool ok = true;
    if (c->group.comm.ranks.rank == 0) {
        const NcclResult result = c->nccl->ncclGetUniqueId(&mine);
        ok = result == NCCL_SUCCESS || fail_nccl(c, result, "ncclGetUniqueId", err);
    }
    ok = ranks_agree(r, ok, err);
    if (ok) rendezvous_gather(r, all, &mine, sizeof mine);
    if (ok) *id = all[rank_of(&c->group, 0)];
    free(all);
    return ok;
}

static bool connect_ranks(NcclComm *c, const NcclId *id, Error *err) {
    NcclConfig config = {.size = sizeof config,
                         .magic = 0xcafebeef,
                         .version = NCCL_OLDEST,
                         .blocking = 0,
                         .cga_cluster_size = INT_MIN,
                         .min_ctas = INT_MIN,
                         .max_ctas = max_ctas[c->load],
                         .split_share = INT_MIN};
    const Ranks ranks = c->group.comm.ranks;
    NcclResult result = c->nccl->ncclCommInitRankConfig(&c->handle, ranks.n_ranks, *id, ranks.rank, &config);
    ends_at_once = true; /* NCCL has threads of its own now */
    result = settled(c, result, nccl_seconds);
    return result == NCCL_SUCCESS || fail_nccl(c, result, "ncclCommInitRankConfig", err);
}

static bool use_once(NcclComm *c, Error *err) {
    enum { N = 64 };
    const Device *device = c->device;
    const int n = c->group.comm.ranks.n_ranks;
    const size_t bytes = (size_t)n * N * sizeof(int64_t);
    char *x = device->alloc(2 * bytes);
    if (!x) return fail(err, EXIT_RUN, "no device memory for NCCL: %zu bytes", 2 * bytes);
    device->zero(x, 2 * bytes);
    reduce_scatter(&c->group.comm, STREAM_MAIN, (float *)x, N);
    all_gather(&c->group.comm, STREAM_MAIN, x, N, DTYPE_F32);
    all_to_all(&c->group.comm, STREAM_MAIN, x + bytes, x, N);
    sum_int64(&c->group.comm, STREAM_MAIN, (int64_t *)x, N);
    device->synchronize();
    device->free(x);
    return true;
}

/* A communicator with all its connections; all ranks have one, or all the same err. */
static bool connect_all(NcclComm *c, Error *err) {
    Rendezvous *r = c->group.rendezvous;
    NcclId id;
    c->group.comm.fixed_bytes = comm_nccl_fixed_bytes(c->load, c->first);
    return share_id(c, &id, err) && ranks_agree(r, connect_ranks(c, &id, err), err) &&
           ranks_agree(r, use_once(c, err), err);
}

/* ---- memory of the other ranks ---- */

static void become_heavy(NcclComm *c) {
    Error err = {0};
    const bool ok = disconnect_ranks(c, nccl_seconds) ||
                    fail(&err, EXIT_RUN, "NCCL: the first communicator does not end");
    c->handle = NULL;
    c->load = NCCL_HEAVY;
    if (!ranks_agree(c->group.rendezvous, ok, &err) || !connect_all(c, &err)) watchdog_die(&err);
}

static void attach(Comm *comm, float *grads, int64_t n, void *weights, size_t bytes) {
    NcclComm *c = (NcclComm *)comm;
    if (may_be_peers()) c->peers = peers_open(&c->group, c->device, grads, n, weights, bytes);
    if (!c->peers) {
        if (c->load == NCCL_LIGHT) become_heavy(c);
        return;
    }
    snprintf(c->description, sizeof c->description, "%s; gradients and weights by copies between the GPUs",
             comm_nccl_description());
    c->group.description = c->description;
}

static void detach(Comm *comm) {
    NcclComm *c = (NcclComm *)comm;
    peers_close(c->peers);
    c->peers = NULL;
}

/* ---- a Comm ---- */

Comm *comm_nccl_open(Rendezvous *r, const Device *device, int n, NcclLoad load, Error *err) {
    NcclComm *c = must_allocate(sizeof *c, "a communicator");
    *c = (NcclComm){.device = device, .nccl = nccl_open(err), .load = load, .first = !is_loaded};
    group_open(&c->group, r, n);
    if (!ranks_agree(r, c->nccl != NULL, err) || !connect_all(c, err)) {
        close_nccl(&c->group);
        return NULL;
    }
    is_loaded = true;
    c->group.close = close_nccl;
    c->group.description = comm_nccl_description();
    c->group.comm.attach = attach;
    c->group.comm.detach = detach;
    c->group.comm.reduce_scatter = reduce_scatter;
    c->group.comm.reduce_scatter_end = reduce_scatter_end;
    c->group.comm.all_gather = all_gather;
    c->group.comm.all_gather_end = all_gather_end;
    c->group.comm.all_to_all = all_to_all;
    c->group.comm.sum_int64 = sum_int64;
    c->group.comm.attached_bytes = comm_nccl_attached_bytes;
    return &c->group.comm;
}
