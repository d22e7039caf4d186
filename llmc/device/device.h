/* A device: memory, transfers, streams, events, graphs. What it computes is another table, Ops (llmc/model/ops.h).
 *
 * A process uses one device. Work on a stream runs in the order of the calls; the host waits in download(),
 * synchronize(), readback_end(), event_wait(), seconds_between() and the memory calls alone. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "llmc/base/dtype.h"
#include "llmc/base/error.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Graph Graph; /* a captured sequence of work, see Device.capture_begin */

/* All ops run on the main stream, and so does what has no stream among its arguments. The side stream is for what may
 * run beside them, which events put in order; the snapshot stream is for long copies to the host. */
typedef enum { STREAM_MAIN, STREAM_SIDE, STREAM_SNAPSHOT, N_STREAMS } StreamId;

/* Every event has one purpose and is used again in the next step. */
typedef enum {
    EVENT_STATS_FINAL,      /* main stream: the step's statistics are what they will be */
    EVENT_STATS_READ,       /* side stream: they may be written again */
    EVENT_TOKENS_DRAWN,     /* main stream: tokens of a sample are there to be read */
    EVENT_GRADS_FINAL,      /* main stream: a range of gradients is what this rank makes of it */
    EVENT_GRADS_REDUCED,    /* side stream: the own parts hold the sums over ranks */
    EVENT_WEIGHTS_UPDATED,  /* main stream: the own part of a range of weights is the new one */
    EVENT_WEIGHTS_GATHERED, /* side stream: all parts are */
    EVENT_SNAPSHOT_READY,   /* main stream: what a snapshot copies is as it shall be */
    EVENT_SNAPSHOT_TAKEN,   /* snapshot stream: it may change again */
    EVENT_PARTS_FINAL,      /* main stream: Muon's parts of matrices are what they will be */
    EVENT_PARTS_EXCHANGED,  /* side stream: those of other ranks have come in */
    N_EVENTS
} EventId;

enum { READBACK_SLOTS = 2, READBACK_BYTES = 4096, TIMESTAMPS_MAX = 1 << 18 };

/* Memory of alloc(), named for another process of this host. */
typedef struct MemoryHandle {
    char bytes[64];
} MemoryHandle;

/* x = the sum of n terms in the order of their numbers, row by row. x itself is term `own`; the others lie one behind the
 * other in received, `apart` elements from each other. Whole multiples of 4 elements. */
typedef struct PeerTerms {
    float *x;
    const float *received;
    int64_t apart;
    int n, own;
    int64_t count; /* elements of a row */
    int rows;
    int64_t x_stride, received_stride; /* elements between rows */
} PeerTerms;

/* How a device writes into the memory of another process's device: copies that take none of its cores, and flags.
 * A flag is raised to the number of a round, which lies on the device, so that a graph may hold the calls. */
typedef struct PeerMemory {
    /* handle = what names p, the beginning of memory of alloc(). */
    bool (*name)(MemoryHandle *handle, const void *p);
    /* Where that memory lies for this process; NULL where its device does not reach it. */
    void *(*open)(const MemoryHandle *handle);
    void (*close)(void *p); /* NULL is fine */
    /* Queues theirs (rows of `bytes`, `stride` bytes apart) = mine. */
    void (*send)(StreamId stream, void *theirs, const void *mine, size_t bytes, size_t rows, size_t stride);
    /* Behind what the stream has: *flags[i] = *round + 1 for i < n. flags (n) lies on the device, NULL is left out. */
    void (*raise)(StreamId stream, uint32_t *const *flags, int n, const uint32_t *round);
    /* The stream waits until flags[i * stride] is *round + 1 or later for all i < n but `own`. */
    void (*wait)(StreamId stream, const uint32_t *flags, int stride, int n, int own, const uint32_t *round);
    void (*add)(StreamId stream, const PeerTerms *terms);
    void (*next_round)(StreamId stream, uint32_t *round); /* += 1 */
} PeerMemory;

typedef struct Device {
    /* Readies device `index` of the machine (context, streams, library handles); before any other call but name,
     * memory_info and fixed_bytes. Once open, a device stays so: a second call does nothing. */
    bool (*open)(int index, Error *err);
    /* One line for the console: device, compute capability or cores, memory. Valid until the process ends. */
    const char *(*name)(void);
    /* Peak matrix rate of this device for dtype in FLOP/s: derived from device attributes or measured, never
     * from a table of names. `how` gets "measured" or "derived". */
    double (*peak_flops)(DType dtype, const char **how);
    /* Bytes that open() itself takes on the device (library workspaces), for the memory plan. */
    size_t (*fixed_bytes)(void);
    /* True where calls return before their work is done, so that results are best read later, by readback. */
    bool is_async;

    /* ---- memory and transfers ---- */
    void *(*alloc)(size_t bytes); /* 256-byte aligned; NULL if it does not fit */
    void (*free)(void *p);        /* NULL is fine */
    void (*memory_info)(size_t *free_bytes, size_t *total_bytes);
    void (*zero)(void *dst, size_t bytes);
    /* The same in `rows` places, `stride` bytes apart. */
    void (*zero_rows)(void *dst, size_t bytes, size_t stride, int64_t rows);
    void (*copy)(void *dst, const void *src, size_t bytes); /* device to device */
    /* The same for `rows` pieces, each so many bytes behind the one before. */
    void (*copy_rows)(void *dst, size_t dst_stride, const void *src, size_t src_stride, size_t bytes,
                      int64_t rows);
    void (*upload)(void *dst, const void *src,
                   size_t bytes); /* host to device; src may be reused at return */
    void (*download)(void *dst, const void *src,
                     size_t bytes); /* device to host; waits for all work before it */
    void (*synchronize)(void);      /* waits for the main and the side stream */
    /* Host memory that the device copies into by itself, and such a copy, queued on a stream. */
    void *(*host_alloc)(size_t bytes); /* NULL if it does not fit */
    void (*host_free)(void *p);        /* NULL is fine */
    void (*download_begin)(StreamId stream, void *dst, const void *src, size_t bytes);
    /* readback_begin queues a copy of bytes <= READBACK_BYTES, a multiple of 4, from the device on a stream, into `slot` <
     * READBACK_SLOTS; readback_end waits for that copy alone, not for what was queued behind it. */
    void (*readback_begin)(int slot, StreamId stream, const void *src, size_t bytes);
    void (*readback_end)(int slot, void *dst, size_t bytes);

    /* ---- streams and events ---- */
    /* event_record marks the end of the work that the stream has so far; what is queued on a stream behind stream_wait
     * starts once the work before the latest record is done, or at once where there was none. */
    void (*event_record)(EventId event, StreamId stream);
    void (*stream_wait)(StreamId stream, EventId event);
    /* The host waits, on any thread, until the work before the latest record is done. */
    void (*event_wait)(EventId event);
    /* The stream as the device's own libraries take it (cudaStream_t), once open; NULL where the device has none. */
    void *(*stream_handle)(StreamId stream);

    const PeerMemory *peer_memory; /* NULL where the device has none */

    /* ---- timestamps ---- */
    /* timestamp takes the time at which the main stream comes to it, i < TIMESTAMPS_MAX; seconds_between waits until it
     * has come to the second of two. */
    void (*timestamp)(int i);
    double (*seconds_between)(int first, int second);

    /* ---- graphs ---- */
    /* Between capture_begin and capture_end the main stream's work is captured, not run; graph_launch runs what was captured, with the
     * same buffers and numbers. Only ops of sizes that ran before, or that at their first
     * call allocate and time nothing; no memory calls, no uploads or downloads.
     * capture_begin is false, capture_end NULL where the device cannot. */
    bool (*capture_begin)(void);
    Graph *(*capture_end)(void);
    void (*graph_launch)(Graph *graph);
    void (*graph_free)(Graph *graph); /* NULL is fine */
} Device;

extern const Device device_cpu;

/* True where a CUDA device and a driver are present; never fails, never prints. False in a build without CUDA. */
bool cuda_available(void);
int cuda_device_count(void); /* likewise */

#ifdef __cplusplus
}
#endif
