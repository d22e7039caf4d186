/* What a device that runs ahead of the host needs (llmc/model/ops.h); the CPU does everything at once. */
#include <stdlib.h>
#include <time.h>
#include "cpu.h"

static char fetched[FETCH_SLOTS][FETCH_BYTES];
static double *marks; /* seconds, monotonic */
static int n_marks;   /* allocated */

void cpu_fetch_begin(int slot, const void *src, size_t bytes) {
    memcpy(fetched[slot], src, bytes);
}

void cpu_fetch_end(int slot, void *dst, size_t bytes) {
    memcpy(dst, fetched[slot], bytes);
}

void cpu_mark(int i) {
    if (i >= n_marks) {
        n_marks = 2 * i + 64;
        marks = realloc(marks, (size_t)n_marks * sizeof *marks);
        if (!marks) abort();
    }
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    marks[i] = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double cpu_seconds_between(int first, int second) {
    return marks[second] - marks[first];
}

/* A call costs nanoseconds here: there is nothing to save. */
bool cpu_record_begin(void) {
    return false;
}

Recording *cpu_record_end(void) {
    return NULL;
}

void cpu_replay(Recording *recording) {
    (void)recording;
}

void cpu_recording_release(Recording *recording) {
    (void)recording;
}
