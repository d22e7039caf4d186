/* --gpus N: this process becomes the parent of N others of the same program, one a rank, and does nothing but look after
 * them. */
#pragma once
#include <stdbool.h>

typedef struct Launch {
    int n_ranks;
    int restarts;     /* after a failure at run time, with --resume; 0: none */
    bool has_resumed; /* argv says --resume already */
} Launch;

/* Once a rank has ended well, all work is done: the others have so many seconds, 10, to end, too; then they are killed, which
 * a warning says. Tests have a shorter time. */
extern double launch_end_patience;

/* Runs the ranks to their end; signals go on to them. The exit code of the first rank that ends badly, which ends the
 * others: those that are left 3 s later are killed. A run that a signal ends, ends this process by that signal. Ranks
 * die with this process, however it ends. */
int launch_ranks(const Launch *launch, char **argv);

/* In a rank: it has the program's name again for ps, top and pkill, which call it exe, for the file that was executed. */
void launch_restore_name(void);
