/* A star of heartbeats: every rank sends one to rank 0, and rank 0 to every rank, on connections that carry nothing
 * else. Who notices a fault ends its own process; rank 0 tells the others first. */
#include "watchdog.h"
#include "llmc/base/clock.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include "llmc/base/terminal.h"
#include "llmc/base/thread.h"
#include "socket.h"

double watchdog_seconds_silent = 8, watchdog_seconds_stuck = 60;

enum {
    BEATS_PER_PERIOD = 16, /* of watchdog_seconds_silent */
    MS_FOR_LINES = 2000,   /* the end waits so long for a terminal that takes none */
    MS_TO_BE_TOLD = 6000,  /* a rank that fails waits so long for rank 0, which may have much else to do */
    MS_FOR_VERDICT = 2000, /* a rank that lost a connection waits so long beyond the longest silence */
    MS_FOR_RANK_0 = 300,   /* a failure that all ranks have is rank 0's to say */
    MS_BEHIND_SAVE = 1000, /* so it is behind a save that rank 0 ended first */
    MS_FOR_SIGNAL = 200,   /* a signal that ends all ranks before their first step reaches this one, too */
    LONGEST_GAPS = 10,     /* a step, or a batch, may take so many times the longest before it */
    MS_TO_HEAR = 500       /* rank 0's connections stay open so long behind its last word */
};

typedef enum { BEAT, FAILURE, VERDICT } MessageKind;

/* The first HEAD bytes, then n of text. */
typedef struct Message {
    uint32_t kind, phase;
    int64_t step, progress, saved;
    int32_t exit_code;
    uint32_t waits_for_disk, saves, n;
    char text[sizeof((Error *)0)->text];
} Message;
enum { HEAD = offsetof(Message, text) };

typedef struct Peer {
    int rank, fd; /* -1: it is over, or lost and said */
    double heard; /* when it last said something */
    Message last; /* what it said then; all 0 before */
    Message in;   /* what has come of the next */
    size_t n_in;
} Peer;

static struct Watchdog {
    Rendezvous *r;
    Peer *peers; /* rank 0: all others; else rank 0 */
    int n_peers;
    atomic_uint phase;
    _Atomic int64_t step;
    _Atomic int64_t progress; /* steps, batches of validations and tokens done */
    atomic_bool waits_for_disk;
    atomic_bool saves, leader_saves; /* a thread of this rank, of rank 0, writes a checkpoint */
    atomic_bool leader_ended;        /* rank 0 has done all its work */
    int failed_rank;                 /* on rank 0: its failure waits for that; -1: none */
    Message failure;
    double failed_at, saved_at; /* when it came, when `saves` was seen last */
    _Atomic(const char *) out;  /* where checkpoints go; NULL: nowhere */
    _Atomic int64_t saved;      /* the step of the newest */
    int64_t all_progress;       /* on rank 0: of all ranks */
    double moved_at;            /* when that changed last, or could not */
    double longest_gap;         /* until then, in a step or a validation; 0: none has ended yet */
    atomic_bool stopping;
    int wake; /* ends the thread's wait */
    pthread_t thread;
    pthread_mutex_t sending;
    pthread_mutex_t ending; /* whoever has it ends the process: one line, one exit code */
} dog = {.sending = PTHREAD_MUTEX_INITIALIZER, .ending = PTHREAD_MUTEX_INITIALIZER, .wake = -1, .saved = -1};

static void sleep_ms(int ms) {
    poll(NULL, 0, ms);
}

/* ---- messages ---- */

/* A connection that takes none is noticed by its silence. */
static void tell_all(MessageKind kind, const Error *what) {
    Message m = {.kind = kind,
                 .phase = dog.phase,
                 .step = dog.step,
                 .progress = dog.progress,
                 .saved = dog.saved,
                 .waits_for_disk = dog.waits_for_disk,
                 .saves = dog.saves};
    if (what) {
        m.exit_code = what->exit_code;
        m.n = (uint32_t)strlen(what->text);
        memcpy(m.text, what->text, m.n);
    }
    pthread_mutex_lock(&dog.sending);
    for (int i = 0; i < dog.n_peers; i++)
        if (dog.peers[i].fd >= 0) send(dog.peers[i].fd, &m, HEAD + m.n, MSG_DONTWAIT | MSG_NOSIGNAL);
    pthread_mutex_unlock(&dog.sending);
}

/* ---- the end ---- */

/* Whatever holds up the last line, a terminal that nobody reads, say: the process ends. It waits in short pieces: one of them
 * is all that passes while the whole process is stopped. */
static void *end_anyway(void *exit_code) {
    enum { PIECES = 20 };
    for (int i = 0; i < PIECES; i++) sleep_ms(MS_FOR_LINES / PIECES);
    _exit((int)(intptr_t)exit_code);
}

/* A process that ends with unread bytes resets its connections, and what it said last may be lost: so the others hang
 * up first. */
static void wait_until_heard(void) {
    const double until = clock_seconds() + MS_TO_HEAR * 1e-3;
    char bytes[1024];
    for (int i = 0; i < dog.n_peers; i++) {
        struct pollfd p = {.fd = dog.peers[i].fd, .events = POLLIN};
        while (p.fd >= 0 && clock_seconds() < until)
            if (poll(&p, 1, 10) > 0 && recv(p.fd, bytes, sizeof bytes, MSG_DONTWAIT) == 0) break;
    }
}

/* Ends the process; `line` NULL: another rank says why. */
static _Noreturn void end_run(const char *line, int exit_code) {
    pthread_t thread;
    pthread_mutex_lock(&dog.ending); /* and never unlocked */
    if (thread_start(&thread, end_anyway, (void *)(intptr_t)exit_code)) pthread_detach(thread);
    tell_all(VERDICT, &(Error){.exit_code = exit_code});
    if (line) {
        fflush(stdout);
        print_line(stderr, "error: %s", line);
    }
    if (ranks_leads(dog.r->ranks)) wait_until_heard();
    _exit(exit_code);
}

/* What a rank was doing. */
static const char *doing(uint32_t phase, int64_t step, char *text, size_t size) {
    static const char *const formats[N_PHASES] = {
        [PHASE_START] = "before its first step",
        [PHASE_STEP] = "in step %lld",
        [PHASE_VALIDATION] = "in the validation after step %lld",
        [PHASE_SAMPLE] = "in the sample after step %lld",
        [PHASE_SAVE] = "in the save of step %lld",
        [PHASE_END] = "at the end",
    };
    snprintf(text, size, formats[phase < N_PHASES ? phase : PHASE_START], (long long)step);
    return text;
}

/* What the run leaves: the end of a line. */
static const char *leaves(char *text, size_t size) {
    const char *out = dog.out;
    const int64_t saved = dog.saved;
    if (!out)
        text[0] = '\0';
    else if (saved < 0)
        snprintf(text, size, "; no checkpoint was saved");
    else
        snprintf(text, size, "; the newest whole checkpoint is of step %lld, in %s", (long long)saved, out);
    return text;
}

/* The line about a rank, and the end. */
static _Noreturn void end_for(int rank, uint32_t phase, int64_t step, const char *why, int exit_code) {
    char line[3072], who[RANK_NAME_BYTES], what[64], left[1200];
    snprintf(line, sizeof line, "%s, %s: %s%s", rank_name(who, dog.r, rank),
             doing(phase, step, what, sizeof what), why, leaves(left, sizeof left));
    end_run(line, exit_code);
}

/* Without rank 0 the lowest rank of each host speaks. */
static bool speaks(void) {
    const Rendezvous *r = dog.r;
    int lowest = 1;
    if (ranks_leads(r->ranks)) return true;
    while (lowest < r->ranks.rank && strcmp(r->hosts[lowest], r->hosts[r->ranks.rank]) != 0) lowest++;
    return lowest == r->ranks.rank;
}

/* Its last beat may be many short steps old; but ranks wait for each other, so it was one step behind this rank at most, and
 * behind a step at what this rank is at. */
static void lost(const Peer *p, const char *why) {
    const WatchPhase phase = dog.phase;
    if (phase == PHASE_START) sleep_ms(MS_FOR_SIGNAL);
    const int64_t least = phase == PHASE_STEP ? dog.step - 1 : phase == PHASE_START ? 0 : dog.step;
    const bool is_old = p->last.step < least;
    if (!speaks()) end_run(NULL, dog.r->place.is_own ? PLACE_UNSAID : EXIT_RUN);
    end_for(p->rank, is_old ? phase : p->last.phase, is_old ? least : p->last.step, why, EXIT_RUN);
}

/* ---- the thread ---- */

static _Noreturn void end_for_failure(int rank, const Message *m) {
    char why[sizeof m->text + 1];
    snprintf(why, sizeof why, "%.*s", (int)m->n, m->text);
    end_for(rank, m->phase, m->step, why, m->exit_code);
}

static void take(Peer *p, double t) {
    const Message *m = &p->in;
    if (m->kind == VERDICT) end_run(NULL, m->exit_code);
    p->last = *m;
    if (p->rank == 0) {
        if (m->saved > dog.saved) dog.saved = m->saved;
        dog.leader_saves = m->saves;
        dog.leader_ended = m->phase == PHASE_END;
    }
    if (m->kind != FAILURE || dog.failed_rank >= 0) return;
    if (!dog.saves) end_for_failure(p->rank, m);
    dog.failed_rank = p->rank;
    dog.failure = *m;
    dog.failed_at = dog.saved_at = t;
}

/* A rank that failed waits for the checkpoint that is being written, which may be all that the run leaves. */
static void check_failure(double t) {
    if (dog.saves) dog.saved_at = t;
    if (dog.failed_rank < 0) return;
    if (t - dog.saved_at > MS_BEHIND_SAVE * 1e-3 || t - dog.failed_at > watchdog_seconds_stuck)
        end_for_failure(dog.failed_rank, &dog.failure);
}

/* Takes what has come. False where the connection is lost. */
static bool listen_to(Peer *p, double t) {
    for (;;) {
        const size_t before = p->n_in, whole = before < HEAD ? HEAD : HEAD + p->in.n;
        if (!socket_receive_some(p->fd, &p->in, whole, &p->n_in)) return false;
        if (p->n_in > before) p->heard = clock_seconds();
        if (p->n_in < whole) return true;
        if (p->in.n > sizeof p->in.text) return false;
        if (p->n_in < HEAD + p->in.n) continue;
        take(p, t);
        p->n_in = 0;
    }
}

/* At the time t: the same by which this process knows that it was stopped itself. */
static void check(Peer *p, double t) {
    char why[80];
    if (p->fd < 0) return;
    if (!listen_to(p, t)) {
        if (p->last.phase != PHASE_END) lost(p, "its process is gone");
        p->fd = -1;
    } else if (p->last.phase != PHASE_END && t - p->heard > watchdog_seconds_silent) {
        snprintf(why, sizeof why, "no sign of life for %g s: stopped, or its host is gone",
                 watchdog_seconds_silent);
        lost(p, why);
    }
}

static _Noreturn void end_stuck(double seconds) {
    char line[2048], what[64], left[1200];
    snprintf(line, sizeof line,
             "%s: no rank has got anything done for %.0f s, a %s took %.2g s at most: a GPU or a link hangs; "
             "hint: nvidia-smi, or LLMC_STUCK_SECONDS where it may take longer%s",
             doing(dog.phase, dog.step, what, sizeof what), seconds,
             dog.phase == PHASE_VALIDATION ? "batch" : "step", dog.longest_gap, leaves(left, sizeof left));
    end_run(line, EXIT_RUN);
}

/* A thread prints just now: where that lasts, nobody reads it (ctrl-S, a pager). */
static bool is_printing(FILE *out) {
    if (ftrylockfile(out) != 0) return true;
    funlockfile(out);
    return false;
}

static bool waits_for_disk(void) {
    bool waits = dog.waits_for_disk;
    for (int i = 0; i < dog.n_peers; i++) waits = waits || dog.peers[i].last.waits_for_disk;
    return waits;
}

/* Whether the ranks have nothing but GPUs and each other to wait for. */
static bool is_judged(void) {
    return dog.phase != PHASE_START && dog.phase != PHASE_END && !waits_for_disk() && !is_printing(stdout) &&
           !is_printing(stderr);
}

/* Of all ranks together: they wait for each other, so where one hangs none gets on. */
static void check_progress(double t) {
    const bool counts = dog.phase == PHASE_STEP || dog.phase == PHASE_VALIDATION;
    int64_t all = dog.progress;
    for (int i = 0; i < dog.n_peers; i++) all += dog.peers[i].last.progress;
    const double since = t - dog.moved_at;
    if (all != dog.all_progress && counts && since > dog.longest_gap) dog.longest_gap = since;
    if (all != dog.all_progress || !is_judged()) dog.moved_at = t;
    dog.all_progress = all;
    if (dog.longest_gap > 0 && t - dog.moved_at > watchdog_seconds_stuck + LONGEST_GAPS * dog.longest_gap)
        end_stuck(since);
}

static void wait_for_news(struct pollfd *polled, int ms) {
    for (int i = 0; i < dog.n_peers; i++)
        polled[i] = (struct pollfd){.fd = dog.peers[i].fd, .events = POLLIN};
    polled[dog.n_peers] = (struct pollfd){.fd = dog.wake, .events = POLLIN};
    poll(polled, (nfds_t)dog.n_peers + 1, ms > 0 ? ms : 0);
}

/* A process that was stopped itself, with the whole job, say, knows nothing of the others' silence: they get a fresh
 * period. */
static void *watch(void *polled) {
    double last = clock_seconds(), beat = 0;
    while (!dog.stopping) {
        const double period = watchdog_seconds_silent / BEATS_PER_PERIOD;
        if (clock_seconds() >= beat) {
            beat = clock_seconds() + period;
            tell_all(BEAT, NULL);
        }
        wait_for_news(polled, (int)((beat - clock_seconds()) * 1e3) + 1);
        const double t = clock_seconds();
        const bool was_stopped = t - last > watchdog_seconds_silent / 4;
        for (int i = 0; was_stopped && i < dog.n_peers; i++) dog.peers[i].heard = t;
        if (was_stopped) dog.moved_at = t;
        last = t;
        for (int i = 0; i < dog.n_peers; i++) check(&dog.peers[i], t);
        if (ranks_leads(dog.r->ranks)) check_failure(t), check_progress(t);
    }
    free(polled);
    return NULL;
}

/* ---- calls of the main thread ---- */

bool watchdog_start(Rendezvous *r, Error *err) {
    const bool leads = ranks_leads(r->ranks);
    const int n_peers = leads ? r->ranks.n_ranks - 1 : 1;
    if (r->ranks.n_ranks == 1) return true;
    dog.peers = must_allocate((size_t)n_peers * sizeof *dog.peers, "the watchdog");
    struct pollfd *polled = must_allocate(((size_t)n_peers + 1) * sizeof *polled, "the watchdog");
    for (int i = 0; i < n_peers; i++) {
        const int rank = leads ? i + 1 : 0;
        dog.peers[i] = (Peer){.rank = rank, .fd = r->watch[rank], .heard = clock_seconds()};
    }
    dog.r = r;
    dog.n_peers = n_peers;
    dog.wake = eventfd(0, EFD_CLOEXEC);
    dog.stopping = dog.saves = dog.leader_saves = dog.leader_ended = false;
    dog.failed_rank = -1;
    dog.phase = PHASE_START;
    dog.progress = dog.all_progress = 0;
    dog.longest_gap = 0;
    dog.moved_at = clock_seconds();
    if (dog.wake >= 0 && thread_start(&dog.thread, watch, polled)) {
        die_with = watchdog_die;
        return true;
    }
    dog.r = NULL;
    return fail(err, EXIT_RUN, "the watchdog's thread cannot be started: %s", strerror(errno));
}

void watchdog_set(WatchPhase phase, int64_t step) {
    dog.step = step;
    dog.phase = phase;
}

void watchdog_progress(void) {
    dog.progress++;
}

void watchdog_waits_for_disk(bool waits) {
    dog.waits_for_disk = waits;
}

void watchdog_saves(bool saves) {
    dog.saves = saves;
}

void watchdog_set_saved(const char *out, int64_t step) {
    if (step > dog.saved) dog.saved = step;
    dog.out = out;
    if (dog.r && ranks_leads(dog.r->ranks)) tell_all(BEAT, NULL);
}

void watchdog_die(const Error *err) {
    if (!dog.r) die(err);
    const int rank = dog.r->ranks.rank;
    if (rank > 0) { /* the thread ends the process once rank 0 has said why */
        sleep_ms(MS_FOR_RANK_0);
        tell_all(FAILURE, err);
        for (double until = clock_seconds() + MS_TO_BE_TOLD * 1e-3; clock_seconds() < until; sleep_ms(50))
            if (dog.leader_saves) until = clock_seconds() + MS_TO_BE_TOLD * 1e-3;
    }
    if (rank == 0) end_run(err->text, err->exit_code);
    end_for(rank, dog.phase, dog.step, err->text, err->exit_code);
}

void watchdog_lost(const char *what) {
    Error err;
    if (dog.r) sleep_ms((int)(watchdog_seconds_silent * 1e3) + MS_FOR_VERDICT);
    fail(&err, EXIT_RUN, "%s", what);
    watchdog_die(&err);
}

void watchdog_stop(void) {
    if (!dog.r) return;
    die_with = NULL;
    watchdog_set(PHASE_END, dog.step);
    tell_all(BEAT, NULL);
    while (!ranks_leads(dog.r->ranks) && !dog.leader_ended) sleep_ms(10); /* or its thread ends the process */
    dog.stopping = true;
    eventfd_write(dog.wake, 1);
    pthread_join(dog.thread, NULL);
    close(dog.wake);
    free(dog.peers);
    dog.r = NULL;
    dog.n_peers = 0;
}
