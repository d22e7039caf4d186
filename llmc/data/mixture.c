#include "mixture.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "llmc/base/random.h"

enum { MOST_PARTS = 1 << 30 };                           /* so that products of two parts fit 64 bits */
static const uint64_t stream_mixture = 0x6D697874757265; /* "mixture" */
static const double least_weight = 1e-12, most_weight = 1e12;

/* ---- reading ---- */

/* The end of a number that ends a source; NULL: there is none. */
static const char *end_of_weight(const char *text) {
    const size_t n = strspn(text, "+-.0123456789eE");
    return n > 0 && (text[n] == 0 || text[n] == ',') ? text + n : NULL;
}

static bool names_file(const char *text, size_t n) {
    char *name = strndup(text, n);
    const bool found = name && access(name, F_OK) == 0;
    free(name);
    return found;
}

/* The ':' before the weight of the source that text begins with: behind the longest name of a file, or else the first;
 * NULL: there is none. */
static const char *find_colon(const char *text) {
    const char *first = NULL, *named = NULL;
    for (const char *at = strchr(text, ':'); at; at = strchr(at + 1, ':')) {
        if (!end_of_weight(at + 1)) continue;
        if (!first) first = at;
        if (names_file(text, (size_t)(at - text))) named = at;
    }
    return named ? named : first;
}

static bool add_source(Mixture *mixture, const char *pattern, size_t length, Error *err) {
    MixtureSource *grown =
        realloc(mixture->sources, ((size_t)mixture->n_sources + 1) * sizeof *mixture->sources);
    if (grown) mixture->sources = grown;
    char *copy = grown ? strndup(pattern, length) : NULL;
    if (!copy) return fail(err, EXIT_RUN, "out of memory for %d sources of data", mixture->n_sources + 1);
    grown[mixture->n_sources++] = (MixtureSource){.pattern = copy};
    return true;
}

/* Appends the source at *text, GLOB:WEIGHT, and moves behind it. */
static bool read_source(Mixture *mixture, double *weight, const char **text, Error *err) {
    const char *begin = *text, *colon = find_colon(begin);
    if (!colon || colon == begin)
        return fail(err, EXIT_INPUT,
                    "'%s': expected GLOB:WEIGHT; hint: 'a_*.bin:0.7,b_*.bin:0.3' is a mixture", begin);
    const char *end = end_of_weight(colon + 1);
    char *read;
    *weight = strtod(colon + 1, &read);
    if (read != end || !(*weight >= least_weight && *weight <= most_weight))
        return fail(err, EXIT_INPUT, "'%.*s': the weight is '%.*s'; expected a number from 1e-12 to 1e12",
                    (int)(colon - begin), begin, (int)(end - colon - 1), colon + 1);
    if (*end && !end[1])
        return fail(err, EXIT_INPUT, "'%s': expected another GLOB:WEIGHT behind the last comma", begin);
    *text = *end ? end + 1 : end;
    return add_source(mixture, begin, (size_t)(colon - begin), err);
}

/* Whole parts, so that nothing is rounded while windows are counted: 0.7 and 0.3 are exactly 7 to 3. */
static bool take_parts(Mixture *mixture, const double *weights, Error *err) {
    double sum = 0;
    for (int i = 0; i < mixture->n_sources; i++) sum += weights[i];
    const double scale = pow(10, floor(log10(MOST_PARTS / sum)));
    for (int i = 0; i < mixture->n_sources; i++) {
        MixtureSource *source = &mixture->sources[i];
        source->before = mixture->parts;
        source->parts = llround(weights[i] * scale);
        mixture->parts += source->parts;
        if (source->parts < 1)
            return fail(
                err, EXIT_INPUT,
                "'%s': the weight %g is too small beside the others; expected a share of 1e-8 or more",
                source->pattern, weights[i]);
    }
    return true;
}

static bool read_mixture(Mixture *mixture, const char *text, Error *err) {
    /* A source has three characters or more. */
    double *weights = must_allocate((strlen(text) + 1) * sizeof *weights, "the weights of a mixture");
    bool ok = true;
    while (ok && *text) ok = read_source(mixture, &weights[mixture->n_sources], &text, err);
    ok = ok && take_parts(mixture, weights, err);
    free(weights);
    return ok;
}

bool mixture_parse(Mixture *mixture, const char *text, Error *err) {
    *mixture = (Mixture){0};
    const bool plain = names_file(text, strlen(text)) || !find_colon(text);
    if (plain ? add_source(mixture, text, strlen(text), err) : read_mixture(mixture, text, err)) {
        if (plain) mixture->parts = mixture->sources[0].parts = 1;
        return true;
    }
    mixture_free(mixture);
    return false;
}

void mixture_free(Mixture *mixture) {
    for (int i = 0; i < mixture->n_sources; i++) free(mixture->sources[i].pattern);
    free(mixture->sources);
    *mixture = (Mixture){0};
}

/* ---- the order ---- */

/* A walk down a binary tree whose leaves are the sources: [low, high) of them, and the first n windows of theirs. */
typedef struct Walk {
    int low, high;
    int64_t n, parts;
} Walk;

typedef struct Fork {
    int middle;    /* the left half is [low, middle) */
    int64_t parts; /* of the left half */
    int64_t phase; /* which of the fork's windows are the left half's: of the seed */
} Fork;

static Fork fork_of(const Mixture *mixture, uint64_t seed, const Walk *walk) {
    const MixtureSource *sources = mixture->sources;
    const int middle = walk->low + (walk->high - walk->low) / 2;
    const uint64_t random = random_stream(random_stream(seed, stream_mixture), (uint64_t)middle);
    return (Fork){middle, sources[middle].before - sources[walk->low].before,
                  (int64_t)(random % (uint64_t)walk->parts)};
}

/* Of the first n windows of a fork, those of its left half: floor((n * left + phase) / parts), n of any size. */
static int64_t left_count(const Fork *fork, int64_t parts, int64_t n) {
    return n / parts * fork->parts + (n % parts * fork->parts + fork->phase) / parts;
}

/* Into one half of the fork, of which the left one has n of the windows. */
static void descend(Walk *walk, const Fork *fork, int64_t n, bool left) {
    *walk = left ? (Walk){walk->low, fork->middle, n, fork->parts}
                 : (Walk){fork->middle, walk->high, walk->n - n, walk->parts - fork->parts};
}

int mixture_source(const Mixture *mixture, uint64_t seed, int64_t position, int64_t *index) {
    Walk walk = {0, mixture->n_sources, position, mixture->parts};
    while (walk.high - walk.low > 1) {
        const Fork fork = fork_of(mixture, seed, &walk);
        const int64_t n = left_count(&fork, walk.parts, walk.n);
        descend(&walk, &fork, n, left_count(&fork, walk.parts, walk.n + 1) > n);
    }
    *index = walk.n;
    return walk.low;
}

int64_t mixture_count(const Mixture *mixture, uint64_t seed, int i, int64_t n) {
    Walk walk = {0, mixture->n_sources, n, mixture->parts};
    while (walk.high - walk.low > 1) {
        const Fork fork = fork_of(mixture, seed, &walk);
        descend(&walk, &fork, left_count(&fork, walk.parts, walk.n), i < fork.middle);
    }
    return walk.n;
}
