/* The CPU as a device whose memory forked processes reach, for what ranks do with each other's memory where there are no
 * two cards: memory comes from one arena a process, all made before the fork, and copies and flags are the CPU's. */
#pragma once
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "llmc/device/device.h"

enum { SHARED_PROCESSES = 8, SHARED_BYTES = 64 << 20, SHARED_ALIGNMENT = 256 };

static struct {
    char *arenas;     /* (SHARED_PROCESSES, SHARED_BYTES) */
    int own;          /* this process' arena */
    size_t used;      /* of it */
    int refuses;      /* the process that cannot name its memory; -1: all can */
    int reaches_none; /* the process that opens no other's memory; -1: all do */
    bool loses_flags; /* sends of a few bytes do not arrive */
} shared_device = {.refuses = -1, .reaches_none = -1};

static void *shared_alloc(size_t bytes) {
    char *p = shared_device.arenas + (size_t)shared_device.own * SHARED_BYTES + shared_device.used;
    shared_device.used += (bytes + SHARED_ALIGNMENT) / SHARED_ALIGNMENT * SHARED_ALIGNMENT;
    if (shared_device.used > SHARED_BYTES) abort();
    return p;
}
static void shared_free(void *p) {
    (void)p;
}

static bool shared_name(MemoryHandle *handle, const void *p) {
    const size_t at = (size_t)((const char *)p - shared_device.arenas);
    memcpy(handle->bytes, &at, sizeof at);
    return shared_device.own != shared_device.refuses;
}
static void *shared_open(const MemoryHandle *handle) {
    size_t at;
    memcpy(&at, handle->bytes, sizeof at);
    return shared_device.own == shared_device.reaches_none ? NULL : shared_device.arenas + at;
}

static void shared_send(StreamId stream, void *theirs, const void *mine, size_t bytes, size_t rows,
                        size_t stride) {
    (void)stream;
    if (shared_device.loses_flags && bytes <= sizeof(uint32_t)) return;
    for (size_t row = 0; row < rows; row++)
        memcpy((char *)theirs + row * stride, (const char *)mine + row * stride, bytes);
}

static void shared_raise(StreamId stream, uint32_t *const *flags, int n, const uint32_t *round) {
    (void)stream;
    for (int i = 0; i < n; i++)
        if (flags[i]) atomic_store((_Atomic uint32_t *)flags[i], *round + 1);
}
static void shared_wait(StreamId stream, const uint32_t *flags, int stride, int n, int own,
                        const uint32_t *round) {
    (void)stream;
    for (int i = 0; i < n; i++)
        while (i != own &&
               (int32_t)(atomic_load((_Atomic uint32_t *)(flags + i * stride)) - (*round + 1)) < 0)
            usleep(20);
}
static void shared_next_round(StreamId stream, uint32_t *round) {
    (void)stream;
    *round += 1;
}

static void shared_add(StreamId stream, const PeerTerms *t) {
    (void)stream;
    for (int row = 0; row < t->rows; row++)
        for (int64_t i = 0; i < t->count; i++) {
            float *x = t->x + row * t->x_stride, sum = 0;
            for (int k = 0; k < t->n; k++) {
                const float *received =
                    t->received + (k < t->own ? k : k - 1) * t->apart + row * t->received_stride;
                const float term = k == t->own ? x[i] : received[i];
                sum = k == 0 ? term : sum + term;
            }
            x[i] = sum;
        }
}

static const PeerMemory shared_peer_memory = {
    shared_name,  shared_open, shared_free, shared_send,
    shared_raise, shared_wait, shared_add,  shared_next_round,
};

/* In the parent, before the fork; each process then says which it is. */
static Device shared_device_open(void) {
    Device device = device_cpu;
    shared_device.arenas = mmap(NULL, (size_t)SHARED_PROCESSES * SHARED_BYTES, PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (shared_device.arenas == MAP_FAILED) abort();
    device.alloc = shared_alloc;
    device.free = shared_free;
    device.peer_memory = &shared_peer_memory;
    return device;
}
static void shared_device_is(int process) {
    shared_device.own = process;
    shared_device.used = 0;
}
