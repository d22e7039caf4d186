/* Memory that loses bits, for a program started with LD_PRELOAD: while the file FLIP_WHILE is there, a bit of the rank
 * FLIP_RANK is flipped every 0.2 ms, in the weights: the first buffer of FLIP_BYTES or more. Its first words alone: those are
 * in the part of rank 0. In its own part a flip between two sends would reach one of the other ranks and not the next. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint32_t *weights;
enum { N_WORDS = 1000 };

void *aligned_alloc(size_t alignment, size_t size) {
    void *(*real)(size_t, size_t) = (void *(*)(size_t, size_t))dlsym(RTLD_NEXT, "aligned_alloc");
    const char *least = getenv("FLIP_BYTES");
    void *p = real(alignment, size);
    if (!weights && least && size >= strtoul(least, NULL, 10)) weights = p;
    return p;
}

/* A bit of the mantissa, of one weight after another. */
static void *flip(void *path) {
    for (size_t i = 1;; usleep(200))
        if (weights && access(path, F_OK) == 0) weights[i++ % N_WORDS] ^= 1u << 20;
    return NULL;
}

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("FLIP_WHILE"), *rank = getenv("RANK"), *flipped = getenv("FLIP_RANK");
    pthread_t thread;
    if (path && (rank ? flipped && strcmp(rank, flipped) == 0 : !flipped))
        pthread_create(&thread, NULL, flip, (void *)path);
}
