/* Which of the processes that train one model together this one is. */
#pragma once
#include <stdbool.h>

typedef struct Ranks {
    int rank, n_ranks; /* rank < n_ranks; 0 of 1 for a process alone */
} Ranks;

/* Rank 0 prints, samples, logs, locks and saves for all. */
static inline bool ranks_leads(Ranks ranks) {
    return ranks.rank == 0;
}
