/* The CPU as a device (llmc/device/device.h): its memory and its measured peak. Every call is done when it returns. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "cpu.h"
#include "llmc/base/cgroup.h"
#include "llmc/base/clock.h"
#include "matmul.h"
#include "llmc/base/parallel.h"
#include "vec.h"

enum { ALIGNMENT = 256, PATH_BYTES = 1024 };

/* ---- memory ---- */

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

/* ---- the limits of a container ---- */

/* What the two versions of cgroups call the files of one, and the lines of memory.stat about the pages of files. */
static const struct {
    const char *limit, *taken, *pages[2];
} cgroup_names[] = {
    {"memory.max",            "memory.current",        {"inactive_file", "active_file"}            },
    {"memory.limit_in_bytes", "memory.usage_in_bytes", {"total_inactive_file", "total_active_file"}},
};
enum { N_VERSIONS = sizeof cgroup_names / sizeof *cgroup_names };

static size_t cgroup_file_pages(const char *cgroup, const char *const keys[2]) {
    char path[PATH_BYTES], key[64];
    size_t value, sum = 0;
    snprintf(path, sizeof path, "%s/memory.stat", cgroup);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    while (fscanf(file, "%63s %zu", key, &value) == 2)
        if (strcmp(key, keys[0]) == 0 || strcmp(key, keys[1]) == 0) sum += value;
    fclose(file);
    return sum;
}

void cpu_limit_memory(const char *cgroup, size_t *free_bytes, size_t *total_bytes) {
    long long numbers[2];
    int i = 0;
    while (i < N_VERSIONS && !cgroup_read(cgroup, cgroup_names[i].limit, numbers)) i++;
    if (i == N_VERSIONS) return;
    const size_t limit = (size_t)numbers[0];
    size_t taken = cgroup_read(cgroup, cgroup_names[i].taken, numbers) ? (size_t)numbers[0] : 0;
    const size_t file_pages = cgroup_file_pages(cgroup, cgroup_names[i].pages);
    taken -= file_pages < taken ? file_pages : taken;
    const size_t left = limit > taken ? limit - taken : 0;
    if (limit < *total_bytes) *total_bytes = limit;
    if (left < *free_bytes) *free_bytes = left;
}

typedef struct Room {
    size_t free, total;
} Room;

static void limit_room(const char *cgroup, void *user) {
    Room *room = user;
    cpu_limit_memory(cgroup, &room->free, &room->total);
}

/* ---- memory ---- */

static void cpu_memory_info(size_t *free_bytes, size_t *total_bytes) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), total = (size_t)sysconf(_SC_PHYS_PAGES) * page;
    Room room = {.free = total, .total = total};
    char kilobytes[64];
    if (proc_value("/proc/meminfo", "MemAvailable", kilobytes, sizeof kilobytes))
        room.free = (size_t)strtoull(kilobytes, NULL, 10) * 1024;
    cgroup_each("/sys/fs/cgroup", "", limit_room, &room); /* version 2 has one tree */
    cgroup_each("/sys/fs/cgroup/memory", "memory", limit_room, &room);
    *free_bytes = room.free;
    *total_bytes = room.total;
}

/* The kernel hands out address space that it cannot back and kills the process later, so what is free now
 * decides. */
static void *cpu_alloc(size_t bytes) {
    size_t free_bytes, total_bytes;
    cpu_memory_info(&free_bytes, &total_bytes);
    if (bytes > free_bytes) return NULL;
    return aligned_alloc(ALIGNMENT, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
}

static void cpu_free(void *p) {
    free(p);
}

/* ---- zeros and copies, by all threads ---- */

enum { CHUNK_BYTES = 1 << 18 }; /* of memory operations: large enough to leave small ones on one core */

typedef struct Bytes {
    char *dst;
    const char *src; /* NULL: zeros */
    size_t n;
} Bytes;

static void move_chunk(const void *args, int64_t chunk) {
    const Bytes *b = args;
    size_t begin = (size_t)chunk * CHUNK_BYTES, n = (size_t)min_i64((int64_t)(b->n - begin), CHUNK_BYTES);
    if (b->src)
        memcpy(b->dst + begin, b->src + begin, n);
    else
        memset(b->dst + begin, 0, n);
}

static void cpu_zero(void *dst, size_t bytes) {
    cpu_parallel_for(ceil_div((int64_t)bytes, CHUNK_BYTES), move_chunk, &(Bytes){dst, NULL, bytes});
}

static void cpu_zero_rows(void *dst, size_t bytes, size_t stride, int64_t rows) {
    for (int64_t row = 0; row < rows; row++) cpu_zero((char *)dst + (size_t)row * stride, bytes);
}

static void cpu_copy(void *dst, const void *src, size_t bytes) {
    cpu_parallel_for(ceil_div((int64_t)bytes, CHUNK_BYTES), move_chunk, &(Bytes){dst, src, bytes});
}

static void cpu_copy_rows(void *dst, size_t dst_stride, const void *src, size_t src_stride, size_t bytes,
                          int64_t rows) {
    for (int64_t i = 0; i < rows; i++)
        memcpy((char *)dst + (size_t)i * dst_stride, (const char *)src + (size_t)i * src_stride, bytes);
}

/* ---- what it is ---- */

static bool cpu_open(int index, Error *err) {
    return true;
}

static const char *cpu_name(void) {
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

static double cpu_peak_flops(DType dtype, const char **how) {
    *how = "measured";
    int n_threads = cpu_thread_count();
    float results[MAX_THREADS], *sink = results;
    double best = 0;
    for (int i = 0; i < PEAK_TRIES; i++) {
        double begin = clock_seconds();
        cpu_parallel_for(n_threads, multiply_add, &sink);
        double rate = 2.0 * VEC * CHAINS * PEAK_STEPS * n_threads / (clock_seconds() - begin);
        if (rate > best) best = rate;
    }
    return best;
}

/* ---- streams, readback, timestamps, graphs ---- */

static char readbacks[READBACK_SLOTS][READBACK_BYTES];
static double timestamps[TIMESTAMPS_MAX]; /* seconds, monotonic */

/* A call is done when it returns: nothing to wait for. */
static void cpu_synchronize(void) {}
static void cpu_event_record(EventId event, StreamId stream) {}
static void cpu_stream_wait(StreamId stream, EventId event) {}
static void cpu_event_wait(EventId event) {}

static void *cpu_stream_handle(StreamId stream) {
    return NULL;
}

static void cpu_readback_begin(int slot, StreamId stream, const void *src, size_t bytes) {
    memcpy(readbacks[slot], src, bytes);
}

static void cpu_readback_end(int slot, void *dst, size_t bytes) {
    memcpy(dst, readbacks[slot], bytes);
}

static void cpu_download_begin(StreamId stream, void *dst, const void *src, size_t bytes) {
    cpu_copy(dst, src, bytes);
}

static void cpu_timestamp(int i) {
    timestamps[i] = clock_seconds();
}

static double cpu_seconds_between(int first, int second) {
    return timestamps[second] - timestamps[first];
}

/* A call costs nanoseconds here: a graph has nothing to save. */
static bool cpu_capture_begin(void) {
    return false;
}
static Graph *cpu_capture_end(void) {
    return NULL;
}
static void cpu_graph(Graph *graph) {}

const Device device_cpu = {
    .open = cpu_open,
    .name = cpu_name,
    .peak_flops = cpu_peak_flops,
    .fixed_bytes = cpu_matmul_static_bytes,
    .is_async = false,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .memory_info = cpu_memory_info,
    .zero = cpu_zero,
    .zero_rows = cpu_zero_rows,
    .copy = cpu_copy,
    .copy_rows = cpu_copy_rows,
    .upload = cpu_copy,
    .download = cpu_copy,
    .host_alloc = cpu_alloc,
    .host_free = cpu_free,
    .download_begin = cpu_download_begin,
    .synchronize = cpu_synchronize,
    .readback_begin = cpu_readback_begin,
    .readback_end = cpu_readback_end,
    .event_record = cpu_event_record,
    .stream_wait = cpu_stream_wait,
    .event_wait = cpu_event_wait,
    .stream_handle = cpu_stream_handle,
    .timestamp = cpu_timestamp,
    .seconds_between = cpu_seconds_between,
    .capture_begin = cpu_capture_begin,
    .capture_end = cpu_capture_end,
    .graph_launch = cpu_graph,
    .graph_free = cpu_graph,
};
