/* The fixed order in which the leaves of a step are added, whoever holds them: a binary tree by leaf index.
 *
 * Floating-point sums depend on their order. Node (level, i) is node (level - 1, 2i) + node (level - 1, 2i + 1), rounded
 * once; where the second does not exist, it is the first as it is. The leaves are level 0; any number of them makes a
 * tree. A rank adds what of the tree lies within its own leaves; who gathers the rest of all ranks ends with the same
 * bits as one rank alone. Host arithmetic only: the caller adds.
 *
 *     sum_tree_push(&tree, leaf);
 *     while (sum_tree_join(&tree)) x[tree.n - 1] += x[tree.n];
 */
#pragma once
#include <stdbool.h>
#include "llmc/base/ranks.h"

typedef struct SumNode {
    int level, index;
} SumNode;

/* Neighbours from left to right, no two of them siblings. */
enum { SUM_TREE_MAX = 64 };
typedef struct SumTree {
    int n_leaves; /* of the whole tree, < 2^30 */
    int n;
    SumNode nodes[SUM_TREE_MAX];
} SumTree;

void sum_tree_push(SumTree *tree, SumNode node);
/* True where the last two nodes are siblings: they are one node now, and the caller adds the second to the first. */
bool sum_tree_join(SumTree *tree);

/* The leaves of a rank, neighbours: their number, and the first. n_ranks divides n_leaves. */
static inline int sum_tree_leaves(int n_leaves, Ranks ranks) {
    return n_leaves / ranks.n_ranks;
}
static inline SumNode sum_tree_leaf(int n_leaves, Ranks ranks, int i) {
    return (SumNode){0, ranks.rank * sum_tree_leaves(n_leaves, ranks) + i};
}
/* What a rank has behind all of its leaves. */
SumTree sum_tree_of(int n_leaves, Ranks ranks);
/* Of the rank that has most: nodes that it keeps while it works on another leaf, nodes that are left at its end. */
typedef struct SumTreeSize {
    int kept, left;
} SumTreeSize;
SumTreeSize sum_tree_size(int n_leaves, int n_ranks);
