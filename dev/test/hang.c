/* A rank that hangs, as it does where it waits for a GPU that never answers, for a program started with LD_PRELOAD: the rank
 * HANG_RANK, once the file HANG_WHILE is there. The thread that trains, the first that the program makes, never comes back
 * from what it asks the other ranks; the others live. */
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct {
    void *(*run)(void *);
    void *argument;
} first;
static _Thread_local bool trains;

static void *begin(void *unused) {
    trains = true;
    return first.run(first.argument);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *argument) {
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) =
        (int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))dlsym(RTLD_NEXT,
                                                                                       "pthread_create");
    if (first.run) return real(thread, attr, run, argument);
    first.run = run;
    first.argument = argument;
    return real(thread, attr, begin, NULL);
}

static const char *hangs_while; /* NULL in other ranks, and in their parent */

__attribute__((constructor)) static void find_out(void) {
    const char *rank = getenv("RANK"), *hangs = getenv("HANG_RANK");
    if (rank && hangs && strcmp(rank, hangs) == 0) hangs_while = getenv("HANG_WHILE");
}

int poll(struct pollfd *polled, nfds_t n, int milliseconds) {
    int (*real)(struct pollfd *, nfds_t, int) =
        (int (*)(struct pollfd *, nfds_t, int))dlsym(RTLD_NEXT, "poll");
    while (trains && hangs_while && access(hangs_while, F_OK) == 0) pause();
    return real(polled, n, milliseconds);
}
