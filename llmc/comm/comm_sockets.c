/* CPU ranks: the calls of a Comm over TCP connections between every two ranks of the group.
 *
 * A call sends and receives at once with all of them, whatever order they come in, so it cannot hang however large the
 * parts are. Sums are staged by pieces: the memory does not grow with what is summed. They are added in the order of the
 * ranks, so they are the same in every run. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "llmc/base/integers.h"
#include "mesh.h"
#include "socket.h"
#include "watchdog.h"

enum { STAGING_BYTES = 4 << 20 }; /* for the pieces of all members together */

/* What a member gets, and what it sends. */
typedef struct Transfer {
    const char *out;
    char *in;
    size_t bytes, sent, received; /* each way */
} Transfer;

typedef struct SocketComm {
    GroupComm group;
    const char *call;      /* the one under way, for messages */
    int *sockets;          /* (n_ranks) by member; its own -1 */
    Transfer *transfers;   /* (n_ranks) */
    struct pollfd *polled; /* (n_ranks) */
    char *staging;         /* STAGING_BYTES */
} SocketComm;

/* ---- transfers ---- */

/* errno says why, 0: it closed. */
static _Noreturn void lost(const SocketComm *c, int member) {
    const char *why = errno ? strerror(errno) : "it is closed";
    char text[256], name[RANK_NAME_BYTES];
    rank_name(name, c->group.rendezvous, rank_of(&c->group, member));
    snprintf(text, sizeof text, "the connection with %s is lost in %s: %s", name, c->call, why);
    watchdog_lost(text);
}

/* Fills c->polled; returns whether anything is left. */
static bool anything_left(const SocketComm *c) {
    bool left = false;
    for (int i = 0; i < c->group.comm.ranks.n_ranks; i++) {
        const Transfer *t = &c->transfers[i];
        const short events =
            (short)((t->sent < t->bytes ? POLLOUT : 0) | (t->received < t->bytes ? POLLIN : 0));
        c->polled[i] = (struct pollfd){.fd = events ? c->sockets[i] : -1, .events = events};
        left = left || events;
    }
    return left;
}

/* Moves what the member's socket has or takes now. */
static void move_some(const SocketComm *c, int member, short events) {
    Transfer *t = &c->transfers[member];
    const int fd = c->sockets[member];
    if ((events && !socket_receive_some(fd, t->in, t->bytes, &t->received)) ||
        (events & ~POLLIN && !socket_send_some(fd, t->out, t->bytes, &t->sent)))
        lost(c, member);
}

/* With all other members at once: member r gets `bytes` from out + r * stride, and what it sends comes to in + r * bytes. One
 * that is lost without a word is the watchdog's. */
static void exchange(const SocketComm *c, const void *out, size_t stride, void *in, size_t bytes) {
    const Ranks ranks = c->group.comm.ranks;
    for (int r = 0; r < ranks.n_ranks; r++)
        c->transfers[r] = (Transfer){.out = (const char *)out + (size_t)r * stride,
                                     .in = (char *)in + (size_t)r * bytes,
                                     .bytes = r == ranks.rank ? 0 : bytes};
    while (anything_left(c)) {
        if (poll(c->polled, (nfds_t)ranks.n_ranks, -1) < 0) continue; /* a signal */
        for (int i = 0; i < ranks.n_ranks; i++) move_some(c, i, c->polled[i].revents);
    }
}

static SocketComm *begin(Comm *comm, const char *call) {
    SocketComm *c = (SocketComm *)comm;
    c->call = call;
    return c;
}

/* ---- sums ---- */

/* sum (n) = what the members have, added in their order: the own in `sum`, the others' in `theirs`, n elements apart. */
static void add_floats(float *sum, const SocketComm *c, const float *theirs, int64_t n) {
    const int rank = c->group.comm.ranks.rank, n_ranks = c->group.comm.ranks.n_ranks;
    for (int64_t i = 0; i < n; i++) {
        float x = rank == 0 ? sum[i] : theirs[i];
        for (int r = 1; r < n_ranks; r++) x += r == rank ? sum[i] : theirs[r * n + i];
        sum[i] = x;
    }
}

/* This piece of each rank's part, x + r * stride, goes to that rank; those of the own part come into the staging. */
static void reduce_scatter_piece(const SocketComm *c, float *x, int64_t stride, int64_t n) {
    exchange(c, x, (size_t)stride * sizeof *x, c->staging, (size_t)n * sizeof *x);
    add_floats(x + c->group.comm.ranks.rank * stride, c, (const float *)c->staging, n);
}

static void reduce_scatter(Comm *comm, StreamId stream, float *x, int64_t n) {
    const SocketComm *c = begin(comm, "reduce_scatter");
    const int64_t most = STAGING_BYTES / (comm->ranks.n_ranks * (int64_t)sizeof *x);
    for (int64_t i = 0; i < n; i += most) reduce_scatter_piece(c, x + i, n, min_i64(n - i, most));
}

/* Every rank gets all of every piece and adds it itself: the sums of a step are few. */
static void sum_int64_piece(const SocketComm *c, int64_t *x, int64_t n) {
    const Ranks ranks = c->group.comm.ranks;
    exchange(c, x, 0, c->staging, (size_t)n * sizeof *x);
    const uint64_t *theirs = (const uint64_t *)c->staging;
    for (int r = 0; r < ranks.n_ranks; r++)
        for (int64_t i = 0; i < n && r != ranks.rank; i++)
            x[i] = (int64_t)((uint64_t)x[i] + theirs[r * n + i]);
}

static void sum_int64(Comm *comm, StreamId stream, int64_t *x, int64_t n) {
    const SocketComm *c = begin(comm, "sum_int64");
    const int64_t most = STAGING_BYTES / (comm->ranks.n_ranks * (int64_t)sizeof *x);
    for (int64_t i = 0; i < n; i += most) sum_int64_piece(c, x + i, min_i64(n - i, most));
}

/* ---- parts to and from everyone ---- */

static void all_gather(Comm *comm, StreamId stream, void *x, int64_t n, DType dtype) {
    const SocketComm *c = begin(comm, "all_gather");
    const size_t bytes = (size_t)n * dtype_bytes(dtype);
    exchange(c, (const char *)x + (size_t)comm->ranks.rank * bytes, 0, x, bytes);
}

static void all_to_all(Comm *comm, StreamId stream, void *out, const void *in, int64_t bytes) {
    const SocketComm *c = begin(comm, "all_to_all");
    const size_t part = (size_t)bytes, own = (size_t)comm->ranks.rank * part;
    memcpy((char *)out + own, (const char *)in + own, part);
    exchange(c, in, part, out, part);
}

size_t comm_sockets_fixed_bytes(void) {
    return STAGING_BYTES;
}

/* ---- open and close ---- */

static void close_sockets(GroupComm *group) {
    SocketComm *c = (SocketComm *)group;
    for (int i = 0; i < group->comm.ranks.n_ranks; i++)
        if (c->sockets[i] >= 0) close(c->sockets[i]);
    free(c->sockets);
    free(c->transfers);
    free(c->polled);
    free(c->staging);
    free(c);
}

Comm *comm_sockets_open(Rendezvous *r, int n, Error *err) {
    static const char what[] = "the connections of ranks";
    SocketComm *c = must_allocate(sizeof *c, what);
    *c = (SocketComm){
        .sockets = must_allocate((size_t)n * sizeof *c->sockets, what),
        .transfers = must_allocate((size_t)n * sizeof *c->transfers, what),
        .polled = must_allocate((size_t)n * sizeof *c->polled, what),
        .staging = must_allocate(STAGING_BYTES, what),
    };
    for (int i = 0; i < n; i++) c->sockets[i] = -1;
    group_open(&c->group, r, n);
    if (!mesh_open(&c->group, c->sockets, err)) {
        close_sockets(&c->group);
        return NULL;
    }
    c->group.close = close_sockets;
    c->group.comm.reduce_scatter = reduce_scatter;
    c->group.comm.all_gather = all_gather;
    c->group.comm.all_to_all = all_to_all;
    c->group.comm.sum_int64 = sum_int64;
    c->group.description = "TCP";
    c->group.comm.fixed_bytes = comm_sockets_fixed_bytes();
    return &c->group.comm;
}
