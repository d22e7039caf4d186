/* A rank that hangs, as it does where it waits for a GPU that never answers, for a program started with LD_PRELOAD: the rank
 * HANG_RANK, once the file HANG_WHILE is there. It stops the thread that trains, the first that the program makes; the
 * others live. */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_t trains;
static bool
    is_begun; /* before the first thread begins: it makes threads, too, maybe before its creator goes on */
static atomic_bool is_known;

static int create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *argument) {
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) =
        (int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))dlsym(RTLD_NEXT,
                                                                                       "pthread_create");
    return real(thread, attr, run, argument);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *argument) {
    const bool is_first = !is_begun;
    is_begun = true;
    const int status = create(thread, attr, run, argument);
    if (!is_first) return status;
    trains = *thread;
    is_known = true;
    return status;
}

static void hang(int signal_number) {
    for (;;) pause();
}

static void *wait_for_file(void *path) {
    while (access(path, F_OK) != 0 || !is_known) usleep(10000);
    pthread_kill(trains, SIGUSR2);
    return NULL;
}

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("HANG_WHILE"), *rank = getenv("RANK"), *hangs = getenv("HANG_RANK");
    pthread_t thread;
    if (!path || !rank || !hangs || strcmp(rank, hangs) != 0) return;
    signal(SIGUSR2, hang);
    create(&thread, NULL, wait_for_file, (void *)path);
}
