/* Threads: runs the tasks of a loop on all cores.
 *
 * Why not OpenMP: libgomp's barriers spin for milliseconds and wait for every thread. With one other busy
 * process on a 2-core machine both threads can land on one core, and a product that takes 0.28 ms then took
 * 20 ms. Here no thread is waited for but one that is inside a task, and waiting yields the core: 0.5 ms in
 * the same setting. */
#pragma once
#include <stdint.h>
#include "llmc/base/integers.h" /* which cuts loops into tasks */

/* Calls task(args, i) once for every i in [0, n_tasks), n_tasks < 2^32, in any order and on any thread; returns when all are
 * done. Tasks write disjoint memory and start no loops of their own. One caller at a time. */
void cpu_parallel_for(int64_t n_tasks, void (*task)(const void *args, int64_t i), const void *args);

/* Cores that this process may use: those of its affinity, or as many as its container's quota is worth. */
int cpu_cores(void);

/* OMP_NUM_THREADS; 0 where it is not set, or no number above 0. */
int cpu_asked_threads(void);

/* Threads that work on a loop, the caller included: OMP_NUM_THREADS, else cpu_cores(). */
int cpu_thread_count(void);
/* Uses n threads from now on, MAX_THREADS at most; 0: as many as at the start. No result depends on it. */
enum { MAX_THREADS = 256 };
void cpu_set_thread_count(int n);
