#include "verify.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "llmc/comm/watchdog.h"

enum { PARTS = 4, PART_BITS = 64 / PARTS }; /* a double carries 16 bits of a hash exactly */

bool verify_weights_due(Ranks ranks, int64_t step, bool first) {
    return ranks.n_ranks > 1 && (first || step % HASH_EVERY == 0);
}

/* hashes (n_ranks) = each rank's */
static void gather(Comm *comm, uint64_t *hashes, uint64_t own) {
    const Ranks ranks = comm->ranks;
    double *parts = calloc((size_t)ranks.n_ranks * PARTS, sizeof *parts);
    if (!parts) abort();
    for (int k = 0; k < PARTS; k++) parts[ranks.rank * PARTS + k] = (double)(own >> (k * PART_BITS) & 0xffff);
    comm->sum_on_host(comm, parts, (int64_t)ranks.n_ranks * PARTS);
    for (int r = 0; r < ranks.n_ranks; r++)
        for (int k = 0; k < PARTS; k++) hashes[r] |= (uint64_t)parts[r * PARTS + k] << (k * PART_BITS);
    free(parts);
}

/* The value that most ranks have, and how many they are. */
static uint64_t commonest(const uint64_t *hashes, int n, int *n_have) {
    uint64_t value = 0;
    *n_have = 0;
    for (int i = 0; i < n; i++) {
        int have = 0;
        for (int k = 0; k < n; k++) have += hashes[k] == hashes[i];
        if (have > *n_have) *n_have = have, value = hashes[i];
    }
    return value;
}

/* "rank 3 (node7) and 2 more": of those that do not have the value. */
static void name_others(const uint64_t *hashes, int n, uint64_t value, char *text, size_t size) {
    char name[96];
    int n_others = 0;
    for (int i = n - 1; i >= 0; i--) {
        if (hashes[i] == value) continue;
        watchdog_rank(i, name, sizeof name);
        n_others++;
    }
    if (n_others == 1)
        snprintf(text, size, "%s", name);
    else
        snprintf(text, size, "%s and %d more", name, n_others - 1);
}

bool verify_weights(Comm *comm, uint64_t hash, int64_t step, Error *err) {
    const int n = comm->ranks.n_ranks;
    char others[128], first[96], second[96];
    int n_have;
    uint64_t *hashes = calloc((size_t)n, sizeof *hashes);
    if (!hashes) abort();
    gather(comm, hashes, hash);
    const uint64_t value = commonest(hashes, n, &n_have);
    if (n_have < n) name_others(hashes, n, value, others, sizeof others);
    free(hashes);
    if (n_have == n) return true;
    if (n == 2)
        return fail(err, EXIT_RUN, "step %lld: the weights of %s and %s differ, and must not",
                    (long long)step, watchdog_rank(0, first, sizeof first),
                    watchdog_rank(1, second, sizeof second));
    if (2 * n_have <= n)
        return fail(err, EXIT_RUN, "step %lld: the weights of the ranks differ, and must not",
                    (long long)step);
    return fail(err, EXIT_RUN, "step %lld: the weights of %s differ from those of the others, and must not",
                (long long)step, others);
}
