#include "peers.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Flags of a rank, one row for each rank that raises them: a flag for every call of reduce between two ends, and those of
 * gather. Rounds count ends. */
enum { CALLS = 1022, READY = CALLS, DONE, FLAGS };
enum { ROUND_REDUCE, ROUND_GATHER, N_ROUNDS };

typedef struct Call {
    float *x;
    int64_t n;
} Call;

/* What a rank has for the others to write to. */
enum { RECEIVED, WEIGHTS, FLAG_ROWS, N_SHARED };

struct Peers {
    const GroupComm *group;
    const Device *device;
    const PeerMemory *memory;
    Ranks ranks;
    float *grads;
    int64_t n_grads;
    size_t weights_bytes;
    void *(*shared)[N_SHARED]; /* (n_ranks) where each rank's lies for this process */
    uint32_t *rounds;          /* (N_ROUNDS) on the device */
    uint32_t *
        *raised; /* (FLAGS, n_ranks) on the device: this rank's flags at the others, NULL at its own place */
    Call calls[CALLS]; /* since the last end */
    int n_calls;
    bool gathers; /* since the last end */
};

/* ---- sizes and places ---- */

static int64_t part_of(Ranks ranks, int64_t n) {
    return n / ranks.n_ranks;
}

static size_t received_bytes(Ranks ranks, int64_t n) {
    return (size_t)part_of(ranks, n) * (size_t)(ranks.n_ranks - 1) * sizeof(float);
}

static size_t flags_bytes(Ranks ranks) {
    return (size_t)ranks.n_ranks * FLAGS * sizeof(uint32_t);
}

static size_t raised_bytes(Ranks ranks) {
    return (size_t)ranks.n_ranks * FLAGS * sizeof(uint32_t *);
}

size_t peers_bytes(Ranks ranks, int64_t n) {
    return received_bytes(ranks, n) + flags_bytes(ranks) + raised_bytes(ranks) + N_ROUNDS * sizeof(uint32_t);
}

/* The flags that rank `from` raises at `at`. */
static uint32_t *flags_of(const Peers *p, int at, int from) {
    return (uint32_t *)p->shared[at][FLAG_ROWS] + (size_t)from * FLAGS;
}

/* Where rank `at` receives what rank `from` sends of its gradients. */
static float *received_of(const Peers *p, int at, int from) {
    const int row = from < at ? from : from - 1;
    return (float *)p->shared[at][RECEIVED] + row * part_of(p->ranks, p->n_grads);
}

static bool is_within(const void *p, const void *begin, size_t bytes) {
    return (uintptr_t)p >= (uintptr_t)begin && (uintptr_t)p < (uintptr_t)begin + bytes;
}

bool peers_have_gradients(const Peers *p, const float *x) {
    return p->n_calls < CALLS && is_within(x, p->grads, (size_t)p->n_grads * sizeof *x);
}

bool peers_have_weights(const Peers *p, const void *x) {
    return is_within(x, p->shared[p->ranks.rank][WEIGHTS], p->weights_bytes);
}

/* ---- reduce ---- */

void peers_reduce(Peers *p, StreamId stream, float *x, int64_t n) {
    const int rank = p->ranks.rank, n_ranks = p->ranks.n_ranks;
    const int64_t at = part_of(p->ranks, x - p->grads);
    for (int r = 0; r < n_ranks; r++)
        if (r != rank)
            p->memory->send(stream, received_of(p, r, rank) + at, x + r * n, (size_t)n * sizeof *x);
    p->memory->raise(stream, p->raised + (size_t)p->n_calls * (size_t)n_ranks, n_ranks,
                     &p->rounds[ROUND_REDUCE]);
    p->calls[p->n_calls++] = (Call){x, n};
}

void peers_reduce_end(Peers *p, StreamId stream) {
    const int rank = p->ranks.rank;
    const int64_t part = part_of(p->ranks, p->n_grads);
    const float *received = p->shared[rank][RECEIVED];
    if (p->n_calls == 0) return;
    for (int i = 0; i < p->n_calls; i++) {
        const Call *call = &p->calls[i];
        p->memory->wait_and_add(stream, flags_of(p, rank, 0) + i, FLAGS, p->ranks.n_ranks, rank,
                                &p->rounds[ROUND_REDUCE], call->x + rank * call->n,
                                received + part_of(p->ranks, call->x - p->grads), part, call->n);
    }
    p->memory->next_round(stream, &p->rounds[ROUND_REDUCE]);
    p->n_calls = 0;
}

/* ---- gather ---- */

static void raise_and_wait(const Peers *p, StreamId stream, int flag) {
    const int rank = p->ranks.rank, n_ranks = p->ranks.n_ranks;
    p->memory->raise(stream, p->raised + (size_t)flag * (size_t)n_ranks, n_ranks, &p->rounds[ROUND_GATHER]);
    p->memory->wait(stream, flags_of(p, rank, 0) + flag, FLAGS, n_ranks, rank, &p->rounds[ROUND_GATHER]);
}

void peers_gather(Peers *p, StreamId stream, void *x, size_t bytes) {
    const int rank = p->ranks.rank;
    const size_t at = (size_t)((char *)x - (char *)p->shared[rank][WEIGHTS]) + (size_t)rank * bytes;
    if (!p->gathers) raise_and_wait(p, stream, READY);
    p->gathers = true;
    for (int r = 0; r < p->ranks.n_ranks; r++)
        if (r != rank)
            p->memory->send(stream, (char *)p->shared[r][WEIGHTS] + at, (char *)p->shared[rank][WEIGHTS] + at,
                            bytes);
}

void peers_gather_end(Peers *p, StreamId stream) {
    if (!p->gathers) return;
    raise_and_wait(p, stream, DONE);
    p->memory->next_round(stream, &p->rounds[ROUND_GATHER]);
    p->gathers = false;
}

/* ---- open and close ---- */

static void wait_for_all(const Peers *p) {
    char mine = 0, *all = calloc(1, (size_t)p->group->rendezvous->ranks.n_ranks);
    if (!all) abort();
    rendezvous_gather(p->group->rendezvous, all, &mine, 1);
    free(all);
}

/* Of the group. */
static bool all_are(const Peers *p, bool ok) {
    char mine = ok, *all = calloc(1, (size_t)p->group->rendezvous->ranks.n_ranks);
    if (!all) abort();
    rendezvous_gather(p->group->rendezvous, all, &mine, 1);
    for (int r = 0; r < p->ranks.n_ranks; r++) ok = ok && all[p->group->members[r]];
    free(all);
    return ok;
}

static bool allocate(Peers *p) {
    void **own = p->shared[p->ranks.rank];
    const size_t received = received_bytes(p->ranks, p->n_grads);
    own[RECEIVED] = p->device->alloc(received);
    own[FLAG_ROWS] = p->device->alloc(flags_bytes(p->ranks));
    p->rounds = p->device->alloc(N_ROUNDS * sizeof *p->rounds);
    p->raised = p->device->alloc(raised_bytes(p->ranks));
    if (!own[RECEIVED] || !own[FLAG_ROWS] || !p->rounds || !p->raised) return false;
    p->device->zero(own[FLAG_ROWS], flags_bytes(p->ranks));
    p->device->zero(p->rounds, N_ROUNDS * sizeof *p->rounds);
    p->device->synchronize();
    return true;
}

typedef struct Names {
    MemoryHandle of[N_SHARED];
    uint32_t number; /* any */
    bool ok;
} Names;

static Names names_of(const Peers *p, bool ok) {
    Names names = {.number = (uint32_t)getpid() * 2654435761u | 1};
    for (int i = 0; ok && i < N_SHARED; i++) ok = p->memory->name(&names.of[i], p->shared[p->ranks.rank][i]);
    names.ok = ok;
    return names;
}

static bool open_others(Peers *p, const Names *names) {
    for (int r = 0; r < p->ranks.n_ranks; r++) {
        const Names *theirs = &names[p->group->members[r]];
        if (!theirs->ok) return false;
        for (int i = 0; r != p->ranks.rank && i < N_SHARED; i++)
            if (!(p->shared[r][i] = p->memory->open(&theirs->of[i]))) return false;
    }
    return true;
}

/* A name means something on its own host alone, and hosts may share a name: a number must come through. */
static bool numbers_come_through(const Peers *p, const Names *names) {
    const int rank = p->ranks.rank, n_ranks = p->ranks.n_ranks;
    const size_t bytes = flags_bytes(p->ranks);
    uint32_t *flags = malloc(bytes), *own = flags_of(p, rank, rank);
    if (!flags) abort();
    p->device->upload(own, &names[p->group->members[rank]].number, sizeof *own);
    for (int r = 0; r < n_ranks; r++)
        if (r != rank) p->memory->send(STREAM_MAIN, flags_of(p, r, rank), own, sizeof *own);
    p->device->synchronize();
    wait_for_all(p);
    p->device->download(flags, p->shared[rank][FLAG_ROWS], bytes);
    bool ok = true;
    for (int r = 0; r < n_ranks; r++) ok = ok && flags[r * FLAGS] == names[p->group->members[r]].number;
    p->device->zero(p->shared[rank][FLAG_ROWS], bytes);
    p->device->synchronize();
    free(flags);
    return ok;
}

static void list_raised(const Peers *p) {
    const int n_ranks = p->ranks.n_ranks;
    uint32_t **raised = calloc(FLAGS * (size_t)n_ranks, sizeof *raised);
    if (!raised) abort();
    for (int flag = 0; flag < FLAGS; flag++)
        for (int r = 0; r < n_ranks; r++)
            if (r != p->ranks.rank) raised[flag * n_ranks + r] = flags_of(p, r, p->ranks.rank) + flag;
    p->device->upload(p->raised, raised, raised_bytes(p->ranks));
    p->device->synchronize();
    free(raised);
}

Peers *peers_open(const GroupComm *group, const Device *device, float *grads, int64_t n, void *weights,
                  size_t bytes) {
    Peers *p = calloc(1, sizeof *p);
    const Ranks ranks = group->comm.ranks;
    Names *names = calloc((size_t)group->rendezvous->ranks.n_ranks, sizeof *names);
    if (!p || !names || !(p->shared = calloc((size_t)ranks.n_ranks, sizeof *p->shared))) abort();
    p->group = group, p->device = device, p->memory = device->peer_memory, p->ranks = ranks;
    p->grads = grads, p->n_grads = n, p->weights_bytes = bytes;
    p->shared[ranks.rank][WEIGHTS] = weights;
    const Names mine = names_of(p, p->memory && allocate(p));
    rendezvous_gather(group->rendezvous, names, &mine, sizeof mine);
    bool ok = all_are(p, open_others(p, names));
    ok = ok && all_are(p, numbers_come_through(p, names));
    if (ok) list_raised(p);
    free(names);
    if (ok) return p;
    peers_close(p);
    return NULL;
}

void peers_close(Peers *p) {
    if (!p) return;
    void **own = p->shared[p->ranks.rank];
    p->device->synchronize();
    wait_for_all(p);
    for (int r = 0; p->memory && r < p->ranks.n_ranks; r++)
        for (int i = 0; r != p->ranks.rank && i < N_SHARED; i++) p->memory->close(p->shared[r][i]);
    wait_for_all(p);
    p->device->free(own[RECEIVED]);
    p->device->free(own[FLAG_ROWS]);
    p->device->free(p->rounds);
    p->device->free(p->raised);
    free(p->shared);
    free(p);
}
