#include "snapshot.h"

size_t snapshot_bytes(const GPT2Config *config, OptimizerKind optimizer, bool model_only, int n_parts) {
    Tensor tensors[N_TENSORS];
    int ids[MAX_BUFFERS];
    gpt2_tensors(tensors, config, n_parts);
    return (size_t)gpt2_n_elements(tensors) * sizeof(float) *
           (size_t)list_buffers(ids, optimizer, model_only);
}

/* A system that pins or promises more than it has ends programs, so half of what is free stays free. */
static bool has_room(size_t bytes) {
    size_t free_bytes, total_bytes;
    device_cpu.memory_info(&free_bytes, &total_bytes);
    return bytes <= free_bytes / 2;
}

bool snapshot_open(Snapshot *s, const GPT2 *model, bool model_only) {
    *s = (Snapshot){.device = model->ops->device};
    s->n = list_buffers(s->ids, model->options.optimizer, model_only);
    const size_t bytes = (size_t)model->n_elements * sizeof(float);
    bool ok = has_room(bytes * (size_t)s->n);
    for (int i = 0; ok && i < s->n; i++) ok = (s->data[i] = s->device->host_alloc(bytes)) != NULL;
    if (!ok) snapshot_close(s);
    return ok;
}

void snapshot_close(Snapshot *s) {
    for (int i = 0; i < s->n; i++) s->device->host_free(s->data[i]);
    *s = (Snapshot){0};
}

/* What was gathered lies in the gradients' buffer: the next one, and backward, wait until it is copied. */
static void copy_buffer(const Snapshot *s, int i, const GPT2 *model, const float *from) {
    const Device *device = s->device;
    device->event_record(EVENT_SNAPSHOT_READY, STREAM_MAIN);
    device->stream_wait(STREAM_SNAPSHOT, EVENT_SNAPSHOT_READY);
    device->download_begin(STREAM_SNAPSHOT, s->data[i], from, (size_t)model->n_elements * sizeof(float));
    device->event_record(EVENT_SNAPSHOT_TAKEN, STREAM_SNAPSHOT);
    if (from == model->grads) device->stream_wait(STREAM_MAIN, EVENT_SNAPSHOT_TAKEN);
}

void snapshot_take(const Snapshot *s, GPT2 *model, bool model_only) {
    int ids[MAX_BUFFERS];
    const int n = list_buffers(ids, model->options.optimizer, model_only);
    for (int i = 0; i < n; i++) {
        const float *from = gather_buffer(model, ids[i]);
        if (snapshot_is_open(s)) copy_buffer(s, i, model, from);
    }
}

void snapshot_wait(const Snapshot *s) {
    s->device->event_wait(EVENT_SNAPSHOT_TAKEN);
}

const float *snapshot_buffer(const Snapshot *s, int id) {
    for (int i = 0; i < s->n; i++)
        if (s->ids[i] == id) return s->data[i];
    return NULL;
}
