/* Ranks as processes with socket pairs between them: killed, stopped, failing, suspended, ending in every order. What the
 * user sees: one line, exit codes, and how soon. */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "dev/test/beside.h"
#include "llmc/base/clock.h"
#include "llmc/base/terminal.h"
#include "llmc/comm/watchdog.h"

enum { N = 3, STILL_THERE = -1, LIMIT = 300 /* seconds: more than anything here takes on a busy machine */ };
/* A machine that has more to do may hold a rank up for seconds: these are longer. */
#define SILENT 8.0
#define STUCK 5.0
#define BEYOND_STUCK (STUCK + 6) /* ten of the steps here, as they are heard of, take up to 5 s */

static const char *const stands = "the newest whole checkpoint is of step 5, in out";
static char hosts[N][64] = {"alpha", "alpha", "alpha"};

/* What the ranks of a job tell the test, and each other, in memory of all. */
typedef struct Shared {
    atomic_int n_sent[N];                   /* messages to one peer */
    _Atomic double last[N], before_last[N]; /* when the rank began to tell all its peers */
    atomic_bool is_there[N];                /* where a test waits for the rank */
} Shared;
static Shared *shared;
static int own_rank = -1;

typedef struct Job {
    pid_t pids[N];
    int codes[N];
    int errors; /* what the ranks print on stderr comes here */
    double begun;
    char said[4096];
    int n_lines;
} Job;

static void sleep_for(double seconds) {
    poll(NULL, 0, (int)(seconds * 1e3));
}

static int n_peers(int rank) {
    return rank == 0 ? N - 1 : 1;
}

/* Takes the place of the C library's, which the watchdog alone calls here. */
ssize_t send(int fd, const void *data, size_t n, int flags) {
    const int rank = own_rank;
    if (rank >= 0 && shared->n_sent[rank] % n_peers(rank) == 0) {
        shared->before_last[rank] = shared->last[rank];
        shared->last[rank] = clock_seconds();
    }
    const ssize_t sent = sendto(fd, data, n, flags, NULL, 0);
    if (rank >= 0) shared->n_sent[rank]++;
    return sent;
}

/* How often the rank has told all its peers what it does. */
static int n_rounds(int rank) {
    return shared->n_sent[rank] / n_peers(rank);
}

static void wait_for(const atomic_bool *what) {
    for (const double until = clock_seconds() + LIMIT; !*what && clock_seconds() < until;) sleep_for(0.01);
}

static volatile sig_atomic_t asked;
static void ask(int signal) {
    asked = signal;
}

/* What a rank does by itself: nothing, until it is told to end. */
static void work(int rank) {
    (void)rank;
    while (!asked) sleep_for(0.05);
    watchdog_stop();
}

/* The same, and then the process of rank 1 takes its time. */
static void work_and_linger(int rank) {
    work(rank);
    if (rank == 1) sleep_for(SILENT + 4);
}

/* `ready` is told once a beat has said what the rank does: the one that is sent just now may be older, the next is not. The
 * rank goes on when `go` says so. */
static void run_rank(int rank, int *watch, void (*body)(int rank), int ready, int go) {
    char byte = 0;
    Rendezvous r = {
        .ranks = {rank, N},
          .watch = watch, .hosts = hosts
    };
    Error err = {0};
    own_rank = rank;
    alarm(2 * LIMIT); /* whatever becomes of the test */
    signal(SIGUSR1, ask);
    if (!watchdog_start(&r, &err)) die(&err);
    watchdog_set_saved("out", rank == 0 ? 5 : -1); /* the others hear it from rank 0 */
    watchdog_set(PHASE_STEP, 10 + rank);
    for (const int before = n_rounds(rank); n_rounds(rank) < before + 2;) sleep_for(0.01);
    if (write(ready, &byte, 1) != 1 || read(go, &byte, 1) != 1) _exit(99);
    body(rank);
    _exit(0);
}

/* Starts the ranks; returns once all do their work. */
static void start_job(Job *job, void (*body)(int rank)) {
    int star[N], others[N], errors[2], ready[2], go[2];
    char bytes[N] = {0};
    *job = (Job){.errors = -1};
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) abort();
    REQUIRE(pipe(errors) == 0 && pipe(ready) == 0 && pipe(go) == 0, "no pipes");
    for (int i = 1; i < N; i++) {
        int pair[2];
        REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "no sockets");
        star[i] = pair[0], others[i] = pair[1];
    }
    star[0] = -1;
    fflush(NULL);
    for (int rank = 0; rank < N; rank++) {
        if ((job->pids[rank] = fork()) != 0) continue;
        for (int i = 1; i < N; i++) {
            if (rank != 0) close(star[i]);
            if (rank != i) close(others[i]);
        }
        dup2(errors[1], 2);
        run_rank(rank, rank == 0 ? star : &others[rank], body, ready[1], go[0]);
    }
    for (int i = 1; i < N; i++) close(star[i]), close(others[i]);
    close(errors[1]), close(ready[1]);
    job->errors = errors[0];
    for (int i = 0; i < N; i++) REQUIRE(read(ready[0], bytes, 1) == 1, "rank %d did not begin", i);
    job->begun = clock_seconds();
    REQUIRE(write(go[1], bytes, N) == N, "the ranks are gone");
    close(ready[0]), close(go[0]), close(go[1]);
}

/* The process runs no more when this returns. */
static void stop_process(pid_t pid) {
    int status = 0;
    kill(pid, SIGSTOP);
    REQUIRE(waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status), "status %#x", (unsigned)status);
}

/* Waits for the ranks, but for those of `except`, a bit each; STILL_THERE after LIMIT. Returns how long it took. */
static double wait_for_job(Job *job, int except) {
    double took = 0;
    for (int i = 0; i < N; i++) {
        int status = 0;
        if (except >> i & 1) continue;
        while (waitpid(job->pids[i], &status, WNOHANG) == 0 && clock_seconds() < job->begun + LIMIT)
            sleep_for(0.01);
        took = clock_seconds() - job->begun;
        job->codes[i] = took >= LIMIT       ? STILL_THERE
                        : WIFEXITED(status) ? WEXITSTATUS(status)
                                            : 128 + WTERMSIG(status);
    }
    return took;
}

/* Reads what all of them said; none is left behind. */
static void end_job(Job *job) {
    for (int i = 0; i < N; i++)
        if (waitpid(job->pids[i], NULL, WNOHANG) == 0) {
            kill(job->pids[i], SIGKILL);
            waitpid(job->pids[i], NULL, 0);
        }
    size_t used = 0;
    for (ssize_t n; (n = read(job->errors, job->said + used, sizeof job->said - 1 - used)) > 0;) used += n;
    close(job->errors);
    munmap(shared, sizeof *shared);
    for (size_t i = 0; i < used; i++) job->n_lines += job->said[i] == '\n';
}

static void expect_codes(const Job *job, int code, int except, const char *what) {
    for (int i = 0; i < N; i++)
        if (!(except >> i & 1))
            CHECK(job->codes[i] == code, "%s: rank %d ends with %d", what, i, job->codes[i]);
}

static void expect_line(const Job *job, const char *line, const char *what) {
    CHECK(job->n_lines == 1 && strcmp(job->said, line) == 0, "%s: %d lines: %s", what, job->n_lines,
          job->said);
}

/* ---- faults ---- */

static void test_killed(int rank) {
    Job job;
    char line[256], what[32];
    snprintf(what, sizeof what, "rank %d killed", rank);
    snprintf(line, sizeof line, "error: rank %d (alpha), in step %d: its process is gone; %s\n", rank,
             10 + rank, stands);
    start_job(&job, work);
    kill(job.pids[rank], SIGKILL);
    wait_for_job(&job, 0);
    end_job(&job);
    job.codes[rank] = EXIT_RUN;
    expect_codes(&job, EXIT_RUN, 0, what);
    expect_line(&job, line, what);
}

/* Steps that are shorter than the time between two beats: rank 0 is far ahead of what it heard of rank 2. */
static WatchPhase far_in;
static void be_far_ahead(int rank) {
    if (rank == 2) {
        wait_for(&shared->is_there[0]);
        raise(SIGKILL);
    }
    watchdog_set(far_in, 300);
    shared->is_there[rank] = true;
    work(rank);
}

static void test_far_ahead(WatchPhase phase, const char *where) {
    Job job;
    char words[100];
    snprintf(words, sizeof words, "rank 2 (alpha), %s: its process is gone", where);
    far_in = phase;
    start_job(&job, be_far_ahead);
    wait_for_job(&job, 1 << 2);
    end_job(&job);
    CHECK(job.n_lines == 1 && strstr(job.said, words), "%s", job.said);
}

/* Stops the rank; returns how long it took until the others had ended. They noticed it no earlier than SILENT after its last
 * words, of which the last round may be cut off. The stopped one ends when it goes on, and says nothing more. */
static double stop_rank(int rank, const char *line, const char *what) {
    Job job;
    start_job(&job, work);
    stop_process(job.pids[rank]);
    const double said = shared->before_last[rank];
    const double took = wait_for_job(&job, 1 << rank);
    kill(job.pids[rank], SIGCONT);
    wait_for_job(&job, ~(1 << rank));
    end_job(&job);
    expect_codes(&job, EXIT_RUN, 0, what);
    expect_line(&job, line, what);
    CHECK(job.begun + took >= said + SILENT, "%s: noticed %g s after its last words", what,
          job.begun + took - said);
    return took;
}

/* A rank that was held up itself gives the others a fresh period: then it is tried again. */
static void test_stopped(int rank) {
    double took = INFINITY;
    char line[256], what[32];
    snprintf(what, sizeof what, "rank %d stopped", rank);
    snprintf(
        line, sizeof line,
        "error: rank %d (alpha), in step %d: no sign of life for %g s: stopped, or its host is gone; %s\n",
        rank, 10 + rank, SILENT, stands);
    for (int again = 0; again < 4 && took > 2 * SILENT; again++) took = stop_rank(rank, line, what);
    CHECK(took <= 2 * SILENT, "%s: %g s", what, took);
}

/* Rank 0 and its host are gone: the other host says so, too. */
static void test_two_hosts(void) {
    Job job;
    strcpy(hosts[2], "beta");
    start_job(&job, work);
    stop_process(job.pids[1]);
    kill(job.pids[0], SIGKILL);
    wait_for_job(&job, 1 << 1);
    end_job(&job);
    CHECK(job.n_lines == 1 && strstr(job.said, "rank 0 (alpha)"), "%d lines: %s", job.n_lines, job.said);
    CHECK(job.codes[2] == EXIT_RUN, "rank 2 ends with %d", job.codes[2]);
}

/* Of those that fail rank 0 is the last to, a little behind the others. */
static int failing; /* bits */
static void fail_then_work(int rank) {
    Error err;
    fail(&err, EXIT_INPUT, "the data of rank %d are bad", rank);
    for (int i = 1; rank == 0 && i < N; i++)
        if (failing == 7) wait_for(&shared->is_there[i]);
    if (rank == 0) sleep_for(0.1);
    shared->is_there[rank] = true;
    if (failing >> rank & 1) die(&err);
    work(rank);
}

/* The others wait 0.3 s for rank 0, then rank 0 says at once what it hears: long before the one that failed would say it
 * itself. Where the machine held one of them up, once more. */
static void test_failure(int ranks, int said_by) {
    Job job;
    double took = INFINITY;
    char line[256], what[32];
    snprintf(what, sizeof what, "ranks %d fail", ranks);
    if (said_by == 0)
        snprintf(line, sizeof line, "error: the data of rank 0 are bad\n");
    else
        snprintf(line, sizeof line, "error: rank %d (alpha), in step %d: the data of rank %d are bad; %s\n",
                 said_by, 10 + said_by, said_by, stands);
    failing = ranks;
    for (int again = 0; again < 8; again++) {
        start_job(&job, fail_then_work);
        took = wait_for_job(&job, 0);
        end_job(&job);
        if (strcmp(job.said, line) == 0 && took < 5) break;
    }
    CHECK(took < 5, "%s: %g s", what, took);
    expect_codes(&job, EXIT_INPUT, 0, what);
    expect_line(&job, line, what);
}

/* A thread of rank 0 writes a checkpoint for longer than the rank that fails would wait otherwise, or without end. */
enum { LONG_SAVE = 8 };
static bool save_ends;
static void fail_beside_a_save(int rank) {
    Error err;
    fail(&err, EXIT_INPUT, "the data of rank %d are bad", rank);
    if (save_ends) watchdog_seconds_stuck = LIMIT;
    if (rank == 0) watchdog_saves(true);
    shared->is_there[rank] = true;
    if (rank == 1) wait_for(&shared->is_there[0]);
    if (rank == 1) die(&err);
    if (rank == 0 && save_ends) {
        sleep_for(LONG_SAVE);
        watchdog_set_saved("out", 9);
        watchdog_saves(false);
    }
    work(rank);
}

static void test_failure_beside_a_save(bool ends) {
    Job job;
    char line[256];
    const char *left = ends ? "the newest whole checkpoint is of step 9, in out" : stands;
    save_ends = ends;
    start_job(&job, fail_beside_a_save);
    const double took = wait_for_job(&job, 0);
    end_job(&job);
    snprintf(line, sizeof line, "error: rank 1 (alpha), in step 11: the data of rank 1 are bad; %s\n", left);
    expect_codes(&job, EXIT_INPUT, 0, "a save");
    expect_line(&job, line, "a save");
    CHECK(took >= (ends ? LONG_SAVE : STUCK), "a save: %g s", took);
}

/* A terminal that takes no more bytes: rank 0's main thread has the lock of all that is printed, and keeps it. */
static void print_for_ever(int rank) {
    static const char bytes[1000];
    int ends[2];
    if (rank > 0) work(rank);
    if (pipe2(ends, O_NONBLOCK) != 0) _exit(99);
    while (write(ends[1], bytes, sizeof bytes) > 0) continue;
    if (fcntl(ends[1], F_SETFL, 0) != 0 || dup2(ends[1], 1) < 0) _exit(99);
    shared->is_there[0] = true;
    for (;;) {
        print_line(stdout, "%01000d", 0);
        fflush(stdout);
    }
}

static void test_blocked_output(void) {
    Job job;
    start_job(&job, print_for_ever);
    wait_for(&shared->is_there[0]);
    sleep_for(0.2);
    kill(job.pids[1], SIGKILL);
    wait_for_job(&job, 1 << 1);
    end_job(&job);
    expect_codes(&job, EXIT_RUN, 1 << 1, "blocked output");
}

/* The main thread is first to see that a connection is gone. */
static void lose(int rank) {
    shared->is_there[rank] = true;
    if (rank == 1) watchdog_lost("a connection is gone");
    work(rank);
}

static void test_lost(void) {
    Job job;
    start_job(&job, lose);
    wait_for(&shared->is_there[1]);
    sleep_for(0.6);
    kill(job.pids[2], SIGKILL);
    wait_for_job(&job, 1 << 2);
    end_job(&job);
    CHECK(job.n_lines == 1 && strstr(job.said, "rank 2 (alpha), in step 12: its process is gone"), "%s",
          job.said);
}

static void test_lost_of_the_living(void) {
    Job job;
    start_job(&job, lose);
    wait_for_job(&job, 0);
    end_job(&job);
    expect_codes(&job, EXIT_RUN, 0, "a lost connection of a rank that lives");
    CHECK(job.n_lines == 1 && strstr(job.said, "rank 1 (alpha), in step 11: a connection is gone"), "%s",
          job.said);
}

/* The time since the start is no step's: rank 0's watchdog goes round once where nothing is judged. */
static void take_steps_in(WatchPhase phase, int n, double seconds) {
    watchdog_set(PHASE_START, 0);
    for (const int before = n_rounds(0); n_rounds(0) < before + 2;) sleep_for(0.01);
    for (int i = 0; i < n; i++) {
        watchdog_set(phase, 20 + i);
        sleep_for(seconds);
        watchdog_progress();
    }
}
static void take_steps(int n, double seconds) {
    take_steps_in(PHASE_STEP, n, seconds);
}

/* Steps, or batches, until what comes behind one does not end on rank 1: no rank goes on. */
static WatchPhase stuck_after, stuck_in;
static void get_stuck(int rank) {
    take_steps_in(stuck_after, 40, 0.02);
    watchdog_set(stuck_in, 60);
    for (;;) sleep_for(1);
}

static void test_stuck(WatchPhase after, WatchPhase in, const char *begin) {
    static const char middle[] = ": no rank has got anything done for ",
                      end[] =
                          " s at most: a GPU or a link hangs; hint: nvidia-smi, or LLMC_STUCK_SECONDS where "
                          "it may take longer; the newest whole checkpoint is of step 5, in out\n";
    Job job;
    stuck_after = after, stuck_in = in;
    start_job(&job, get_stuck);
    const double took = wait_for_job(&job, 0);
    end_job(&job);
    expect_codes(&job, EXIT_RUN, 0, "stuck");
    const size_t length = strlen(job.said);
    CHECK(job.n_lines == 1 && !strncmp(job.said, begin, strlen(begin)) &&
              !strncmp(job.said + strlen(begin), middle, strlen(middle)) && length > strlen(end) &&
              !strcmp(job.said + length - strlen(end), end),
          "%d lines: %s", job.n_lines, job.said);
    CHECK(took >= 40 * 0.02 + STUCK, "stuck: %g s", took);
}

/* ---- no fault ---- */

/* Before the first step has ended nothing is judged. */
static void take_a_long_first_step(int rank) {
    (void)rank;
    sleep_for(STUCK + 2);
    watchdog_stop();
}

/* Nor while rank 0 waits for its disk. */
static void wait_for_a_disk(int rank) {
    take_steps(20, 0.02);
    watchdog_set(PHASE_SAVE, 30);
    watchdog_waits_for_disk(rank == 0);
    sleep_for(BEYOND_STUCK);
    watchdog_waits_for_disk(false);
    watchdog_stop();
}

/* Nor while another rank waits for its own: all others wait for that rank. */
static void wait_for_the_disk_of_another(int rank) {
    take_steps(20, 0.02);
    watchdog_waits_for_disk(rank == 2);
    sleep_for(BEYOND_STUCK);
    watchdog_waits_for_disk(false);
    watchdog_stop();
}

/* Where another rank gets on all do. */
static void wait_for_another(int rank) {
    take_steps(20, 0.02);
    for (int i = 0; i < 40; i++) {
        sleep_for(BEYOND_STUCK / 40);
        if (rank == 2) watchdog_progress();
    }
    watchdog_stop();
}

/* A step may take some times as long as those before. */
static void take_a_long_step(int rank) {
    (void)rank;
    take_steps(2, 1);
    sleep_for(STUCK + 2);
    watchdog_stop();
}

static void *read_late(void *from) {
    char bytes[4096];
    sleep_for(BEYOND_STUCK);
    while (read(*(int *)from, bytes, sizeof bytes) > 0) continue;
    return NULL;
}

/* More than a pipe holds, whose reader comes late. */
static void print_to_nobody(void) {
    pthread_t reader;
    int ends[2];
    const int out = dup(1);
    if (out < 0 || pipe(ends) != 0 || dup2(ends[1], 1) < 0) _exit(99);
    if (pthread_create(&reader, NULL, read_late, &ends[0]) != 0) _exit(99);
    for (int i = 0; i < 100; i++) print_line(stdout, "%01000d", 0);
    fflush(stdout);
    dup2(out, 1);
    close(ends[1]);
    pthread_join(reader, NULL);
}

/* Nor while nobody reads what rank 0 prints. */
static void take_time_to_print(int rank) {
    take_steps(20, 0.02);
    if (rank == 0)
        print_to_nobody();
    else
        sleep_for(BEYOND_STUCK);
    watchdog_stop();
}

static void test_takes_time(void (*body)(int rank), const char *what) {
    Job job;
    start_job(&job, body);
    wait_for_job(&job, 0);
    end_job(&job);
    expect_codes(&job, 0, 0, what);
    CHECK(job.n_lines == 0, "%s: %s", what, job.said);
}

/* `gap`: seconds behind the end of the first. */
static void test_ends(const int *order, double gap, void (*body)(int rank)) {
    Job job;
    start_job(&job, body);
    for (int i = 0; i < N; i++) {
        kill(job.pids[order[i]], SIGUSR1);
        sleep_for(i == 0 ? gap : 0.05);
    }
    wait_for_job(&job, 0);
    end_job(&job);
    expect_codes(&job, 0, 0, "a normal end");
    CHECK(job.n_lines == 0, "ends in the order %d %d %d: %s", order[0], order[1], order[2], job.said);
}

/* Rank 0 goes on first, and hears nothing of the others at once. */
static void test_suspended(void) {
    Job job;
    int before[N];
    start_job(&job, work);
    for (int i = 0; i < N; i++) stop_process(job.pids[i]);
    sleep_for(SILENT + 1);
    for (int i = 0; i < N; i++) before[i] = n_rounds(i);
    for (int i = 0; i < N; i++) {
        kill(job.pids[i], SIGCONT);
        sleep_for(0.1);
    }
    for (int i = 0; i < N; i++)
        while (n_rounds(i) < before[i] + 2 && clock_seconds() < job.begun + LIMIT / 2) sleep_for(0.01);
    for (int i = 0; i < N; i++) kill(job.pids[i], SIGUSR1);
    wait_for_job(&job, 0);
    end_job(&job);
    expect_codes(&job, 0, 0, "a job that was suspended");
    CHECK(job.n_lines == 0, "a job that was suspended: %s", job.said);
}

/* The others are done, and look after rank 0 while it saves. */
static void save_alone(int rank) {
    watchdog_set(PHASE_SAVE, 12);
    shared->is_there[rank] = true;
    if (rank == 0) work(rank);
    watchdog_stop();
}

static void test_stopped_at_the_end(void) {
    Job job;
    start_job(&job, save_alone);
    for (int i = 0; i < N; i++) wait_for(&shared->is_there[i]);
    sleep_for(1); /* rank 0 has heard that the others are done */
    for (int i = 1; i < N; i++) CHECK(waitpid(job.pids[i], NULL, WNOHANG) == 0, "rank %d is gone", i);
    stop_process(job.pids[0]);
    wait_for_job(&job, 1);
    end_job(&job);
    expect_codes(&job, EXIT_RUN, 1, "rank 0 stopped in its last save");
    CHECK(job.n_lines == 1 &&
              strstr(job.said, "error: rank 0 (alpha), in the save of step 12: no sign of life for"),
          "rank 0 stopped in its last save: %s", job.said);
}

/* Without other ranks there is no thread, and die() is what it was. */
static void test_alone(void) {
    Rendezvous r = {
        .ranks = {0, 1}
    };
    Error err;
    CHECK(watchdog_start(&r, &err) && !die_with, "alone");
    watchdog_set(PHASE_STEP, 1);
    watchdog_stop();
}

int main(void) {
    static const int orders[][N] = {
        {0, 1, 2},
        {0, 2, 1},
        {1, 0, 2},
        {1, 2, 0},
        {2, 0, 1},
        {2, 1, 0}
    };
    watchdog_seconds_silent = SILENT;
    watchdog_seconds_stuck = STUCK;
    test_alone();
    for (int rank = 0; rank < N; rank++) {
        BESIDE(test_killed(rank));
        BESIDE(test_stopped(rank));
        BESIDE(test_failure(1 << rank, rank));
    }
    BESIDE(test_failure(7, 0));
    BESIDE(test_failure_beside_a_save(true));
    BESIDE(test_failure_beside_a_save(false));
    BESIDE(test_two_hosts());
    BESIDE(test_far_ahead(PHASE_STEP, "in step 299"));
    BESIDE(test_far_ahead(PHASE_VALIDATION, "in the validation after step 300"));
    BESIDE(test_stopped_at_the_end());
    BESIDE(test_blocked_output());
    BESIDE(test_lost());
    BESIDE(test_lost_of_the_living());
    BESIDE(test_stuck(PHASE_STEP, PHASE_STEP, "error: in step 60"));
    BESIDE(test_stuck(PHASE_STEP, PHASE_SAVE, "error: in the save of step 60"));
    BESIDE(test_stuck(PHASE_VALIDATION, PHASE_VALIDATION, "error: in the validation after step 60"));
    BESIDE(test_takes_time(take_a_long_first_step, "a long first step"));
    BESIDE(test_takes_time(wait_for_a_disk, "a slow disk"));
    BESIDE(test_takes_time(wait_for_another, "another rank gets on"));
    BESIDE(test_takes_time(take_a_long_step, "a long step"));
    BESIDE(test_takes_time(take_time_to_print, "output that nobody reads"));
    BESIDE(test_takes_time(wait_for_the_disk_of_another, "a slow disk of another rank"));
    for (int i = 0; i < 6; i++) BESIDE(test_ends(orders[i], 0.05, work));
    BESIDE(test_ends(orders[3], SILENT + 2, work));
    BESIDE(test_ends(orders[3], SILENT + 2, work_and_linger));
    BESIDE(test_suspended());
    beside_wait(NULL);
    return check_finish("watchdog");
}
