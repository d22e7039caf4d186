/* Stands in for NVIDIA's NCCL in test_nccl.c, as a shared library: the calls between processes of one host, on host memory,
 * done by a shared file when they return. FAKE_NCCL says what is wrong with it:
 *
 *   old           a version that is too old            slow          what is queued is in progress for a while
 *   no_start      ncclCommInitRankConfig fails         stuck_start   it never gets done
 *   broken        ncclAllGather fails                  stuck         nor does ncclAllGather
 *   stuck_end     nor does ncclCommFinalize             stuck_destroy ncclCommDestroy does not return
 *   bad_exit      it crashes when the process exits
 *   no_room       ncclCommInitRankConfig fails, because /dev/shm is too small for it
 *
 * It leaves in FAKE_NCCL_CTAS how many CTAs the last communicator may have. */
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "llmc/comm/nccl.h"

enum { SLOT = 4 << 20, RANKS_MAX = 4, POLLS = 20 };
#define INVALID ((NcclResult)4)

typedef struct Shared {
    _Atomic int arrived, generation;
    char slots[RANKS_MAX][SLOT]; /* what each rank sends */
} Shared;

struct NcclHandle {
    int rank, n, polls; /* polls: how often it is still in progress */
    bool is_stuck;
    Shared *shared;
};

typedef struct Receive {
    void *out;
    size_t bytes;
    int from;
} Receive;

static struct {
    NcclHandle *comm;
    Receive receives[RANKS_MAX];
    size_t part;
    int n, depth;
} group;

static bool mode(const char *name) {
    const char *set = getenv("FAKE_NCCL");
    return set && strcmp(set, name) == 0;
}

/* ---- ranks ---- */

static void meet(NcclHandle *c) {
    const int generation = c->shared->generation;
    if (atomic_fetch_add(&c->shared->arrived, 1) == c->n - 1) {
        c->shared->arrived = 0;
        c->shared->generation++;
    }
    while (c->shared->generation == generation) sched_yield();
}

static size_t size_of(NcclType type) {
    return type == NCCL_INT8 ? 1 : type == NCCL_FLOAT32 ? 4 : 8;
}

static NcclResult queued(NcclHandle *c) {
    if (mode("slow")) c->polls = POLLS;
    return c->polls ? NCCL_IN_PROGRESS : NCCL_SUCCESS;
}

/* Like NCCL, takes nothing while the last call is in progress. */
static bool takes(const NcclHandle *c, size_t bytes, const void *stream) {
    return c && !c->polls && !c->is_stuck && bytes <= SLOT && !stream;
}

static NcclResult reduce(const void *in, void *out, size_t first, size_t n, NcclType type, NcclHandle *c) {
    for (size_t i = 0; i < n; i++)
        for (int r = 0; r < c->n; r++) {
            if (type == NCCL_FLOAT32) {
                const float theirs = ((float *)c->shared->slots[r])[first + i];
                ((float *)out)[i] = r ? ((float *)out)[i] + theirs : theirs;
            } else {
                const int64_t theirs = ((int64_t *)c->shared->slots[r])[first + i];
                ((int64_t *)out)[i] = r ? ((int64_t *)out)[i] + theirs : theirs;
            }
        }
    (void)in;
    meet(c);
    return queued(c);
}

static void send_all(NcclHandle *c, const void *in, size_t bytes) {
    memcpy(c->shared->slots[c->rank], in, bytes);
    meet(c);
}

/* ---- NCCL's functions ---- */

NcclResult ncclGetVersion(int *version) {
    *version = mode("old") ? NCCL_OLDEST - 1 : 22809;
    return NCCL_SUCCESS;
}

NcclResult ncclGetUniqueId(NcclId *id) {
    memset(id, 0, sizeof *id);
    strcpy(id->bytes, "/tmp/fake_nccl_XXXXXX");
    const int fd = mkstemp(id->bytes);
    if (fd < 0 || ftruncate(fd, sizeof(Shared)) != 0) return INVALID;
    close(fd);
    return NCCL_SUCCESS;
}

/* Where a call is to get stuck the time that the test gives it is short: nothing else takes any. */
NcclResult ncclCommInitRankConfig(NcclHandle **comm, int n, NcclId id, int rank, NcclConfig *config) {
    const int fd = open(id.bytes, O_RDWR);
    const bool fails = mode("no_start") || mode("no_room");
    if (fails) unlink(id.bytes);
    if (fails || config->size != sizeof *config || config->magic != 0xcafebeef ||
        config->version != NCCL_OLDEST || config->blocking)
        return INVALID;
    char ctas[16];
    snprintf(ctas, sizeof ctas, "%d", config->max_ctas);
    setenv("FAKE_NCCL_CTAS", ctas, 1);
    NcclHandle *c = calloc(1, sizeof *c);
    *c = (NcclHandle){
        .rank = rank, .n = n, .polls = mode("stuck") ? 0 : POLLS, .is_stuck = mode("stuck_start")};
    c->shared = mmap(NULL, sizeof *c->shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (c->shared == MAP_FAILED) return INVALID;
    meet(c);
    unlink(id.bytes);
    *comm = c;
    return NCCL_IN_PROGRESS;
}

NcclResult ncclCommGetAsyncError(NcclHandle *c, NcclResult *state) {
    *state = c->is_stuck || c->polls ? NCCL_IN_PROGRESS : NCCL_SUCCESS;
    if (c->polls) c->polls--;
    return NCCL_SUCCESS;
}

NcclResult ncclCommFinalize(NcclHandle *c) {
    c->is_stuck = mode("stuck_end");
    return NCCL_IN_PROGRESS;
}

NcclResult ncclCommDestroy(NcclHandle *c) {
    while (mode("stuck_destroy")) sleep(1);
    munmap(c->shared, sizeof *c->shared);
    free(c);
    return NCCL_SUCCESS;
}

__attribute__((destructor)) static void leave(void) {
    if (mode("bad_exit")) abort();
}

const char *ncclGetErrorString(NcclResult result) {
    (void)result;
    return "invalid argument";
}

const char *ncclGetLastError(NcclHandle *c) {
    (void)c;
    return mode("no_room") ? "Error while creating shared memory segment /dev/shm/nccl-x (size 9637888)"
                           : "the fake says so";
}

NcclResult ncclReduceScatter(const void *in, void *out, size_t n, NcclType type, NcclReduction how,
                             NcclHandle *c, void *stream) {
    if (!takes(c, n * (size_t)c->n * size_of(type), stream) || how != NCCL_SUM) return INVALID;
    send_all(c, in, n * (size_t)c->n * size_of(type));
    return reduce(in, out, (size_t)c->rank * n, n, type, c);
}

NcclResult ncclAllReduce(const void *in, void *out, size_t n, NcclType type, NcclReduction how, NcclHandle *c,
                         void *stream) {
    if (!takes(c, n * size_of(type), stream) || how != NCCL_SUM) return INVALID;
    send_all(c, in, n * size_of(type));
    return reduce(in, out, 0, n, type, c);
}

NcclResult ncclAllGather(const void *in, void *out, size_t n, NcclType type, NcclHandle *c, void *stream) {
    const size_t bytes = n * size_of(type);
    if (!takes(c, bytes, stream) || mode("broken")) return INVALID;
    c->is_stuck = mode("stuck");
    send_all(c, in, bytes);
    for (int r = 0; r < c->n; r++) memcpy((char *)out + (size_t)r * bytes, c->shared->slots[r], bytes);
    meet(c);
    return queued(c);
}

NcclResult ncclGroupStart(void) {
    if (group.depth++ == 0) group.n = 0;
    return NCCL_SUCCESS;
}

NcclResult ncclSend(const void *in, size_t n, NcclType type, int to, NcclHandle *c, void *stream) {
    const size_t bytes = n * size_of(type);
    if (!group.depth || !takes(c, bytes * (size_t)c->n, stream)) return INVALID;
    memcpy(c->shared->slots[c->rank] + (size_t)to * bytes, in, bytes);
    group.comm = c;
    return NCCL_SUCCESS;
}

NcclResult ncclRecv(void *out, size_t n, NcclType type, int from, NcclHandle *c, void *stream) {
    const size_t bytes = n * size_of(type);
    if (!group.depth || !takes(c, bytes * (size_t)c->n, stream)) return INVALID;
    group.receives[group.n++] = (Receive){out, bytes, from};
    return NCCL_SUCCESS;
}

NcclResult ncclGroupEnd(void) {
    NcclHandle *c = group.comm;
    if (--group.depth || !group.n) return NCCL_SUCCESS;
    meet(c);
    for (int i = 0; i < group.n; i++) {
        const Receive *r = &group.receives[i];
        memcpy(r->out, c->shared->slots[r->from] + (size_t)c->rank * r->bytes, r->bytes);
    }
    meet(c);
    return queued(c);
}
