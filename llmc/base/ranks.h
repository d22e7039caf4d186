/* Which of the processes that train one model together this one is. */
#pragma once
#include <stdbool.h>

typedef struct Ranks {
    int rank, n_ranks; /* rank < n_ranks; 0 of 1 for a process alone */
} Ranks;

/* Groups of `size` neighbours share each sequence's tokens out. Of such a group its place among the groups, each of which
 * has data of its own; */
static inline Ranks ranks_of_data(Ranks ranks, int size) {
    return (Ranks){ranks.rank / size, ranks.n_ranks / size};
}
/* and the rank's place in its group. */
static inline Ranks ranks_of_context(Ranks ranks, int size) {
    return (Ranks){ranks.rank % size, size};
}

/* Rank 0 prints, samples, logs, locks and saves for all. */
static inline bool ranks_leads(Ranks ranks) {
    return ranks.rank == 0;
}
