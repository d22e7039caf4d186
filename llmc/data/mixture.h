/* A mixture of data: globs with weights, and which of them each window of a run comes from. Private to the data loader,
 * but for mixture_parse.
 *
 *   a_*.bin:0.7,b_*.bin:0.3
 *
 * A weight is a source's share of the windows. One glob alone is a mixture of one source. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "llmc/base/error.h"

typedef struct MixtureSource {
    char *pattern;
    int64_t parts;  /* its share of Mixture.parts */
    int64_t before; /* parts of the sources before it */
} MixtureSource;

typedef struct Mixture {
    MixtureSource *sources;
    int n_sources;
    int64_t parts; /* of all sources: at most 2^30 */
} Mixture;

/* A file of that very name comes first; else every ':' with a number behind it, and ',' or the end behind that, ends a
 * source. Refuses a source without a weight, and a weight that is no number from 1e-12 to 1e12. No file needs to be
 * there. */
bool mixture_parse(Mixture *mixture, const char *text, Error *err);
void mixture_free(Mixture *mixture);

/* The source of the window at `position` >= 0 of the run; *index: windows of that source before it. A function of
 * weights and seed alone: it can be asked for any position, so a run can be entered anywhere. */
int mixture_source(const Mixture *mixture, uint64_t seed, int64_t position, int64_t *index);
/* Windows of source i among the first n of the run. It differs from their share by less than 1 of two sources, and by
 * less than log2(n_sources) + 1 of more, however many windows there are. */
int64_t mixture_count(const Mixture *mixture, uint64_t seed, int i, int64_t n);
