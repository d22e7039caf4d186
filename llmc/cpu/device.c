/* The CPU as a device: its name, its memory, its measured peak. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "cpu.h"
#include "parallel.h"
#include "vec.h"

enum { ALIGNMENT = 256 };

/* The value of the first line "KEY : value" or "KEY: value" of a file in /proc; false where there is none. */
static bool proc_value(const char *path, const char *key, char *value, size_t size) {
    FILE *file = fopen(path, "r");
    if (!file) return false;
    char line[512];
    bool found = false;
    while (!found && fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, key, strlen(key)) != 0 || !colon) continue;
        snprintf(value, size, "%s", colon + 1 + strspn(colon + 1, " \t"));
        value[strcspn(value, "\n")] = 0;
        found = true;
    }
    fclose(file);
    return found;
}

void cpu_memory_info(size_t *free_bytes, size_t *total_bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    *total_bytes = (size_t)sysconf(_SC_PHYS_PAGES) * page;
    *free_bytes = *total_bytes;
    char kilobytes[64];
    if (proc_value("/proc/meminfo", "MemAvailable", kilobytes, sizeof kilobytes))
        *free_bytes = (size_t)strtoull(kilobytes, NULL, 10) * 1024;
}

/* The kernel hands out address space that it cannot back and kills the process later, so what is free now
 * decides. */
void *cpu_alloc(size_t bytes) {
    size_t free_bytes, total_bytes;
    cpu_memory_info(&free_bytes, &total_bytes);
    if (bytes > free_bytes) return NULL;
    return aligned_alloc(ALIGNMENT, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
}

void cpu_release(void *p) {
    free(p);
}

const char *cpu_device_name(void) {
    static char name[256];
    char model[128];
    size_t free_bytes, total_bytes;
    cpu_memory_info(&free_bytes, &total_bytes);
    if (!proc_value("/proc/cpuinfo", "model name", model, sizeof model)) snprintf(model, sizeof model, "CPU");
    int n_threads = cpu_thread_count();
    snprintf(name, sizeof name, "%s, %d thread%s, vectors of %d floats, %.1f GiB", model, n_threads,
             n_threads == 1 ? "" : "s", VEC, (double)total_bytes / (1 << 30));
    return name;
}

enum { CHAINS = 12, PEAK_STEPS = 250000, PEAK_TRIES = 16 };

/* Task: CHAINS independent chains of multiply-adds, enough to cover their latency; about 3 ms. */
static void multiply_add(const void *sink, int64_t task) {
    vec chain[CHAINS], factor = vec_set(0.999f), term = vec_set(0.001f);
    for (int i = 0; i < CHAINS; i++) chain[i] = vec_set((float)i);
    for (int step = 0; step < PEAK_STEPS; step++) {
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) chain[i] = chain[i] * factor + term;
        __asm__ volatile(""); /* keeps the loop from being summed up */
    }
    vec sum = {0};
    for (int i = 0; i < CHAINS; i++) sum += chain[i];
    ((float *const *)sink)[0][task] = vec_sum(sum);
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double cpu_peak_flops(const char **how) {
    *how = "measured";
    int n_threads = cpu_thread_count();
    float results[256], *sink = results;
    double best = 0;
    for (int i = 0; i < PEAK_TRIES; i++) {
        double begin = seconds();
        cpu_parallel_for(n_threads, multiply_add, &sink);
        double rate = 2.0 * VEC * CHAINS * PEAK_STEPS * n_threads / (seconds() - begin);
        if (rate > best) best = rate;
    }
    return best;
}
