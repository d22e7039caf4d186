/* A kernel that waits for what never comes would hold the lab, and the card, for ever. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "lab.h"

enum { LONGEST_SECONDS = 30 };

static char line[256]; /* made beforehand: a signal handler may only write */

static void on_alarm(int signal_number) {
    (void)signal_number;
    if (write(STDOUT_FILENO, line, strlen(line)) < 0) _exit(EXIT_RUN);
    _exit(EXIT_RUN);
}

void watch_begin(const Variant *v, const Sizes *s) {
    snprintf(line, sizeof line, "FAIL %s %s %s: no answer within %d s; the lab ends here\n", v->op, v->name,
             sizes_text(s), LONGEST_SECONDS);
    signal(SIGALRM, on_alarm);
    fflush(stdout);
    alarm(LONGEST_SECONDS);
}

void watch_end(void) {
    alarm(0);
}
