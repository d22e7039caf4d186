/* What each signal does before and after the run takes care of it, whatever this test's own caller does with signals, and
 * which of the standard files are open. Every row is a process of its own: signals leave their marks. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "llmc/run/stop.h"
#include "llmc/base/clock.h"
#include "dev/test/check.h"

enum { ASKED_STOP = 1, ASKED_SAVE = 2 }; /* in the exit code of a child */

/* Ends the child: what was asked of the run. */
static void leave(void) {
    const int asked = (stop_requested() ? ASKED_STOP : 0) | (stop_take_save_request() ? ASKED_SAVE : 0);
    _exit(asked);
}

/* In a child, with the handling that a new process has: signals as they do by themselves. */
static void begin(void) {
    const int all[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGPIPE, SIGXFSZ};
    sigset_t none;
    for (int i = 0; i < 6; i++) signal(all[i], SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    dup2(open("/dev/null", O_RDWR), STDERR_FILENO); /* the answers */
}

/* A word of a process that is to be quiet would end it: nobody reads. */
static void be_quiet(void) {
    int ends[2];
    if (pipe(ends)) _exit(99);
    close(ends[0]);
    signal(SIGPIPE, SIG_DFL);
    dup2(ends[1], STDERR_FILENO);
    stop_say_nothing();
}

/* Its exit code, or minus the signal that ended it. */
static int ended(pid_t child) {
    int status = 0;
    if (!REQUIRE(child > 0 && waitpid(child, &status, 0) == child, "no process")) return 255;
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

/* The machine may hold a process up between any two of its instructions: what depends on times that the program has by
 * itself is tried so often. */
enum { TRIES = 20 };

/* ---- one signal ---- */

enum { PREPARED, PIPED, CAUGHT, QUIET, DEFERRED, DEFERRED_TO_END };
typedef struct Row {
    const char *what;
    int signal, when, ended;
    bool was_ignored, twice;
} Row;

/* In a child. */
static void get_signal(const Row *row) {
    begin();
    if (row->was_ignored) signal(row->signal, SIG_IGN);
    stop_prepare();
    if (row->when == PIPED) stop_ignore_pipe();
    if (row->when == CAUGHT || row->when == QUIET) stop_catch();
    if (row->when >= DEFERRED) stop_defer();
    if (row->when == QUIET) be_quiet();
    raise(row->signal);
    if (row->twice) usleep(200000), raise(row->signal);
    if (row->when == DEFERRED_TO_END) stop_end_deferred();
    if (row->when == DEFERRED) _exit(stop_is_deferred() ? ASKED_STOP : 0);
    leave();
}

static void test_signals(void) {
    static const Row rows[] = {
        {"SIGINT before the first step",        SIGINT,  PREPARED,        -SIGINT,    false, false},
        {"SIGTERM before the first step",       SIGTERM, PREPARED,        -SIGTERM,   false, false},
        {"a terminal that closes before it",    SIGHUP,  PREPARED,        -SIGHUP,    false, false},
        {"SIGUSR1 before the first step",       SIGUSR1, PREPARED,        0,          false, false},
        {"a file-size limit",                   SIGXFSZ, PREPARED,        0,          false, false},
        {"--help to a reader that leaves",      SIGPIPE, PREPARED,        -SIGPIPE,   false, false},
        {"training for a reader that leaves",   SIGPIPE, PIPED,           0,          false, false},
        {"ctrl-C",                              SIGINT,  CAUGHT,          ASKED_STOP, false, false},
        {"SIGTERM",                             SIGTERM, CAUGHT,          ASKED_STOP, false, false},
        {"a terminal that closes",              SIGHUP,  CAUGHT,          ASKED_STOP, false, false},
        {"a terminal that closes, under nohup", SIGHUP,  CAUGHT,          0,          true,  false},
        {"SIGUSR1",                             SIGUSR1, CAUGHT,          ASKED_SAVE, false, false},
        {"ctrl-C of a quiet process",           SIGINT,  QUIET,           ASKED_STOP, false, false},
        {"SIGUSR1 twice",                       SIGUSR1, CAUGHT,          ASKED_SAVE, false, true },
        {"ctrl-C twice",                        SIGINT,  CAUGHT,          -SIGINT,    false, true },
        {"SIGTERM twice",                       SIGTERM, CAUGHT,          -SIGTERM,   false, true },
        {"SIGTERM that waits",                  SIGTERM, DEFERRED,        ASKED_STOP, false, false},
        {"ctrl-C that waits",                   SIGINT,  DEFERRED,        ASKED_STOP, false, false},
        {"SIGTERM that has waited",             SIGTERM, DEFERRED_TO_END, -SIGTERM,   false, false},
        {"ctrl-C twice while it waits",         SIGINT,  DEFERRED,        -SIGINT,    false, true },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const pid_t child = fork();
        if (child == 0) get_signal(&rows[i]);
        const int got = ended(child);
        CHECK(got == rows[i].ended, "%s: %d, expected %d", rows[i].what, got, rows[i].ended);
    }
}

/* ---- the first process of a container ---- */

enum { NO_CONTAINER = 200 };

/* In a child, whose own child is process 1 of its namespace: the system gives it no signal that it does not catch. */
static void be_container(const Row *row) {
    if (unshare(CLONE_NEWPID) && unshare(CLONE_NEWUSER | CLONE_NEWPID)) _exit(NO_CONTAINER);
    const pid_t first = fork();
    if (first == 0) get_signal(row);
    _exit(first < 0 ? NO_CONTAINER : ended(first));
}

static void test_first_process(void) {
    static const Row rows[] = {
        {"ctrl-C before the first step", SIGINT,  PREPARED, 128 + SIGINT,  false, false},
        {"docker stop before it",        SIGTERM, PREPARED, 128 + SIGTERM, false, false},
        {"a terminal that closes",       SIGHUP,  PREPARED, 128 + SIGHUP,  false, false},
        {"the same under nohup",         SIGHUP,  PREPARED, 0,             true,  false},
        {"ctrl-\\ before it",            SIGQUIT, PREPARED, 128 + SIGQUIT, false, false},
        {"ctrl-C",                       SIGINT,  CAUGHT,   ASKED_STOP,    false, false},
        {"ctrl-C twice",                 SIGINT,  CAUGHT,   128 + SIGINT,  false, true },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const pid_t child = fork();
        if (child == 0) be_container(&rows[i]);
        const int got = ended(child);
        if (got == NO_CONTAINER) SKIP("process 1 of a container: %s: no namespaces here", rows[i].what);
        if (got == NO_CONTAINER) return;
        CHECK(got == rows[i].ended, "process 1 of a container: %s: %d, expected %d", rows[i].what, got,
              rows[i].ended);
    }
}

/* ---- a launcher ---- */

/* In a child: by whom it gets SIGTERM, one after the other: 'p' its parent, at a byte to it, 'o' another. */
static void be_launched(const char *by, int parent) {
    char byte = 0;
    begin();
    stop_catch();
    for (; *by; by++) {
        if (*by == 'o') raise(SIGTERM);
        if (*by == 'p' && (write(parent, &byte, 1) != 1 || read(parent, &byte, 1) != 1)) _exit(99);
        usleep(150000);
    }
    leave();
}

static int launch(const char *by) {
    int ends[2];
    char byte;
    if (!REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "no sockets")) return 255;
    const pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        be_launched(by, ends[1]);
    }
    close(ends[1]);
    while (read(ends[0], &byte, 1) == 1) {
        kill(child, SIGTERM);
        if (send(ends[0], &byte, 1, MSG_NOSIGNAL) != 1) break; /* it has ended */
    }
    close(ends[0]);
    return ended(child);
}

/* A signal to all processes of a job comes from the system and from the launcher. */
static void test_launcher(void) {
    static const struct {
        const char *what, *by;
        int ended;
    } rows[] = {
        {"from all and handed on",   "op",  ASKED_STOP},
        {"handed on first",          "po",  ASKED_STOP},
        {"two, the first handed on", "opo", -SIGTERM  },
        {"two of a launcher's",      "pp",  -SIGTERM  },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int got = -1;
        for (int again = 0; again < TRIES && got != rows[i].ended; again++) got = launch(rows[i].by);
        CHECK(got == rows[i].ended, "%s: %d, expected %d", rows[i].what, got, rows[i].ended);
    }
}

/* Started with all signals blocked, as a thread of another program may do it. */
static void test_blocked(void) {
    const pid_t child = fork();
    if (child == 0) {
        sigset_t all;
        begin();
        sigfillset(&all);
        sigprocmask(SIG_SETMASK, &all, NULL);
        stop_prepare();
        stop_catch();
        raise(SIGTERM);
        leave();
    }
    const int got = ended(child);
    CHECK(got == ASKED_STOP, "SIGTERM that was blocked: %d", got);
}

/* One SIGUSR1 is one checkpoint; the same signal again at once is the same one. */
static void test_once(void) {
    pid_t child = fork();
    if (child == 0) {
        begin();
        stop_catch();
        raise(SIGUSR1);
        const bool first = stop_take_save_request(), second = stop_take_save_request();
        _exit(first && !second ? 0 : 1);
    }
    CHECK(ended(child) == 0, "one SIGUSR1 is not one checkpoint");
    int got = -1;
    for (int again = 0; again < TRIES && got != ASKED_STOP; again++) {
        child = fork();
        if (child == 0) {
            begin();
            stop_catch();
            raise(SIGTERM);
            raise(SIGTERM);
            leave();
        }
        got = ended(child);
    }
    CHECK(got == ASKED_STOP, "a signal that comes twice at once ends the process: %d", got);
}

/* In a child that is asked to stop: its exit code, whether it does so at once. */
static void cut(StopPhase phase, double left) {
    begin();
    stop_catch();
    stop_expect(phase, clock_seconds() + left);
    if (stop_now()) _exit(2);
    raise(SIGINT);
    _exit(stop_now());
}

/* What is cut at once, and what is given a second. */
static void test_patience(void) {
    static const struct {
        const char *what;
        StopPhase phase;
        double left;
        bool cut;
    } rows[] = {
        {"a step of unknown length", STOP_IN_STEP,       INFINITY, true },
        {"a step with 30 s to go",   STOP_IN_STEP,       30,       true },
        {"a step with 0.5 s to go",  STOP_IN_STEP,       0.5,      false},
        {"a step that is late",      STOP_IN_STEP,       -3,       false},
        {"steps of a device",        STOP_IN_QUEUE,      30,       false},
        {"an evaluation",            STOP_IN_EVALUATION, INFINITY, true },
        {"a sample",                 STOP_IN_SAMPLE,     INFINITY, true },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int got = -1;
        for (int again = 0; again < TRIES && got != rows[i].cut; again++) {
            const pid_t child = fork();
            if (child == 0) cut(rows[i].phase, rows[i].left);
            got = ended(child);
        }
        CHECK(got == rows[i].cut, "%s: %d, expected %d", rows[i].what, got, rows[i].cut);
    }
}

/* ---- the answers ---- */

/* What the first signal of a child is answered with, `left` seconds before the end of the phase. */
static void answer_of(int signal, StopPhase phase, double left, char *text, size_t size) {
    int ends[2];
    size_t n = 0;
    *text = '\0';
    if (!REQUIRE(pipe(ends) == 0, "no pipe")) return;
    const pid_t child = fork();
    if (child == 0) {
        begin();
        dup2(ends[1], STDERR_FILENO);
        stop_catch();
        stop_expect(phase, clock_seconds() + left);
        raise(signal);
        _exit(0);
    }
    close(ends[1]);
    for (ssize_t got; n + 1 < size && (got = read(ends[0], text + n, size - 1 - n)) > 0;) n += (size_t)got;
    text[n] = '\0';
    close(ends[0]);
    CHECK(ended(child) == 0, "the answer is not all");
}

static void test_answers(void) {
    static const struct {
        int signal;
        StopPhase phase;
        double left;
        const char *answer;
    } rows[] = {
        {SIGINT,  STOP_IN_STEP,       INFINITY, "stopping without this step"                   },
        {SIGINT,  STOP_IN_STEP,       99.5,     "stopping without this step (about 100 s more)"},
        {SIGTERM, STOP_IN_STEP,       0.4,      "stopping after this step"                     },
        {SIGHUP,  STOP_IN_STEP,       -9,       "stopping after this step"                     },
        {SIGINT,  STOP_IN_QUEUE,      1234.5,   "stopping after this step, about 1235 s"       },
        {SIGINT,  STOP_IN_QUEUE,      INFINITY, "stopping after this step"                     },
        {SIGTERM, STOP_IN_EVALUATION, 20,       "stopping without this evaluation"             },
        {SIGTERM, STOP_IN_SAMPLE,     20,       "stopping without the rest of this sample"     },
        {SIGTERM, STOP_IN_SAVE,       20,       "stopping when this checkpoint is saved"       },
        {SIGUSR1, STOP_IN_STEP,       20,       "saving after this step"                       },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[200] = "", expected[200];
        snprintf(expected, sizeof expected, "%s%s\n", rows[i].answer,
                 rows[i].signal == SIGUSR1 ? "" : "; again: end without saving");
        for (int again = 0; again < TRIES && strcmp(text, expected) != 0; again++)
            answer_of(rows[i].signal, rows[i].phase, rows[i].left, text, sizeof text);
        CHECK(strcmp(text, expected) == 0, "%s: found %s", rows[i].answer, text);
    }
}

/* ---- the standard files ---- */

/* Whether what was closed is told from a file: to read from it (0), or to write to it, fails. */
static bool stands_for_closed(int fd) {
    struct stat info;
    char byte = 0;
    if (fstat(fd, &info) || !S_ISCHR(info.st_mode)) return false;
    return (fd == 0 ? read(fd, &byte, 1) : write(fd, &byte, 1)) < 0 && errno == EBADF;
}

/* Whichever of the three are closed: then all are open, no file more, and those that were open are the same. */
static void test_standard_files(void) {
    for (int closed = 0; closed < 8; closed++) {
        const pid_t child = fork();
        if (child == 0) {
            const int other = fcntl(open("/", O_RDONLY), F_DUPFD, 20);
            int next;
            for (int fd = 0; fd < 20; fd++) close(fd);
            for (int fd = 0; fd < 3; fd++)
                if (!(closed >> fd & 1) && dup2(other, fd) != fd) _exit(10);
            stop_prepare();
            for (int fd = 0; fd < 3; fd++) {
                if (stands_for_closed(fd) != (closed >> fd & 1)) _exit(1 + fd);
            }
            next = open("/", O_RDONLY);
            _exit(next == 3 ? 0 : 4);
        }
        const int got = ended(child);
        CHECK(got == 0, "closed: %s%s%s: %d", closed & 1 ? "stdin " : "", closed & 2 ? "stdout " : "",
              closed & 4 ? "stderr" : "", got);
    }
}

int main(void) {
    test_signals();
    test_first_process();
    test_launcher();
    test_blocked();
    test_once();
    test_patience();
    test_answers();
    test_standard_files();
    return check_finish("stop");
}
