/* Rank 0 listens; the others connect twice, say who they are, and wait for its verdict: all are there, or what is wrong.
 * Hosts of one run have one byte order. */
#include "rendezvous.h"
#include "llmc/base/clock.h"
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "socket.h"
#include "watchdog.h"

enum { PROTOCOL = 2, GUESTS_MAX = 256 };
static const uint64_t hello_magic = 0x6c6c6d632e686920, verdict_magic = 0x6c6c6d632e616c6c;
static const double hello_seconds = 3, retry_seconds = 0.2, verdict_seconds = 3;

static const char connections[] = "connections with other ranks", said[] = "what ranks say to each other";

typedef enum { WORK, WATCH } Kind;

/* The first bytes on a connection. */
typedef struct Hello {
    uint64_t magic, run;
    uint32_t protocol;
    int32_t kind, rank, n_ranks;
    char host[HOST_NAME];
} Hello;

/* What rank 0 answers when all are there, or not; the names of all hosts follow where all is well. */
typedef struct Verdict {
    uint64_t magic;
    int32_t exit_code, unused; /* 0: all is well */
    char text[sizeof((Error *)0)->text];
} Verdict;

/* A connection that has not said yet who it is. */
typedef struct Guest {
    int fd;
    size_t got; /* bytes of hello */
    double deadline;
    Hello hello;
} Guest;

typedef struct Door {
    Rendezvous *r;
    int listening;
    Guest guests[GUESTS_MAX];
    int n_guests;
} Door;

static void close_socket(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

/* ---- rank 0: who is there ---- */

static bool fail_twice(const Rendezvous *r, const Hello *h, Error *err) {
    return fail(
        err, EXIT_INPUT,
        "rank %d is there twice, on %s and on %s; hint: every process its own rank, every job on a host its "
        "own MASTER_PORT (--gpus on more than one host needs a launcher)",
        h->rank, r->hosts[h->rank], h->host);
}

/* Takes over the guest's connection, or closes it: of a stranger, or a rank that has gone again; false where it shows that
 * the run cannot begin: it stays a guest. */
static bool admit(Door *door, const Guest *guest, Error *err) {
    Rendezvous *r = door->r;
    const Hello *h = &guest->hello;
    const bool ours = h->magic == hello_magic && h->protocol == PROTOCOL && h->run == r->place.run &&
                      h->rank > 0 && h->kind >= WORK && h->kind <= WATCH;
    if (!ours || socket_is_closed(guest->fd)) {
        close(guest->fd);
        return true;
    }
    if (h->n_ranks != r->ranks.n_ranks || h->rank >= h->n_ranks)
        return fail(err, EXIT_INPUT,
                    "rank %d (%s) was started as one of %d ranks, rank 0 (%s) as one of %d; hint: the same "
                    "number for every process",
                    h->rank, h->host, h->n_ranks, r->hosts[0], r->ranks.n_ranks);
    int *connection = (h->kind == WORK ? r->work : r->watch) + h->rank;
    if (*connection >= 0 && socket_is_closed(*connection)) close_socket(connection); /* its second try */
    if (*connection >= 0) return fail_twice(r, h, err);
    *connection = guest->fd;
    memcpy(r->hosts[h->rank], h->host, HOST_NAME);
    return true;
}

/* True where the guest is done with: it has said all, it is gone, or it was silent for too long. */
static bool listen_to(Door *door, Guest *guest, bool *ok, Error *err) {
    const bool whole = socket_receive_some(guest->fd, &guest->hello, sizeof guest->hello, &guest->got);
    if (guest->got == sizeof guest->hello) {
        guest->hello.host[HOST_NAME - 1] = '\0';
        *ok = admit(door, guest, err);
        return true;
    }
    if (whole && clock_seconds() < guest->deadline) return false;
    close(guest->fd);
    return true;
}

static bool is_missing(const Rendezvous *r, int rank) {
    return r->work[rank] < 0 || r->watch[rank] < 0;
}

static int n_missing(const Rendezvous *r) {
    int n = 0;
    for (int i = 1; i < r->ranks.n_ranks; i++) n += is_missing(r, i);
    return n;
}

/* "1-3, 6": the ranks that are missing. Returns text. */
static const char *missing_ranks(const Rendezvous *r, char *text, size_t size) {
    size_t n = 0;
    text[0] = '\0';
    for (int i = 1, end; i < r->ranks.n_ranks; i = end + 1) {
        for (end = i; end < r->ranks.n_ranks && is_missing(r, end);) end++;
        if (end == i) continue;
        if (n + 40 > size) return strcpy(text + n, ", ..."), text;
        n +=
            (size_t)snprintf(text + n, size - n, end > i + 1 ? "%s%d-%d" : "%s%d", n ? ", " : "", i, end - 1);
    }
    return text;
}

static bool fail_missing(const Rendezvous *r, int port, double seconds, Error *err) {
    char ranks[200];
    const int n = n_missing(r);
    return fail(err, EXIT_RUN, "rank%s %s of %d did not come to rank 0 (%s, port %d) within %.0f s; hint: %s",
                n > 1 ? "s" : "", missing_ranks(r, ranks, sizeof ranks), r->ranks.n_ranks, r->hosts[0], port,
                seconds,
                n + 1 < r->ranks.n_ranks ? "what they say, or LLMC_JOIN_SECONDS where hosts start late"
                                         : "were the others started, and is MASTER_ADDR this host for them?");
}

static void take_guests(Door *door) {
    while (door->n_guests < GUESTS_MAX) {
        const int fd = socket_accept(door->listening);
        if (fd < 0) return;
        door->guests[door->n_guests++] = (Guest){.fd = fd, .deadline = clock_seconds() + hello_seconds};
    }
}

static bool admit_all(Door *door, int port, double seconds, Error *err) {
    const double deadline = clock_seconds() + seconds;
    bool ok = true;
    while (ok && n_missing(door->r)) {
        struct pollfd waiting[GUESTS_MAX + 1] = {
            {.fd = door->n_guests < GUESTS_MAX ? door->listening : -1, .events = POLLIN}
        };
        if (clock_seconds() >= deadline) return fail_missing(door->r, port, seconds, err);
        for (int i = 0; i < door->n_guests; i++)
            waiting[i + 1] = (struct pollfd){.fd = door->guests[i].fd, .events = POLLIN};
        poll(waiting, (nfds_t)door->n_guests + 1, 100);
        for (int i = door->n_guests - 1; ok && i >= 0; i--)
            if (listen_to(door, &door->guests[i], &ok, err) && ok)
                door->guests[i] = door->guests[--door->n_guests];
        take_guests(door);
    }
    return ok;
}

/* Those that were not let in hear what is wrong, too: one of them may be why. */
static void tell_all(const Door *door, const Error *err) {
    const Rendezvous *r = door->r;
    Verdict verdict = {.magic = verdict_magic, .exit_code = err ? err->exit_code : 0};
    const double deadline = clock_seconds() + verdict_seconds;
    if (err) memcpy(verdict.text, err->text, sizeof verdict.text);
    for (int i = 0; err && i < door->n_guests; i++)
        socket_send(door->guests[i].fd, &verdict, sizeof verdict, deadline);
    for (int i = 1; i < r->ranks.n_ranks; i++) { /* one that is gone is noticed later */
        if (r->work[i] < 0) continue;
        if (socket_send(r->work[i], &verdict, sizeof verdict, deadline) && !err)
            socket_send(r->work[i], r->hosts, (size_t)r->ranks.n_ranks * HOST_NAME, deadline);
    }
}

static bool open_door(Rendezvous *r, double seconds, Error *err) {
    Door door = {.r = r, .listening = r->place.listening};
    int port = r->place.port;
    if (door.listening < 0) door.listening = socket_listen(r->place.address, &port, err);
    if (door.listening < 0) return false;
    const bool ok = admit_all(&door, port, seconds, err);
    if (!ok) take_guests(&door);
    tell_all(&door, ok ? NULL : err);
    close(door.listening);
    for (int i = 0; i < door.n_guests; i++) close(door.guests[i].fd);
    return ok;
}

/* ---- the others ---- */

static int knock(const Rendezvous *r, Kind kind, double deadline, Error *err) {
    Hello hello = {
        .magic = hello_magic,
        .run = r->place.run,
        .protocol = PROTOCOL,
        .kind = kind,
        .rank = r->ranks.rank,
        .n_ranks = r->ranks.n_ranks,
    };
    memcpy(hello.host, r->hosts[r->ranks.rank], HOST_NAME);
    const int fd = socket_connect(r->place.address, r->place.port, deadline, err);
    if (fd < 0) return -1;
    if (socket_send(fd, &hello, sizeof hello, deadline)) return fd;
    fail(err, EXIT_RUN, "%s", strerror(errno));
    close(fd);
    return -1;
}

/* One try. False with err, or with *heard: rank 0 has said what is wrong. */
static bool join(Rendezvous *r, double deadline, bool *heard, Error *err) {
    Verdict verdict;
    *r->work = knock(r, WORK, deadline, err);
    if (*r->work < 0) return false;
    *r->watch = knock(r, WATCH, deadline, err);
    /* Where there was no second connection rank 0 may have ended: then the first has its verdict. */
    const bool both = *r->watch >= 0;
    const double patience =
        both ? deadline + verdict_seconds : fmin(deadline, clock_seconds() + verdict_seconds);
    if (!socket_receive(*r->work, &verdict, sizeof verdict, patience))
        return both && fail(err, EXIT_RUN, "connected, but %s",
                            errno ? "it says nothing" : "it closes the connection");
    if (verdict.magic != verdict_magic) return fail(err, EXIT_RUN, "something else answers there");
    verdict.text[sizeof verdict.text - 1] = '\0';
    if (verdict.exit_code) {
        *heard = true;
        return fail(err, verdict.exit_code, "%s", verdict.text);
    }
    return both && (socket_receive(*r->work, r->hosts, (size_t)r->ranks.n_ranks * HOST_NAME,
                                   deadline + verdict_seconds) ||
                    fail(err, EXIT_RUN, "it has gone"));
}

static bool join_until(Rendezvous *r, double seconds, bool *heard, Error *err) {
    const double deadline = clock_seconds() + seconds;
    while (!join(r, deadline, heard, err)) {
        if (*heard) return false;
        if (clock_seconds() + retry_seconds >= deadline) {
            const Error why = *err;
            return fail(
                err, EXIT_RUN,
                "rank %d (%s): no rank 0 at %s, port %d, within %.0f s: %s; hint: its own output says "
                "whether it ended, MASTER_ADDR and MASTER_PORT where it is",
                r->ranks.rank, r->hosts[r->ranks.rank], r->place.address, r->place.port, seconds, why.text);
        }
        close_socket(r->work);
        close_socket(r->watch);
        usleep((useconds_t)(retry_seconds * 1e6));
    }
    return true;
}

/* ---- all ---- */

static void count_hosts(Rendezvous *r) {
    const int rank = r->ranks.rank;
    int before = 0, together = 0;
    for (int i = 0; i < r->ranks.n_ranks; i++) {
        const bool mine = strcmp(r->hosts[i], r->hosts[rank]) == 0;
        int first = 0;
        while (strcmp(r->hosts[first], r->hosts[i]) != 0) first++;
        r->n_hosts += first == i;
        together += mine;
        before += mine && i < rank;
    }
    if (r->place.local_rank < 0) r->place.local_rank = before;
    if (r->place.n_local == 0) r->place.n_local = together;
}

/* Rank 0 has two connections with each other rank, ranks of CPUs one more. GPUs, shards and what this process was given take more
 * than is counted here: WANTED of them where the system allows it. */
bool rendezvous_room(int n_ranks, Error *err) {
    enum { CONNECTIONS = 3, OTHER_FILES = 24, WANTED = 1024 };
    const rlim_t sockets = (rlim_t)n_ranks * CONNECTIONS, needed = sockets + OTHER_FILES;
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= sockets + WANTED) return true;
    limit.rlim_cur = limit.rlim_max < sockets + WANTED ? limit.rlim_max : sockets + WANTED;
    return (needed <= limit.rlim_max && setrlimit(RLIMIT_NOFILE, &limit) == 0) ||
           fail(err, EXIT_RUN,
                "%d ranks need %llu open files in a process, the limit is %llu; hint: ulimit -n", n_ranks,
                (unsigned long long)needed, (unsigned long long)limit.rlim_max);
}

bool rendezvous_open(Rendezvous *r, const Place *place, double seconds, bool *rank_0_knows, Error *err) {
    const bool leads = ranks_leads(place->ranks);
    const int n = place->ranks.n_ranks, n_connections = leads ? n : 1;
    *r = (Rendezvous){0};
    *rank_0_knows = leads;
    if (!rendezvous_room(n, err)) return false;
    *r = (Rendezvous){
        .ranks = place->ranks,
        .place = *place,
        .work = must_allocate((size_t)n_connections * sizeof *r->work, connections),
        .watch = must_allocate((size_t)n_connections * sizeof *r->watch, connections),
        .hosts = must_allocate((size_t)n * sizeof *r->hosts, connections),
    };
    memset(r->hosts, 0, (size_t)n * sizeof *r->hosts);
    for (int i = 0; i < n_connections; i++) r->work[i] = r->watch[i] = -1;
    gethostname(r->hosts[place->ranks.rank], HOST_NAME - 1);
    const bool ok = n == 1  ? true
                    : leads ? open_door(r, seconds, err)
                            : join_until(r, seconds, rank_0_knows, err);
    if (ok)
        count_hosts(r);
    else
        rendezvous_close(r);
    return ok;
}

void rendezvous_close(Rendezvous *r) {
    const int n = ranks_leads(r->ranks) ? r->ranks.n_ranks : 1;
    for (int i = 0; i < n; i++) {
        close_socket(&r->work[i]);
        close_socket(&r->watch[i]);
    }
    free(r->work);
    free(r->watch);
    free(r->hosts);
    *r = (Rendezvous){0};
}

const char *rank_name(char name[RANK_NAME_BYTES], const Rendezvous *r, int rank) {
    snprintf(name, RANK_NAME_BYTES, r->hosts ? "rank %d (%s)" : "rank %d", rank,
             r->hosts ? r->hosts[rank] : NULL);
    return name;
}

/* ---- what hosts say ---- */

/* The watchdog knows more: the step, and what the rank was doing. */
static _Noreturn void end_lost(const Rendezvous *r, int rank) {
    char text[256], name[RANK_NAME_BYTES], own[RANK_NAME_BYTES];
    snprintf(text, sizeof text, "%s is gone: its connection to %s has ended", rank_name(name, r, rank),
             rank_name(own, r, r->ranks.rank));
    watchdog_lost(text);
}

static void send_to(const Rendezvous *r, int rank, const void *data, size_t bytes) {
    if (!socket_send(r->work[ranks_leads(r->ranks) ? rank : 0], data, bytes, INFINITY)) end_lost(r, rank);
}

static void receive_from(const Rendezvous *r, int rank, void *data, size_t bytes) {
    if (!socket_receive(r->work[ranks_leads(r->ranks) ? rank : 0], data, bytes, INFINITY)) end_lost(r, rank);
}

void rendezvous_broadcast(Rendezvous *r, void *data, size_t bytes) {
    if (!ranks_leads(r->ranks)) {
        receive_from(r, 0, data, bytes);
        return;
    }
    for (int i = 1; i < r->ranks.n_ranks; i++) send_to(r, i, data, bytes);
}

void rendezvous_collect(Rendezvous *r, void *out, const void *mine, size_t bytes) {
    if (!ranks_leads(r->ranks)) {
        send_to(r, 0, mine, bytes);
        return;
    }
    memcpy(out, mine, bytes);
    for (int i = 1; i < r->ranks.n_ranks; i++) receive_from(r, i, (char *)out + (size_t)i * bytes, bytes);
}

void rendezvous_gather(Rendezvous *r, void *out, const void *mine, size_t bytes) {
    rendezvous_collect(r, out, mine, bytes);
    rendezvous_broadcast(r, out, (size_t)r->ranks.n_ranks * bytes);
}

/* ---- do they agree ---- */

/* The first rank that failed, whose err all get; -1: none. The texts go around only where there is one. */
static int first_failure(Rendezvous *r, bool ok, Error *err) {
    const int n = r->ranks.n_ranks;
    const char mine = ok;
    char *all_ok = must_allocate((size_t)n, said);
    int failed = 0;
    rendezvous_gather(r, all_ok, &mine, 1);
    while (failed < n && all_ok[failed]) failed++;
    free(all_ok);
    if (failed == n) return -1;
    Error own = {0}, *errors = must_allocate((size_t)n * sizeof own, said);
    if (!ok) own = *err;
    rendezvous_gather(r, errors, &own, sizeof own);
    *err = errors[failed];
    free(errors);
    return failed;
}

bool ranks_agree(Rendezvous *r, bool ok, Error *err) {
    const int failed = first_failure(r, ok, err);
    const Error why = *err;
    char name[RANK_NAME_BYTES];
    return failed < 0 || fail(err, why.exit_code, "%s: %s", rank_name(name, r, failed), why.text);
}

/* The line of text; *next is where the next one begins. */
static int line_length(const char *text, const char **next) {
    const size_t n = strcspn(text, "\n");
    *next = text + n + (text[n] == '\n');
    return (int)n;
}

static bool same_lines(const Rendezvous *r, const char *mine, const char *of_rank_0, Error *err) {
    while (*mine || *of_rank_0) {
        const char *my_next, *next_of_0;
        const int n = line_length(mine, &my_next), m = line_length(of_rank_0, &next_of_0);
        if (n != m || memcmp(mine, of_rank_0, (size_t)n) != 0)
            return fail(err, EXIT_INPUT,
                        "rank %d (%s) has %.*s, rank 0 (%s) has %.*s; hint: the same on every rank",
                        r->ranks.rank, r->hosts[r->ranks.rank], n ? n : 7, n ? mine : "nothing", r->hosts[0],
                        m ? m : 7, m ? of_rank_0 : "nothing");
        mine = my_next;
        of_rank_0 = next_of_0;
    }
    return true;
}

bool ranks_have_same(Rendezvous *r, const char *text, Error *err) {
    size_t n = strlen(text) + 1;
    rendezvous_broadcast(r, &n, sizeof n);
    char *of_rank_0 = must_allocate(n, said);
    if (ranks_leads(r->ranks)) memcpy(of_rank_0, text, n);
    rendezvous_broadcast(r, of_rank_0, n);
    const bool ok = same_lines(r, text, of_rank_0, err);
    free(of_rank_0);
    return first_failure(r, ok, err) < 0;
}
