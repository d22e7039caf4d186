/* The events of a trace. Times are the device's own, in whole nanoseconds since the step's first op, so that what touches
 * does not overlap; the format's unit is the microsecond. */
#include "profile_trace.h"
#include <math.h>
#include <string.h>
#include "llmc/base/files.h"

enum { TRACK_STEP = 1, TRACK_OPS = 2 };

/* ---- events ---- */

static void begin_event(JsonWriter *w, const char *phase, const char *name, int track) {
    buffer_append(&w->text, "\n", 1);
    json_begin_object(w, NULL);
    json_write_string(w, "ph", phase);
    json_write_string(w, "name", name);
    json_write_int(w, "pid", 1);
    json_write_int(w, "tid", track);
}

/* The name of a track, or (0) of all of it. */
static void name_track(JsonWriter *w, int track, const char *name) {
    begin_event(w, "M", track ? "thread_name" : "process_name", track);
    json_begin_object(w, "args");
    json_write_string(w, "name", name);
    json_end_object(w);
    json_end_object(w);
}

static void begin_slice(JsonWriter *w, const char *name, int track, double begin, double end) {
    const double begin_ns = round(1e9 * begin), end_ns = round(1e9 * end);
    begin_event(w, "X", name, track);
    json_write_double(w, "ts", begin_ns / 1e3);
    json_write_double(w, "dur", (end_ns - begin_ns) / 1e3);
}

/* ---- what ops belong to ---- */

typedef enum { LEVEL_MICRO_STEP, LEVEL_PHASE, LEVEL_LAYER, N_LEVELS } Level;

static bool has_level(const ProfileCall *call, Level level) {
    return level == LEVEL_MICRO_STEP ? call->at.micro_step >= 0
           : level == LEVEL_PHASE    ? call->at.phase != NULL
                                     : call->at.layer >= 0;
}

/* Both are of one slice of this level. */
static bool are_together(const ProfileCall *a, const ProfileCall *b, Level level) {
    if (has_level(a, level) != has_level(b, level) || a->at.micro_step != b->at.micro_step) return false;
    const bool same_phase =
        a->at.phase == b->at.phase || (a->at.phase && b->at.phase && strcmp(a->at.phase, b->at.phase) == 0);
    return level == LEVEL_MICRO_STEP || (same_phase && (level == LEVEL_PHASE || a->at.layer == b->at.layer));
}

static void write_level(JsonWriter *w, const ProfileCall *calls, int n, Level level) {
    for (int first = 0, next; first < n; first = next) {
        const ProfileCall *call = &calls[first];
        char name[64];
        for (next = first + 1; next < n && are_together(call, &calls[next], level);) next++;
        if (!has_level(call, level)) continue;
        if (level == LEVEL_PHASE)
            snprintf(name, sizeof name, "%s", call->at.phase);
        else
            snprintf(name, sizeof name, "%s %d", level == LEVEL_LAYER ? "layer" : "micro-step",
                     level == LEVEL_LAYER ? call->at.layer : call->at.micro_step);
        begin_slice(w, name, TRACK_STEP, call->begin, calls[next - 1].end);
        json_end_object(w);
    }
}

/* ---- ops ---- */

static void write_rate(JsonWriter *w, const char *name, double work, double seconds) {
    if (work > 0 && seconds > 0) json_write_double(w, name, work / seconds);
}

static void write_call(JsonWriter *w, const ProfileCall *call) {
    const double seconds = call->end - call->begin;
    begin_slice(w, call->name, TRACK_OPS, call->begin, call->end);
    if (call->at.phase) json_write_string(w, "cat", call->at.phase);
    json_begin_object(w, "args");
    if (call->kernel) json_write_string(w, "kernel", call->kernel);
    if (has_level(call, LEVEL_MICRO_STEP)) json_write_int(w, "micro-step", call->at.micro_step);
    if (has_level(call, LEVEL_LAYER)) json_write_int(w, "layer", call->at.layer);
    json_write_double(w, "FLOP", call->cost.flops);
    json_write_double(w, "bytes", call->cost.bytes);
    write_rate(w, "TFLOP/s", 1e-12 * call->cost.flops, seconds);
    write_rate(w, "GB/s", 1e-9 * call->cost.bytes, seconds);
    json_end_object(w);
    json_end_object(w);
}

static void write_head(JsonWriter *w, const TraceHead *head, const ProfileCall *calls, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += calls[i].end - calls[i].begin;
    json_begin_object(w, "otherData");
    json_write_string(w, "program", head->program);
    json_write_string(w, "device", head->device);
    json_write_string(w, "model", head->model);
    json_write_int(w, "ops", n);
    json_write_double(w, "ms of all ops", 1e3 * sum);
    json_write_double(w, "ms of this step", n ? 1e3 * calls[n - 1].end : 0);
    json_write_double(w, "ms of a step without the profile, wall clock", 1e3 * head->seconds_a_step);
    json_end_object(w);
}

void trace_json(JsonWriter *w, const TraceHead *head, const ProfileCall *calls, int n) {
    json_begin_object(w, NULL);
    write_head(w, head, calls, n);
    json_write_string(w, "displayTimeUnit", "ms");
    json_begin_array(w, "traceEvents");
    name_track(w, 0, head->device);
    name_track(w, TRACK_STEP, "a step");
    name_track(w, TRACK_OPS, "ops");
    /* Of slices that begin together the longer stands first. */
    for (int level = 0; level < N_LEVELS; level++) write_level(w, calls, n, (Level)level);
    for (int i = 0; i < n; i++) write_call(w, &calls[i]);
    json_end_array(w);
    json_end_object(w);
    buffer_append(&w->text, "\n", 1);
}

/* ---- the file ---- */

bool trace_check(const char *path, Error *err) {
    char folder[PATH_MAX];
    path_parent(folder, path);
    return (file_is_free(path, err) && directory_is_writable(folder, err)) || fail_flag("profile-trace", err);
}

bool trace_write(const char *path, const TraceHead *head, const ProfileCall *calls, int n, Error *err) {
    char folder[PATH_MAX];
    JsonWriter w = {0};
    path_parent(folder, path);
    trace_json(&w, head, calls, n);
    const bool ok = w.text.failed ? fail(err, EXIT_RUN, "%s: no memory for the trace", path)
                                  : file_write(folder, path_name(path), w.text.data, w.text.length, err);
    json_writer_free(&w);
    return ok;
}
