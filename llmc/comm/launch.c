#include "launch.h"
#include "llmc/base/clock.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "llmc/base/error.h"
#include "llmc/base/parallel.h"
#include "llmc/base/terminal.h"
#include "place.h"
#include "socket.h"

static const double patience = 3; /* for the others, once a rank has ended badly */
double launch_end_patience = 10;  /* all work is done when the first one ends */

typedef struct Family {
    pid_t *pids; /* (n) 0: ended */
    int n, n_left;
    int bad_rank, bad_status; /* of the first that ended badly; -1: none */
    int late_rank;            /* the first that had to be killed though others had ended well; -1: none */
    bool any_said;            /* one ended with an exit code that says so: there is a line */
    bool has_diverged;        /* as one's exit code says */
    int n_killed, killed;     /* because others had ended badly; the first of them */
    double deadline;          /* then those that are left are killed */
    bool is_late;             /* they were, and no rank had ended badly */
    int stop_signal;          /* that came and asks for the end; 0: none */
} Family;

/* ---- start ---- */

static void set_variable(const char *name, int value) {
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

/* What all ranks get; threads of the CPU are shared out. */
static void set_environment(int n, int port) {
    const int n_threads = cpu_cores() / n;
    set_variable("WORLD_SIZE", n);
    set_variable("LOCAL_WORLD_SIZE", n);
    set_variable("MASTER_PORT", port);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    if (n > 1 && !cpu_asked_threads()) set_variable("OMP_NUM_THREADS", n_threads > 1 ? n_threads : 1);
}

/* In the child. Its process group is its own: what a terminal sends comes from the parent, once. */
static _Noreturn void become_rank(int listening, pid_t parent, char **argv) {
    signal(SIGUSR1, SIG_IGN); /* until it has something to save */
    /* For a terminal its group is in the background, where `stty tostop` stops who prints. */
    signal(SIGTTOU, SIG_IGN);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpgid(0, 0);
    if (getppid() != parent) _exit(EXIT_RUN); /* it went before it was to be followed */
    if (listening >= 0) fcntl(listening, F_SETFD, 0);
    execv("/proc/self/exe", argv);
    if (errno == ENOENT) execvp(argv[0], argv); /* /proc is not mounted */
    Error err = {0};
    fail(&err, EXIT_RUN, "--gpus: the program cannot be started again: %s", strerror(errno));
    die(&err);
}

void launch_restore_name(void) {
    const char *name = program_invocation_short_name;
    const int file = open("/proc/self/comm", O_WRONLY); /* the process's, whichever thread this is */
    if (file < 0) return;
    const ssize_t written = write(file, name, strlen(name));
    (void)written; /* without it there is a name less */
    close(file);
}

static bool start_ranks(Family *f, char **argv, Error *err) {
    const pid_t parent = getpid();
    int port = 0;
    const int listening = socket_listen("127.0.0.1", &port, err);
    if (listening < 0) return false;
    set_environment(f->n, port);
    fflush(stdout);
    for (int i = 0; i < f->n; i++) {
        set_variable("RANK", i);
        set_variable("LOCAL_RANK", i);
        set_variable(PLACE_LISTENING, i == 0 ? listening : -1);
        f->pids[i] = fork();
        if (f->pids[i] == 0) become_rank(i == 0 ? listening : -1, parent, argv);
        if (f->pids[i] < 0) {
            f->pids[i] = 0;
            close(listening);
            return fail(err, EXIT_RUN, "--gpus %d: process %d cannot be started: %s", f->n, i,
                        strerror(errno));
        }
        f->n_left++;
    }
    close(listening);
    return true;
}

/* ---- looking after them ---- */

/* The numbers of signals, from the handler, whichever thread it runs in, to look_after(). */
static int arrivals[2];

static void note_arrival(int signal_number) {
    const int saved_errno = errno;
    const unsigned char number = (unsigned char)signal_number;
    const ssize_t written = write(arrivals[1], &number, 1);
    (void)written; /* full: there is enough to do */
    errno = saved_errno;
}

static void send_all(const Family *f, int signal_number) {
    for (int i = 0; i < f->n; i++)
        if (f->pids[i]) kill(f->pids[i], signal_number);
}

/* What ends a program when somebody asks for it. */
static bool asks_for_end(int signal_number) {
    return signal_number == SIGTERM || signal_number == SIGINT || signal_number == SIGHUP;
}

/* A rank that such a signal ended, as it does before the first step: it is meant for all. */
static void pass_on(Family *f, int signal_number) {
    if (f->stop_signal) return;
    f->stop_signal = signal_number;
    send_all(f, signal_number);
}

static void reap(Family *f) {
    for (int i = 0; i < f->n; i++) {
        int status;
        if (!f->pids[i] || waitpid(f->pids[i], &status, WNOHANG) != f->pids[i]) continue;
        f->pids[i] = 0;
        f->n_left--;
        const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
        f->any_said = f->any_said || (code && code != PLACE_UNSAID);
        f->has_diverged = f->has_diverged || code == PLACE_DIVERGED;
        if (f->is_late && WIFSIGNALED(status) && f->bad_rank < 0) {
            f->late_rank = f->late_rank < 0 ? i : f->late_rank;
        } else if (status && f->bad_rank < 0) {
            f->bad_rank = i;
            f->bad_status = status;
            f->deadline = clock_seconds() + patience;
            if (WIFSIGNALED(status) && asks_for_end(WTERMSIG(status))) pass_on(f, WTERMSIG(status));
        } else if (!status && f->deadline == INFINITY) {
            f->deadline = clock_seconds() + launch_end_patience;
        }
    }
}

/* ctrl-Z: the whole job stops, and goes on when this process does. */
static void suspend(const Family *f) {
    send_all(f, SIGSTOP);
    raise(SIGSTOP);
    send_all(f, SIGCONT);
}

/* Until all have ended. */
static void look_after(Family *f) {
    while (f->n_left) {
        struct pollfd arrived = {.fd = arrivals[0], .events = POLLIN};
        unsigned char number;
        poll(&arrived, 1, 100);
        while (read(arrivals[0], &number, 1) == 1) {
            if (number == SIGTSTP) suspend(f);
            if (number == SIGCHLD || number == SIGTSTP || number == SIGPIPE) continue;
            send_all(f, number);
            if (number != SIGUSR1) f->stop_signal = number;
        }
        reap(f);
        if (clock_seconds() < f->deadline) continue;
        f->is_late = f->bad_rank < 0;
        f->n_killed = f->is_late ? 0 : f->n_left;
        for (f->killed = 0; f->killed < f->n && !f->pids[f->killed];) f->killed++;
        send_all(f, SIGKILL);
        f->deadline = INFINITY;
    }
}

/* Starts the ranks, once, and waits for them. */
static int run_ranks(Family *f, char **argv) {
    Error err = {0};
    pid_t *pids = f->pids;
    const int stop_signal = f->stop_signal;
    memset(pids, 0, (size_t)f->n * sizeof *pids);
    *f = (Family){.pids = pids,
                  .n = f->n,
                  .bad_rank = -1,
                  .late_rank = -1,
                  .deadline = INFINITY,
                  .stop_signal = stop_signal};
    const bool started = start_ranks(f, argv, &err);
    if (!started) send_all(f, SIGKILL);
    look_after(f);
    if (!started) {
        print_line(stderr, "error: %s", err.text);
        return err.exit_code;
    }
    if (f->late_rank >= 0)
        print_line(stderr,
                   "warning: rank %d did not end within %g s of the first rank that had done all its work, "
                   "and was killed",
                   f->late_rank, launch_end_patience);
    if (f->bad_rank < 0) return 0;
    const bool unsaid = WIFEXITED(f->bad_status) && WEXITSTATUS(f->bad_status) == PLACE_UNSAID;
    if (WIFEXITED(f->bad_status) && !unsaid) return f->has_diverged ? EXIT_RUN : WEXITSTATUS(f->bad_status);
    if (unsaid && !f->any_said && !f->stop_signal)
        print_line(
            stderr,
            "error: %d rank%s, rank %d the first, gave no sign of life and had to be killed: stopped, or "
            "their devices hang",
            f->n_killed, f->n_killed == 1 ? "" : "s", f->killed);
    if (unsaid || WTERMSIG(f->bad_status) == f->stop_signal) return EXIT_RUN;
    if (!f->any_said)
        print_line(stderr, "error: rank %d was ended by signal %d (%s)%s", f->bad_rank,
                   WTERMSIG(f->bad_status), strsignal(WTERMSIG(f->bad_status)),
                   WTERMSIG(f->bad_status) == SIGKILL ? "; hint: dmesg says whether memory ran out" : "");
    return EXIT_RUN;
}

/* ---- all ---- */

/* Also signals that a shell lets a job in the background ignore, as in the program itself; nohup's SIGHUP stays ignored. Of
 * SIGPIPE nothing follows: whoever read what is said here may be gone, and the ranks are started again all the same. */
static bool catch_signals(void) {
    const int all[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGTSTP, SIGCHLD, SIGPIPE};
    struct sigaction hangup, action = {.sa_handler = note_arrival, .sa_flags = SA_RESTART};
    if (pipe2(arrivals, O_CLOEXEC | O_NONBLOCK)) return false;
    sigaction(SIGHUP, NULL, &hangup);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i] != SIGHUP || hangup.sa_handler != SIG_IGN) sigaction(all[i], &action, NULL);
    return true;
}

/* argv with --resume, for a second start. */
static char **with_resume(char **argv) {
    static char resume[] = "--resume";
    int n = 0;
    while (argv[n]) n++;
    char **more = calloc((size_t)n + 2, sizeof *more);
    if (!more) return NULL;
    memcpy(more, argv, (size_t)n * sizeof *more);
    more[n] = resume;
    return more;
}

int launch_ranks(const Launch *launch, char **argv) {
    Family family = {.n = launch->n_ranks};
    char **again = launch->has_resumed ? argv : with_resume(argv);
    int code = EXIT_RUN;
    family.pids = calloc((size_t)family.n, sizeof *family.pids);
    if (!family.pids || !again || !catch_signals()) {
        print_line(stderr, "error: --gpus %d: the processes cannot be looked after: %s", family.n,
                   strerror(errno));
        return EXIT_RUN;
    }
    for (int restart = 0; restart <= launch->restarts; restart++) {
        if (restart)
            print_line(stderr, "restart %d of %d, from the newest checkpoint if there is one", restart,
                       launch->restarts);
        code = run_ranks(&family, restart ? again : argv);
        if (restart && code == EXIT_INPUT)
            code = EXIT_RUN; /* the command was good once; its files are not now */
        if (family.has_diverged && restart < launch->restarts)
            print_line(stderr, "no restart: the same steps would come to the same end");
        if (code != EXIT_RUN || family.stop_signal || family.has_diverged) break;
    }
    free(family.pids);
    if (again != argv) free(again);
    const bool by_signal = family.stop_signal && family.bad_rank >= 0 &&
                           (WIFSIGNALED(family.bad_status) ? WTERMSIG(family.bad_status) == family.stop_signal
                                                           : WEXITSTATUS(family.bad_status) == PLACE_UNSAID);
    if (by_signal) signal(family.stop_signal, SIG_DFL);
    if (by_signal) raise(family.stop_signal);
    return by_signal ? 128 + family.stop_signal : code; /* the first process of a container is still there */
}
