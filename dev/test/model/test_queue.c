/* Statistics that are read while the next step runs: on a device whose side stream is as late as its events let it be, and
 * on one where it is as early. */
#include <string.h>
#include "dev/test/check.h"
#include "dev/test/tiny_model.h"

enum { T = 8, STEPS = 4 };
static const char *kind;
static bool late;

/* The statistics as the main stream had them at each event, and as the side stream may see them. */
static StepStats at_event[N_EVENTS], seen;

/* What the side stream has still to copy, and the event that was recorded behind it. */
static struct {
    const void *src;
    size_t bytes;
    int slot, event;
} waiting = {.event = N_EVENTS};

static StepStats results[READBACK_SLOTS];
static const StepStats *stats_of_model;

static void copy_now(void) {
    if (waiting.src) memcpy(&results[waiting.slot], waiting.src, waiting.bytes);
    waiting.src = NULL;
    waiting.event = N_EVENTS;
}

static void readback_begin(int slot, StreamId stream, const void *src, size_t bytes) {
    CHECK(!waiting.src, "%s: two readbacks at once", kind);
    if (stream == STREAM_MAIN || !late) {
        memcpy(&results[slot], stream == STREAM_MAIN ? src : &seen, bytes);
        return;
    }
    waiting.src = src;
    waiting.bytes = bytes;
    waiting.slot = slot;
}

static void readback_end(int slot, void *dst, size_t bytes) {
    if (slot == waiting.slot) copy_now();
    memcpy(dst, &results[slot], bytes);
}

static void event_record(EventId event, StreamId stream) {
    if (stream == STREAM_MAIN)
        at_event[event] = *stats_of_model;
    else if (waiting.src)
        waiting.event = (int)event;
}

static void stream_wait(StreamId stream, EventId event) {
    if (stream == STREAM_SIDE)
        seen = at_event[event];
    else if (waiting.event == (int)event)
        copy_now();
}

static void step(GPT2 *model, int i) {
    const UpdateArgs update = {.step = i + 1, .lr = 1e-2f, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f};
    int32_t tokens[T], targets[T];
    for (int t = 0; t < T; t++) tokens[t] = (7 * t + i) % 250, targets[t] = (5 * t + i) % 250;
    gpt2_begin_step(model, 1);
    gpt2_micro_step(model, tokens, targets, 1, T, 1);
    gpt2_update(model, &update);
}

static void open_model(GPT2 *model, const Ops *ops) {
    const GPT2Options options = {.B = 1, .T = T, .training = true};
    Error err = {0};
    REQUIRE(gpt2_open(model, ops, &tiny_config, &options, &err), "%s", err.text);
    tiny_fill(model, 3);
}

/* As training does it: a step is queued, then the statistics of the one before it are taken. */
static void test_side_stream(void) {
    Device device = device_cpu;
    Ops ops = ops_cpu;
    GPT2 direct, queued;
    StepStats want[STEPS];
    device.readback_begin = readback_begin;
    device.readback_end = readback_end;
    device.event_record = event_record;
    device.stream_wait = stream_wait;
    ops.device = &device;
    open_model(&direct, &ops_cpu);
    open_model(&queued, &ops);
    stats_of_model = queued.stats;
    for (int i = 0; i <= STEPS; i++) {
        if (i < STEPS) {
            step(&direct, i);
            want[i] = gpt2_step_stats(&direct);
            step(&queued, i);
            gpt2_queue_stats(&queued, i % READBACK_SLOTS);
        }
        if (i > 0) {
            const StepStats got = gpt2_take_stats(&queued, (i - 1) % READBACK_SLOTS);
            CHECK(memcmp(&got, &want[i - 1], sizeof got) == 0,
                  "%s, step %d: loss %g, norm %g; expected %g, %g", kind, i, (double)got.loss,
                  (double)got.grad_norm, (double)want[i - 1].loss, (double)want[i - 1].grad_norm);
        }
    }
    gpt2_close(&direct);
    gpt2_close(&queued);
}

int main(void) {
    kind = "late", late = true;
    test_side_stream();
    kind = "early", late = false;
    test_side_stream();
    return check_finish("queue");
}
