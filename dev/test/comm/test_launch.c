/* The parent of --gpus: what its ranks are told, what becomes of them when one ends badly, a signal comes or the parent
 * dies, and starting again. The ranks are this program, too: `test_launch WHAT FOLDER`. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>
#include "llmc/comm/launch.h"
#include "llmc/base/clock.h"
#include "llmc/comm/place.h"
#include "dev/test/beside.h"
#include "dev/test/folder.h"

enum { N = 3, LIMIT = 100 /* seconds: more than anything here takes on a busy machine */ };

/* ---- a rank ---- */

static volatile sig_atomic_t caught;

static void catch_signal(int number) {
    caught = number;
}

/* The parent does nothing for a rank: it ends by itself, which shows. */
static const char *alarm_note;
static void note_alarm(int number) {
    close(open(alarm_note, O_CREAT | O_WRONLY, 0600));
    _exit(number);
}

static void leave_note(const char *out, const char *name, int rank, const char *text) {
    char path[300];
    snprintf(path, sizeof path, "%s/%s_%d", out, name, rank);
    FILE *file = fopen(path, "w");
    if (file) fprintf(file, "%s", text), fclose(file);
}

/* What the rank sees of its start: "RANK/WORLD_SIZE LOCAL/LOCAL_SIZE listens OMP_NUM_THREADS". */
static void note_place(const char *out) {
    Place p;
    Error err = {0};
    char text[200];
    struct stat info;
    const bool ok = place_find(&p, &err) && p.is_own && strcmp(p.address, "127.0.0.1") == 0 && p.port > 0;
    const bool listens = p.listening >= 0 && fstat(p.listening, &info) == 0 && S_ISSOCK(info.st_mode);
    snprintf(text, sizeof text, "%d/%d %d/%d %d %d", p.ranks.rank, p.ranks.n_ranks, p.local_rank, p.n_local,
             listens, getenv("OMP_NUM_THREADS") != NULL);
    leave_note(out, "place", p.ranks.rank, ok ? text : err.text);
}

static int be_rank(int argc, char **argv) {
    const char *what = argv[1], *out = argv[2];
    const int rank = atoi(getenv("RANK"));
    const bool resumes = argc > 3 && strcmp(argv[argc - 1], "--resume") == 0;
    char pid[16], late[300];
    snprintf(late, sizeof late, "%s/late", out);
    alarm_note = late;
    signal(SIGALRM, note_alarm);
    alarm(LIMIT);
    signal(SIGTERM, catch_signal);
    signal(SIGUSR1, catch_signal);
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    leave_note(out, "pid", rank, pid);
    if (!strcmp(what, "place")) return note_place(out), 0;
    if (!strcmp(what, "input") && rank == 1) return EXIT_INPUT;
    if (!strcmp(what, "killed") && rank == 1) raise(SIGKILL);
    if (!strcmp(what, "again")) return resumes || rank != 1 ? 0 : EXIT_RUN;
    if (!strcmp(what, "never")) return rank == 2 ? EXIT_RUN : 0;
    if (!strcmp(what, "crash")) return rank == 0 ? raise(SIGABRT) : 0;
    if (!strncmp(what, "lingers", 7) && rank != what[7] - '0') return 0;
    if (!strncmp(what, "lingers", 7)) signal(SIGTERM, SIG_IGN);
    if (!strcmp(what, "prints")) return puts("a line") < 0 || fflush(stdout);
    if (!strcmp(what, "saves") && resumes) return 0;
    while (caught != SIGTERM) {
        usleep(20000);
        if (caught == SIGUSR1) leave_note(out, "asked", rank, "to save");
        if (caught == SIGUSR1 && !strcmp(what, "saves")) return EXIT_RUN;
    }
    return 0;
}

/* ---- the parent ---- */

/* A process that runs launch_ranks and prints to these. */
static pid_t start_printing(const char *what, int n, int restarts, int out, int err) {
    fflush(stdout);
    const pid_t parent = fork();
    if (parent == 0) {
        char *argv[] = {(char *)"test_launch", (char *)what, folder, NULL};
        dup2(out, STDOUT_FILENO);
        dup2(err, STDERR_FILENO);
        _exit(launch_ranks(&(Launch){.n_ranks = n, .restarts = restarts}, argv));
    }
    return parent;
}

/* Its stderr in FOLDER/said. */
static pid_t start(const char *what, int n, int restarts) {
    const int said = open(path_of("said"), O_CREAT | O_WRONLY | O_TRUNC, 0600);
    const pid_t parent = start_printing(what, n, restarts, STDOUT_FILENO, said);
    close(said);
    return parent;
}

static int end(pid_t parent) {
    int status = 0;
    waitpid(parent, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static const char *text_of(const char *name) {
    static char text[1000];
    FILE *file = fopen(path_of(name), "r");
    text[0] = '\0';
    if (file) text[fread(text, 1, sizeof text - 1, file)] = '\0', fclose(file);
    return text;
}

static pid_t pid_of(int rank) {
    char name[16];
    snprintf(name, sizeof name, "pid_%d", rank);
    return atoi(text_of(name));
}

/* Asked once more it may not be so: a rank leaves its note again and again, and meanwhile it is empty. */
static bool wait_for(bool (*is_so)(void)) {
    for (const double until = clock_seconds() + LIMIT; clock_seconds() < until; usleep(20000))
        if (is_so()) return true;
    return false;
}

static bool all_there(void) {
    for (int i = 0; i < N; i++)
        if (pid_of(i) <= 0) return false;
    return true;
}

static bool all_gone(void) {
    for (int i = 0; i < N; i++)
        if (pid_of(i) > 0 && kill(pid_of(i), 0) == 0) return false;
    return true;
}

static bool all_asked(void) {
    return *text_of("asked_0") && *text_of("asked_1") && *text_of("asked_2");
}

/* ---- tests ---- */

/* Of a run in which nothing happens: some 0.3 s with CUDA's libraries, and seconds on a busy machine. */
static double run_seconds;

static void time_run(void) {
    const double begun = clock_seconds();
    CHECK(end(start("place", N, 0)) == 0, "exit code");
    run_seconds = clock_seconds() - begun;
}

static void test_place(void) {
    char name[32], expected[40];
    unsetenv("OMP_NUM_THREADS");
    time_run();
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "place_%d", i);
        snprintf(expected, sizeof expected, "%d/3 %d/3 %d 1", i, i, i == 0);
        CHECK(strcmp(text_of(name), expected) == 0, "rank %d: found %s", i, text_of(name));
    }
}

/* `said`: what stands on stderr, "" for nothing. Returns how long it took. */
static double test_end(const char *what, int restarts, int code, const char *said) {
    const double begun = clock_seconds();
    const int got = end(start(what, N, restarts));
    const double seconds = clock_seconds() - begun;
    CHECK(got == code, "%s: exit code %d", what, got);
    CHECK(*said ? strstr(text_of("said"), said) != NULL : !*text_of("said"), "%s: says %s", what,
          text_of("said"));
    CHECK(all_gone() && access(path_of("late"), F_OK) != 0, "%s: a process is left", what);
    return seconds;
}

/* The others would go on: they have 3 s to end, then the parent ends them. */
static void test_left(const char *what, int restarts, int code, const char *said) {
    const double seconds = test_end(what, restarts, code, said);
    CHECK(seconds >= 3, "%s: after %.1f s", what, seconds);
}

/* All have ended: the parent waits for nobody, and takes what up to three runs take by themselves. Where the machine held
 * them up, it is tried again. */
static void test_ended(const char *what, int restarts, int code, const char *said) {
    double seconds = INFINITY;
    for (int again = 0; again < 6 && seconds > 2.5 + 4 * run_seconds; again++) {
        if (again) time_run();
        seconds = test_end(what, restarts, code, said);
    }
    CHECK(seconds <= 2.5 + 4 * run_seconds, "%s: after %.1f s", what, seconds);
}

/* A parent that cannot open its pipe says so. */
static void test_no_files(void) {
    const pid_t parent = fork();
    if (parent == 0) {
        dup2(open(path_of("said"), O_CREAT | O_WRONLY | O_TRUNC, 0600), STDERR_FILENO);
        setrlimit(RLIMIT_NOFILE, &(struct rlimit){3, 3});
        char *argv[] = {(char *)"test_launch", NULL};
        _exit(launch_ranks(&(Launch){.n_ranks = 2}, argv));
    }
    CHECK(end(parent) == EXIT_RUN && strstr(text_of("said"), "error: --gpus 2: "), "without files: %s",
          text_of("said"));
}

static pid_t start_and_wait(const char *what, int restarts) {
    const pid_t parent = start(what, N, restarts);
    CHECK(wait_for(all_there), "%s: not started", what);
    return parent;
}

static void test_asked_then_ended(void) {
    const pid_t parent = start_and_wait("wait", 5);
    kill(parent, SIGUSR1);
    CHECK(wait_for(all_asked), "SIGUSR1 does not come to all");
    kill(parent, SIGTERM);
    CHECK(end(parent) == 0 && all_gone() && !*text_of("said"), "SIGTERM: %s", text_of("said"));
}

static void test_interrupted(void) {
    const pid_t parent = start_and_wait("wait", 5);
    kill(parent, SIGINT); /* which the ranks do not catch */
    CHECK(end(parent) == -SIGINT && all_gone() && !*text_of("said"), "SIGINT: %s", text_of("said"));
}

static void test_asked_then_failing(void) {
    const pid_t parent = start_and_wait("saves", 1); /* and fails: no reason not to start again */
    kill(parent, SIGUSR1);
    CHECK(end(parent) == 0 && strstr(text_of("said"), "restart 1 of 1"), "SIGUSR1, then a failure: %s",
          text_of("said"));
}

/* The ranks are this process's, then. */
static void test_parent_killed(void) {
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    const pid_t parent = start_and_wait("wait", 5);
    kill(parent, SIGKILL);
    end(parent);
    for (int i = 0; i < N; i++) CHECK(end(pid_of(i)) == -SIGKILL, "rank %d outlives its parent", i);
}

/* The reader of a pipe is gone before there is anything to say. */
static void test_nobody_reads(void) {
    int ends[2];
    if (!REQUIRE(pipe(ends) == 0, "no pipe")) return;
    close(ends[0]);
    const int status = end(start_printing("again", N, 1, STDOUT_FILENO, ends[1]));
    CHECK(status == 0, "nobody reads that it starts again: %d", status);
    close(ends[1]);
}

/* A terminal that stops what prints in its background (stty tostop). */
static void test_terminal(void) {
    struct termios settings;
    int status = -1;
    const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    const bool is_open = terminal >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0 && setsid() >= 0;
    const int side =
        is_open ? open(ptsname(terminal), O_RDWR) : -1; /* the controlling terminal from here on */
    if (!REQUIRE(side >= 0 && tcgetattr(side, &settings) == 0, "no terminal")) return;
    settings.c_lflag |= TOSTOP;
    tcsetattr(side, TCSANOW, &settings);
    const pid_t parent = start_printing("prints", N, 0, side, STDERR_FILENO);
    const double until = clock_seconds() + LIMIT; /* its ranks are in the background, and stay stopped */
    while (waitpid(parent, &status, WNOHANG) == 0)
        if (clock_seconds() > until)
            kill(parent, SIGKILL);
        else
            usleep(20000);
    CHECK(status == 0, "ranks print to a terminal: %#x", (unsigned)status);
}

static void open_folder(void) {
    REQUIRE(mkdtemp(folder), "no folder");
}

static void close_folder(void) {
    empty_folder();
    rmdir(folder);
    memcpy(strrchr(folder, '_') + 1, "XXXXXX", 6); /* for the next one */
}

/* Every case has a folder of its own. What must not wait is timed alone, what waits runs beside the rest. */
#define ALONE(call) (open_folder(), call, close_folder())
#define CASE(call) BESIDE((open_folder(), call, close_folder()))

int main(int argc, char **argv) {
    if (argc > 2) return be_rank(argc, argv);
    launch_end_patience = 4;
    ALONE(test_place());
    ALONE(test_ended("crash", 0, EXIT_RUN, "error: rank 0 was ended by signal 6"));
    ALONE(test_ended("again", 2, 0, "restart 1 of 2, from the newest checkpoint if there is one\n"));
    ALONE(test_ended("never", 2, EXIT_RUN, "restart 2 of 2, from the newest checkpoint if there is one\n"));
    CASE(test_left("input", 2, EXIT_INPUT, ""));
    CASE(test_left("lingers0", 1, 0,
                   "warning: rank 0 did not end within 4 s of the first rank that had done"));
    CASE(test_left("lingers1", 1, 0,
                   "warning: rank 1 did not end within 4 s of the first rank that had done"));
    CASE(test_left("killed", 0, EXIT_RUN, "error: rank 1 was ended by signal 9 (Killed); hint: dmesg"));
    CASE(test_no_files());
    CASE(test_asked_then_ended());
    CASE(test_interrupted());
    CASE(test_asked_then_failing());
    CASE(test_parent_killed());
    CASE(test_nobody_reads());
    CASE(test_terminal());
    beside_wait(NULL);
    return check_finish("launch");
}
