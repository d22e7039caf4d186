/* The handlers call what POSIX lists as safe in them (clock_gettime, write, signal, raise, getpid, getppid, _exit), and isatty and
 * ceil: a system call, and arithmetic. */
#include "stop.h"
#include "llmc/base/clock.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <unistd.h>

/* timeout(1) and terminals with a wrapper send one signal twice: within so many seconds two are one. */
static const double same_signal = 0.1;
/* systemd and SLURM send it to all processes of a job, and a launcher hands its own on: then one of them is the parent's. */
static const double handed_on = 3;
/* Work that can be left out and ends within so many seconds is ended. */
static const double patience = 1;

static volatile sig_atomic_t requested, save_requested, phase;
static bool is_quiet;                           /* set before there are handlers */
static volatile double expected_end = INFINITY; /* of the phase */
static volatile double requested_at, leave_at;  /* valid where `requested` is set */
static volatile sig_atomic_t requested_by_parent;

/* ---- the answer ---- */

/* A line that grows without snprintf, which is not safe in a handler. */
typedef struct Line {
    char text[160];
    size_t n;
} Line;

static void add(Line *line, const char *text) {
    while (*text && line->n < sizeof line->text) line->text[line->n++] = *text++;
}

static void add_number(Line *line, long n) {
    char digits[24];
    size_t i = sizeof digits;
    digits[--i] = 0;
    do digits[--i] = (char)('0' + n % 10);
    while ((n /= 10) > 0);
    add(line, digits + i);
}

static void write_line(Line *line) {
    if (is_quiet) return;
    const ssize_t written = write(STDERR_FILENO, line->text, line->n);
    (void)written; /* nobody is there to read it */
}

/* ", about 12 s", of the time that is left; nothing where it is not known, or under a second. */
static void add_time_left(Line *line, const char *before, double left, const char *behind) {
    if (!(left >= 1 && left < 1e7)) return;
    add(line, before);
    add_number(line, (long)ceil(left));
    add(line, behind);
}

static void answer(double left) {
    static const char *const ends[N_STOP_PHASES] = {
        [STOP_IN_STEP] = "after this step",
        [STOP_IN_QUEUE] = "after this step",
        [STOP_IN_EVALUATION] = "without this evaluation",
        [STOP_IN_SAMPLE] = "without the rest of this sample",
        [STOP_IN_SAVE] = "when this checkpoint is saved",
    };
    const bool leaves = phase == STOP_IN_STEP && !(left <= patience);
    Line line = {.n = 0};
    if (isatty(STDERR_FILENO)) add(&line, "\n"); /* behind the bar and the terminal's ^C */
    add(&line, "stopping ");
    add(&line, leaves ? "without this step" : ends[phase]);
    if (leaves)
        add_time_left(&line, " (about ", left, " s more)");
    else if (phase == STOP_IN_STEP || phase == STOP_IN_QUEUE)
        add_time_left(&line, ", about ", left, " s");
    add(&line, "; again: end without saving\n");
    write_line(&line);
}

/* ---- the handlers ---- */

/* As the signal does by itself. It does nothing by itself to the first process of a container. */
static void end_at_once(int signal_number, siginfo_t *info, void *context) {
    if (getpid() == 1) _exit(128 + signal_number);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static void request_stop(int signal_number, siginfo_t *info, void *context) {
    const int saved_errno = errno;
    const double now = clock_seconds();
    const bool by_parent = info->si_code == SI_USER && info->si_pid == getppid();
    if (!requested) {
        const double left = expected_end - now;
        const bool ends_soon = phase == STOP_IN_QUEUE || (phase == STOP_IN_STEP && left <= patience);
        leave_at = ends_soon ? now + patience : now;
        requested_at = now;
        requested_by_parent = by_parent;
        requested = 1;
        answer(left);
    } else if (now - requested_at >= (by_parent == requested_by_parent ? same_signal : handed_on)) {
        end_at_once(signal_number, info, context);
    }
    errno = saved_errno;
}

static void request_save(int signal_number, siginfo_t *info, void *context) {
    const int saved_errno = errno;
    Line line = {.n = 0};
    if (isatty(STDERR_FILENO)) add(&line, "\n");
    add(&line, "saving after this step\n");
    if (!save_requested) write_line(&line);
    save_requested = 1;
    errno = saved_errno;
}

static volatile sig_atomic_t deferred; /* a signal; 0: none yet */

static void defer(int signal_number, siginfo_t *info, void *context) {
    const double now = clock_seconds();
    if (deferred && now - requested_at >= same_signal) end_at_once(signal_number, info, context);
    if (!deferred) requested_at = now;
    deferred = signal_number;
}

static volatile sig_atomic_t interrupted;
static const char *volatile line_prompt; /* NULL: no line is read */

static void interrupt(int signal_number, siginfo_t *info, void *context) {
    const int saved_errno = errno;
    const char *prompt = line_prompt;
    Line line = {.n = 0};
    if (!prompt) {
        interrupted = 1;
    } else if (*prompt) {
        add(&line, "\n");
        add(&line, prompt);
        write_line(&line);
    }
    errno = saved_errno;
}

/* Each the other way round: what is read or written fails, and is not lost without a word. */
static void open_standard_files(void) {
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0) open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

static void handle(int signal_number, void (*handler)(int, siginfo_t *, void *)) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_RESTART | SA_SIGINFO};
    sigfillset(&action.sa_mask); /* one answer at a time */
    sigaction(signal_number, &action, NULL);
}

/* Whoever started the program may have left them blocked. */
static void unblock(void) {
    const int all[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGTSTP, SIGCHLD};
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) sigaddset(&set, all[i]);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

/* A SIGHUP that is ignored, as nohup has it, stays so. */
static void handle_ends(void (*handler)(int, siginfo_t *, void *)) {
    struct sigaction hangup;
    handle(SIGINT, handler);
    handle(SIGTERM, handler);
    if (sigaction(SIGHUP, NULL, &hangup) || hangup.sa_handler != SIG_IGN) handle(SIGHUP, handler);
}

void stop_prepare(void) {
    signal(SIGXFSZ, SIG_IGN);
    signal(SIGUSR1, SIG_IGN); /* where there is nothing to save it does no harm */
    unblock();
    if (getpid() == 1) {
        handle_ends(end_at_once);
        handle(SIGQUIT, end_at_once);
    }
    open_standard_files();
}

void stop_say_nothing(void) {
    is_quiet = true;
}

void stop_ignore_pipe(void) {
    signal(SIGPIPE, SIG_IGN);
}

void stop_catch(void) {
    handle_ends(request_stop);
    handle(SIGUSR1, request_save);
}

/* ---- the run's side ---- */

void stop_expect(StopPhase new_phase, double until) {
    expected_end = until;
    phase = (sig_atomic_t)new_phase;
}

bool stop_requested(void) {
    return requested;
}

bool stop_now(void) {
    return requested && clock_seconds() >= leave_at;
}

bool stop_take_save_request(void) {
    if (!save_requested) return false;
    save_requested = 0;
    return true;
}

/* ---- the side of what leaves nothing behind ---- */

void stop_defer(void) {
    handle_ends(defer);
}

bool stop_is_deferred(void) {
    return deferred;
}

void stop_end_deferred(void) {
    if (deferred) end_at_once(deferred, NULL, NULL);
}

/* ---- a chat's side ---- */

void stop_catch_interrupt(void) {
    handle(SIGINT, interrupt);
}

void stop_expect_line(const char *prompt) {
    line_prompt = prompt;
}

bool stop_interrupted(void) {
    return interrupted;
}

void stop_forget_interrupt(void) {
    interrupted = 0;
}
