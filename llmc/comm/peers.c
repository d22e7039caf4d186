#include "peers.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Flags of a rank, one row for each rank that raises them: a flag for every call of reduce between two ends, and those of
 * gather. Rounds count ends. */
enum { CALLS = 1022, READY = CALLS, DONE, FLAGS };
enum { ROUND_REDUCE, ROUND_GATHER, N_ROUNDS };
/* Small copies are slow: 28 MB go at 290 GB/s, 154 MB at 363 (two H200). So calls of gather wait until they are so many
 * bytes, or so many. */
enum { GATHERS = 16, GATHERED_BYTES = 16 << 20 };

/* What a call names, of gradients in elements, of weights in bytes: where it begins, and its size a rank. */
typedef struct Call {
    int64_t at, n;
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
    uint32_t **raised; /* (FLAGS, n_ranks) on the device: this rank's at the others, NULL at its own place */
    Call reduces[CALLS]; /* since the last end */
    int n_reduces;
    Call gathers[GATHERS]; /* not sent yet */
    int n_gathers;
    bool is_gathering; /* since the last end */
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
    return p->n_reduces < CALLS && is_within(x, p->grads, (size_t)p->n_grads * sizeof *x);
}

bool peers_have_weights(const Peers *p, const void *x) {
    return is_within(x, p->shared[p->ranks.rank][WEIGHTS], p->weights_bytes);
}

/* How many of the n calls follow each other with one size, one distance apart; *distance in elements, 0 for one. */
static int row_of_calls(const Call *calls, int n, int64_t *distance) {
    int rows = 1;
    *distance = n > 1 && calls[1].n == calls[0].n ? calls[1].at - calls[0].at : 0;
    while (*distance != 0 && rows < n && calls[rows].n == calls[0].n &&
           calls[rows].at - calls[rows - 1].at == *distance)
        rows++;
    return rows;
}

/* ---- reduce ---- */

void peers_reduce(Peers *p, StreamId stream, float *x, int64_t n) {
    const int rank = p->ranks.rank, n_ranks = p->ranks.n_ranks;
    const int64_t at = x - p->grads;
    for (int r = 0; r < n_ranks; r++)
        if (r != rank)
            p->memory->send(stream, received_of(p, r, rank) + part_of(p->ranks, at), x + r * n,
                            (size_t)n * sizeof *x, 1, 0);
    p->memory->raise(stream, p->raised + (size_t)p->n_reduces * (size_t)n_ranks, n_ranks,
                     &p->rounds[ROUND_REDUCE]);
    p->reduces[p->n_reduces++] = (Call){at, n};
}

/* The sums of `rows` calls, one distance apart, behind the flags of the last: flags are raised in the order of the calls. */
static void add_rows(const Peers *p, StreamId stream, int first, int rows, int64_t distance) {
    const int rank = p->ranks.rank;
    const Call *call = &p->reduces[first];
    const PeerTerms terms = {
        .x = p->grads + call->at + rank * call->n,
        .received = (float *)p->shared[rank][RECEIVED] + part_of(p->ranks, call->at),
        .apart = part_of(p->ranks, p->n_grads),
        .n = p->ranks.n_ranks,
        .own = rank,
        .count = call->n,
        .rows = rows,
        .x_stride = distance,
        .received_stride = distance / p->ranks.n_ranks,
    };
    p->memory->wait(stream, flags_of(p, rank, 0) + first + rows - 1, FLAGS, p->ranks.n_ranks, rank,
                    &p->rounds[ROUND_REDUCE]);
    p->memory->add(stream, &terms);
}

/* Layers are alike, so their sums take one launch; those of the last call, the embeddings, are waited for by themselves. */
void peers_reduce_end(Peers *p, StreamId stream) {
    int64_t distance;
    if (p->n_reduces == 0) return;
    for (int i = 0, rows; i < p->n_reduces; i += rows) {
        rows = row_of_calls(p->reduces + i, p->n_reduces - i, &distance);
        add_rows(p, stream, i, rows, distance);
    }
    p->memory->next_round(stream, &p->rounds[ROUND_REDUCE]);
    p->n_reduces = 0;
}

/* ---- gather ---- */

static void raise_and_wait(const Peers *p, StreamId stream, int flag) {
    const int rank = p->ranks.rank, n_ranks = p->ranks.n_ranks;
    p->memory->raise(stream, p->raised + (size_t)flag * (size_t)n_ranks, n_ranks, &p->rounds[ROUND_GATHER]);
    p->memory->wait(stream, flags_of(p, rank, 0) + flag, FLAGS, n_ranks, rank, &p->rounds[ROUND_GATHER]);
}

/* What the calls since the last copies name, in bytes here. */
static void send_gathered(Peers *p, StreamId stream) {
    const int rank = p->ranks.rank;
    int64_t distance;
    for (int i = 0, rows; i < p->n_gathers; i += rows) {
        rows = row_of_calls(p->gathers + i, p->n_gathers - i, &distance);
        if (distance < p->gathers[i].n) rows = 1;
        for (int r = 0; r < p->ranks.n_ranks; r++)
            if (r != rank)
                p->memory->send(stream, (char *)p->shared[r][WEIGHTS] + p->gathers[i].at,
                                (char *)p->shared[rank][WEIGHTS] + p->gathers[i].at, (size_t)p->gathers[i].n,
                                (size_t)rows, (size_t)distance);
    }
    p->n_gathers = 0;
}

void peers_gather(Peers *p, StreamId stream, void *x, size_t bytes) {
    const int64_t at = (char *)x - (char *)p->shared[p->ranks.rank][WEIGHTS];
    if (!p->is_gathering) raise_and_wait(p, stream, READY);
    p->is_gathering = true;
    p->gathers[p->n_gathers++] = (Call){at + p->ranks.rank * (int64_t)bytes, (int64_t)bytes};
    if (p->n_gathers == GATHERS || p->n_gathers * (int64_t)bytes >= GATHERED_BYTES) send_gathered(p, stream);
}

void peers_gather_end(Peers *p, StreamId stream) {
    if (!p->is_gathering) return;
    send_gathered(p, stream);
    raise_and_wait(p, stream, DONE);
    p->memory->next_round(stream, &p->rounds[ROUND_GATHER]);
    p->is_gathering = false;
}

/* ---- open and close ---- */

static const char said[] = "memory that ranks write to";

/* What the ranks have in `mine`, by rank; freed by the caller. */
static void *gather(const Peers *p, const void *mine, size_t bytes) {
    Comm *comm = (Comm *)&p->group->comm;
    void *all = must_allocate((size_t)p->ranks.n_ranks * bytes, said);
    comm->gather_on_host(comm, all, mine, (int64_t)bytes);
    return all;
}

/* Waits for all ranks. */
static bool all_are(const Peers *p, bool ok) {
    bool *all = gather(p, &ok, sizeof ok);
    for (int r = 0; r < p->ranks.n_ranks; r++) ok = ok && all[r];
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
        if (!names[r].ok) return false;
        for (int i = 0; r != p->ranks.rank && i < N_SHARED; i++)
            if (!(p->shared[r][i] = p->memory->open(&names[r].of[i]))) return false;
    }
    return true;
}

/* A name means something on its own host alone, and hosts may share a name: a number must come through. */
static bool numbers_come_through(const Peers *p, const Names *names) {
    const int rank = p->ranks.rank, n_ranks = p->ranks.n_ranks;
    const size_t bytes = flags_bytes(p->ranks);
    uint32_t *flags = must_allocate(bytes, said), *own = flags_of(p, rank, rank);
    p->device->upload(own, &names[rank].number, sizeof *own);
    for (int r = 0; r < n_ranks; r++)
        if (r != rank) p->memory->send(STREAM_MAIN, flags_of(p, r, rank), own, sizeof *own, 1, 0);
    p->device->synchronize();
    all_are(p, true);
    p->device->download(flags, p->shared[rank][FLAG_ROWS], bytes);
    bool ok = true;
    for (int r = 0; r < n_ranks; r++) ok = ok && flags[r * FLAGS] == names[r].number;
    p->device->zero(p->shared[rank][FLAG_ROWS], bytes);
    p->device->synchronize();
    free(flags);
    return ok;
}

static void list_raised(const Peers *p) {
    const int n_ranks = p->ranks.n_ranks;
    uint32_t **raised = must_allocate(raised_bytes(p->ranks), said);
    for (int flag = 0; flag < FLAGS; flag++)
        for (int r = 0; r < n_ranks; r++)
            raised[flag * n_ranks + r] = r == p->ranks.rank ? NULL : flags_of(p, r, p->ranks.rank) + flag;
    p->device->upload(p->raised, raised, raised_bytes(p->ranks));
    p->device->synchronize();
    free(raised);
}

Peers *peers_open(const GroupComm *group, const Device *device, float *grads, int64_t n, void *weights,
                  size_t bytes) {
    const Ranks ranks = group->comm.ranks;
    Peers *p = must_allocate(sizeof *p, said);
    *p = (Peers){.group = group, .device = device, .memory = device->peer_memory, .ranks = ranks};
    p->grads = grads, p->n_grads = n, p->weights_bytes = bytes;
    p->shared = must_allocate((size_t)ranks.n_ranks * sizeof *p->shared, said);
    memset(p->shared, 0, (size_t)ranks.n_ranks * sizeof *p->shared);
    p->shared[ranks.rank][WEIGHTS] = weights;
    const Names mine = names_of(p, p->memory && allocate(p));
    Names *names = gather(p, &mine, sizeof mine);
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
    all_are(p, true);
    for (int r = 0; p->memory && r < p->ranks.n_ranks; r++)
        for (int i = 0; r != p->ranks.rank && i < N_SHARED; i++) p->memory->close(p->shared[r][i]);
    all_are(p, true);
    p->device->free(own[RECEIVED]);
    p->device->free(own[FLAG_ROWS]);
    p->device->free(p->rounds);
    p->device->free(p->raised);
    free(p->shared);
    free(p);
}
