/* --profile-trace: the ops of one step on the device's time line, in the trace event format (JSON) that ui.perfetto.dev and
 * chrome://tracing open. Two tracks: the ops, and above them what they belong to, micro-steps, phases and layers. */
#pragma once
#include "llmc/base/json.h"
#include "profile.h"

/* What stands in the trace beside the ops. */
typedef struct TraceHead {
    const char *program, *device, *model;
    double seconds_a_step; /* wall clock of a step that is not profiled */
} TraceHead;

/* False, with err, where no new file can be made at path: nothing is replaced. */
bool trace_check(const char *path, Error *err);
/* n calls of one step as a trace. */
void trace_json(JsonWriter *w, const TraceHead *head, const ProfileCall *calls, int n);
/* The same into a new file, which is removed if that fails. */
bool trace_write(const char *path, const TraceHead *head, const ProfileCall *calls, int n, Error *err);
