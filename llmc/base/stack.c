#include "stack.h"
#include <pthread.h>
#include <stddef.h>

enum { STACK_BYTES = 8 << 20 };

typedef struct Call {
    int (*program)(int argc, char **argv);
    int argc;
    char **argv;
    int status;
} Call;

static void *run(void *argument) {
    Call *call = argument;
    call->status = call->program(call->argc, call->argv);
    return NULL;
}

int run_on_own_stack(int (*program)(int argc, char **argv), int argc, char **argv) {
    Call call = {.program = program, .argc = argc, .argv = argv};
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    if (pthread_create(&thread, &attributes, run, &call))
        run(&call);
    else
        pthread_join(thread, NULL);
    pthread_attr_destroy(&attributes);
    return call.status;
}
