#include "verify.h"
#include <stdio.h>
#include <stdlib.h>

bool verify_weights_due(Ranks ranks, int64_t step, bool first) {
    return ranks.n_ranks > 1 && (first || step % HASH_EVERY == 0);
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
static void name_others(const Rendezvous *r, const uint64_t *hashes, int n, uint64_t value, char *text,
                        size_t size) {
    char name[RANK_NAME_BYTES];
    int n_others = 0;
    for (int i = n - 1; i >= 0; i--) {
        if (hashes[i] == value) continue;
        rank_name(name, r, i);
        n_others++;
    }
    if (n_others == 1)
        snprintf(text, size, "%s", name);
    else
        snprintf(text, size, "%s and %d more", name, n_others - 1);
}

bool verify_weights(Comm *comm, const Rendezvous *r, uint64_t hash, int64_t step, Error *err) {
    const int n = comm->ranks.n_ranks;
    char others[RANK_NAME_BYTES + 32], first[RANK_NAME_BYTES], second[RANK_NAME_BYTES];
    int n_have;
    uint64_t *hashes = must_allocate((size_t)n * sizeof *hashes, "the hashes of all ranks");
    comm->gather_on_host(comm, hashes, &hash, sizeof hash);
    const uint64_t value = commonest(hashes, n, &n_have);
    if (n_have < n) name_others(r, hashes, n, value, others, sizeof others);
    free(hashes);
    if (n_have == n) return true;
    if (n == 2)
        return fail(err, EXIT_RUN, "step %lld: the weights of %s and %s differ, and must not",
                    (long long)step, rank_name(first, r, 0), rank_name(second, r, 1));
    if (2 * n_have <= n)
        return fail(err, EXIT_RUN, "step %lld: the weights of the ranks differ, and must not",
                    (long long)step);
    return fail(err, EXIT_RUN, "step %lld: the weights of %s differ from those of the others, and must not",
                (long long)step, others);
}
