/* The tree of a step's sums: see sum_tree.h. */
#include "sum_tree.h"

/* Nodes of a level. */
static int width(const SumTree *tree, int level) {
    return (int)((tree->n_leaves + (1LL << level) - 1) >> level);
}

/* A node without a sibling is its parent as well, up to the root. */
static SumNode passed_through(const SumTree *tree, SumNode node) {
    while (node.index % 2 == 0 && node.index + 1 == width(tree, node.level) && node.index > 0)
        node = (SumNode){node.level + 1, node.index / 2};
    return node;
}

void sum_tree_push(SumTree *tree, SumNode node) {
    tree->nodes[tree->n++] = passed_through(tree, node);
}

bool sum_tree_join(SumTree *tree) {
    if (tree->n < 2) return false;
    SumNode *left = &tree->nodes[tree->n - 2];
    const SumNode right = tree->nodes[tree->n - 1];
    if (right.index % 2 == 0 || left->level != right.level) return false;
    *left = passed_through(tree, (SumNode){right.level + 1, right.index / 2});
    tree->n--;
    return true;
}

static void add_leaf(SumTree *tree, SumNode leaf) {
    sum_tree_push(tree, leaf);
    while (sum_tree_join(tree)) continue;
}

SumTree sum_tree_of(int n_leaves, Ranks ranks) {
    SumTree tree = {.n_leaves = n_leaves};
    for (int i = 0; i < sum_tree_leaves(n_leaves, ranks); i++)
        add_leaf(&tree, sum_tree_leaf(n_leaves, ranks, i));
    return tree;
}

SumTreeSize sum_tree_size(int n_leaves, int n_ranks) {
    SumTreeSize size = {0, 0};
    for (Ranks r = {0, n_ranks}; r.rank < n_ranks; r.rank++) {
        SumTree tree = {.n_leaves = n_leaves};
        for (int i = 0; i < sum_tree_leaves(n_leaves, r); i++) {
            if (tree.n > size.kept) size.kept = tree.n;
            add_leaf(&tree, sum_tree_leaf(n_leaves, r, i));
        }
        if (tree.n > size.left) size.left = tree.n;
    }
    return size;
}
