/* One loop at a time, its tasks handed out by a counter.
 *
 * `ticket` holds the loop's number (high half) and the tasks not yet taken (low half), so that taking a task
 * is one compare-and-swap that fails once the loop has ended: a thread that wakes late finds nothing to take,
 * and cannot run the next loop with this loop's arguments. The fields of a loop are written before its ticket
 * is published, and not again until all its tasks are done. */
#include "parallel.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "cgroup.h"

/* A pause takes about 15 ns: idle threads spin for 30 us, which covers the serial code between two ops. */
enum { SPINS = 2000, YIELDS = 100, STACK_BYTES = 4 << 20 };

typedef void (*Task)(const void *args, int64_t i);

static struct {
    _Atomic uint64_t ticket;
    _Atomic int64_t n_tasks, n_done;
    _Atomic(Task) task;
    _Atomic(const void *) args;
    atomic_int n_threads, n_asleep; /* n_threads: 0 until first asked for */
    int n_workers;                  /* started so far; the caller's thread is not one */
    pthread_mutex_t mutex;
    pthread_cond_t wake;
} pool = {.mutex = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* The i-th time that a thread looks: it spins, then offers the core to others. */
static void wait_a_little(int i) {
    if (i < SPINS)
        relax();
    else
        sched_yield();
}

/* Takes and runs tasks of the published loop until none is left. */
static void run_tasks(void) {
    uint64_t ticket = atomic_load(&pool.ticket);
    while ((uint32_t)ticket > 0) {
        int64_t n_tasks = atomic_load_explicit(&pool.n_tasks, memory_order_relaxed);
        Task task = atomic_load_explicit(&pool.task, memory_order_relaxed);
        const void *args = atomic_load_explicit(&pool.args, memory_order_relaxed);
        if (atomic_compare_exchange_strong(&pool.ticket, &ticket, ticket - 1)) {
            task(args, n_tasks - (uint32_t)ticket);
            atomic_fetch_add(&pool.n_done, 1);
            ticket = atomic_load(&pool.ticket);
        }
    }
}

static bool may_work(int worker) {
    return (uint32_t)atomic_load(&pool.ticket) > 0 && worker < atomic_load(&pool.n_threads);
}

/* Short waits spin, longer ones offer the core to others, long ones sleep. */
static void wait_for_work(int worker) {
    for (int i = 0; i < SPINS + YIELDS; i++) {
        if (may_work(worker)) return;
        wait_a_little(i);
    }
    pthread_mutex_lock(&pool.mutex);
    atomic_fetch_add(&pool.n_asleep, 1);
    while (!may_work(worker)) pthread_cond_wait(&pool.wake, &pool.mutex);
    atomic_fetch_sub(&pool.n_asleep, 1);
    pthread_mutex_unlock(&pool.mutex);
}

static void *work(void *number) {
    for (;;) {
        wait_for_work((int)(intptr_t)number);
        run_tasks();
    }
    return NULL;
}

/* Starts the workers that are missing; where the system refuses one, the rest do its share. */
static void start_workers(int n_threads) {
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    while (pool.n_workers < n_threads - 1) {
        pthread_t thread;
        if (pthread_create(&thread, &attr, work, (void *)(intptr_t)(pool.n_workers + 1)) != 0) break;
        pool.n_workers++;
    }
    pthread_attr_destroy(&attr);
}

void cpu_parallel_for(int64_t n_tasks, void (*task)(const void *args, int64_t i), const void *args) {
    int n_threads = cpu_thread_count();
    if (n_threads == 1 || n_tasks <= 1) {
        for (int64_t i = 0; i < n_tasks; i++) task(args, i);
        return;
    }
    if (pool.n_workers < n_threads - 1) start_workers(n_threads);
    atomic_store_explicit(&pool.n_tasks, n_tasks, memory_order_relaxed);
    atomic_store_explicit(&pool.task, task, memory_order_relaxed);
    atomic_store_explicit(&pool.args, args, memory_order_relaxed);
    atomic_store_explicit(&pool.n_done, 0, memory_order_relaxed);
    uint64_t loop = (atomic_load(&pool.ticket) >> 32) + 1;
    atomic_store(&pool.ticket, loop << 32 | (uint32_t)n_tasks);
    if (atomic_load(&pool.n_asleep) > 0) {
        pthread_mutex_lock(&pool.mutex);
        pthread_cond_broadcast(&pool.wake);
        pthread_mutex_unlock(&pool.mutex);
    }
    run_tasks();
    for (int i = 0; atomic_load(&pool.n_done) < n_tasks; i++) wait_a_little(i);
}

/* *cores: the least so far, 0 where there is no quota. Version 2 of cgroups, or 1. */
static void limit_cores(const char *cgroup, void *cores) {
    long long quota[2], period[2];
    int *least = cores;
    if (cgroup_read(cgroup, "cpu.max", quota) == 2)
        period[0] = quota[1];
    else if (!cgroup_read(cgroup, "cpu.cfs_quota_us", quota) ||
             !cgroup_read(cgroup, "cpu.cfs_period_us", period))
        return;
    if (quota[0] <= 0 || period[0] <= 0) return;
    const int worth = (int)ceil_div(quota[0], period[0]);
    if (*least == 0 || worth < *least) *least = worth;
}

/* Cores' worth of time that the quota of a container, a job or a service allows, or 0 where there is none. Threads beyond it are
 * stopped for most of each 100 ms, and the others wait for them. */
static int quota_cores(void) {
    int cores = 0;
    cgroup_each("/sys/fs/cgroup", "", limit_cores, &cores);
    cgroup_each("/sys/fs/cgroup/cpu", "cpu", limit_cores, &cores);
    cgroup_each("/sys/fs/cgroup/cpu", "cpu,cpuacct", limit_cores, &cores);
    return cores;
}

static int cores_of_affinity(void) {
#ifdef __linux__
    cpu_set_t cores;
    if (sched_getaffinity(0, sizeof cores, &cores) == 0) return CPU_COUNT(&cores);
#endif
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
}

int cpu_cores(void) {
    const int cores = cores_of_affinity(), quota = quota_cores();
    return quota > 0 && quota < cores ? quota : cores;
}

int cpu_asked_threads(void) {
    const char *text = getenv("OMP_NUM_THREADS");
    const int asked = text ? atoi(text) : 0;
    return asked > 0 ? asked : 0;
}

static int default_thread_count(void) {
    const int asked = cpu_asked_threads();
    return asked > 0 ? asked : cpu_cores();
}

int cpu_thread_count(void) {
    if (atomic_load(&pool.n_threads) == 0) cpu_set_thread_count(default_thread_count());
    return atomic_load(&pool.n_threads);
}

void cpu_set_thread_count(int n) {
    atomic_store(&pool.n_threads, n < MAX_THREADS ? n : MAX_THREADS);
}
