/* A kernel that waits for what never comes would hold the lab, and the card, for ever; and a variant that crashes
 * would end it without a word. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "lab.h"

enum { LONGEST_SECONDS = 30 };

static const int crashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
enum { N_CRASHES = sizeof crashes / sizeof *crashes };

static char hung[256], crashed[256]; /* made beforehand: a signal handler may only write */

static void end(int signal_number) {
    const char *line = signal_number == SIGALRM ? hung : crashed;
    if (write(STDOUT_FILENO, line, strlen(line)) < 0) _exit(EXIT_RUN);
    _exit(EXIT_RUN);
}

void watch_begin(const Variant *v, const Sizes *s) {
    snprintf(hung, sizeof hung, "FAIL %s %s %s: no answer within %d s; the lab ends here\n", v->op, v->name,
             sizes_text(s), LONGEST_SECONDS);
    snprintf(
        crashed, sizeof crashed,
        "FAIL %s %s %s: crashed; the lab ends here; hint: are the operands of its describe_ those of its "
        "run_, in order (dev/ops/ops.c)?\n",
        v->op, v->name, sizes_text(s));
    for (int i = 0; i < N_CRASHES; i++) signal(crashes[i], end);
    signal(SIGALRM, end);
    fflush(stdout);
    alarm(LONGEST_SECONDS);
}

void watch_end(void) {
    alarm(0);
    for (int i = 0; i < N_CRASHES; i++) signal(crashes[i], SIG_DFL);
}
