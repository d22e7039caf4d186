/* The tree of a step's sums against its definition, summed recursively: every number of leaves up to 40, every number of
 * ranks that divides it. */
#include <math.h>
#include <string.h>
#include "llmc/model/sum_tree.h"
#include "dev/test/check.h"

enum { MOST_LEAVES = 40 };

/* Of many sizes and both signs, so that another order rounds to other bits. */
static float leaf_value(int i) {
    return ldexpf((float)((i * 2654435761u >> 7) % 65521) / 65521 - 0.4f, i * 7 % 11);
}

static float node_sum(int n_leaves, int level, int index) {
    if (level == 0) return leaf_value(index);
    const float left = node_sum(n_leaves, level - 1, 2 * index);
    const int right = 2 * index + 1;
    const bool exists = right << (level - 1) < n_leaves;
    return exists ? left + node_sum(n_leaves, level - 1, right) : left;
}

static float tree_sum(int n_leaves) {
    int level = 0;
    while (1 << level < n_leaves) level++;
    return node_sum(n_leaves, level, 0);
}

/* A tree and the sums of its nodes. */
typedef struct Sums {
    SumTree tree;
    float x[SUM_TREE_MAX];
} Sums;

static void put(Sums *s, SumNode node, float x) {
    sum_tree_push(&s->tree, node);
    s->x[s->tree.n - 1] = x;
    while (sum_tree_join(&s->tree)) s->x[s->tree.n - 1] += s->x[s->tree.n];
}

static Sums rank_sums(int n_leaves, Ranks ranks, int *kept) {
    Sums s = {.tree = {.n_leaves = n_leaves}};
    for (int i = 0; i < sum_tree_leaves(n_leaves, ranks); i++) {
        const SumNode leaf = sum_tree_leaf(n_leaves, ranks, i);
        *kept = s.tree.n > *kept ? s.tree.n : *kept;
        put(&s, leaf, leaf_value(leaf.index));
    }
    return s;
}

static bool same_nodes(const SumTree *a, const SumTree *b) {
    return a->n == b->n && !memcmp(a->nodes, b->nodes, (size_t)a->n * sizeof *a->nodes);
}

static void test_ranks(int n_leaves, int n_ranks) {
    Sums owner = {.tree = {.n_leaves = n_leaves}};
    int kept = 0, left = 0;
    for (Ranks r = {0, n_ranks}; r.rank < n_ranks; r.rank++) {
        const Sums mine = rank_sums(n_leaves, r, &kept);
        const SumTree said = sum_tree_of(n_leaves, r);
        CHECK(same_nodes(&said, &mine.tree), "%d leaves, rank %d of %d: the nodes that are left", n_leaves,
              r.rank, n_ranks);
        left = mine.tree.n > left ? mine.tree.n : left;
        for (int i = 0; i < mine.tree.n; i++) put(&owner, mine.tree.nodes[i], mine.x[i]);
    }
    const float want = tree_sum(n_leaves);
    const SumTreeSize size = sum_tree_size(n_leaves, n_ranks);
    CHECK(owner.tree.n == 1, "%d leaves of %d ranks: %d sums at the end", n_leaves, n_ranks, owner.tree.n);
    CHECK(memcmp(&owner.x[0], &want, sizeof want) == 0, "%d leaves of %d ranks: %a, expected %a", n_leaves,
          n_ranks, (double)owner.x[0], (double)want);
    CHECK(size.kept == kept && size.left == left,
          "%d leaves of %d ranks: %d kept and %d left, expected %d and %d", n_leaves, n_ranks, size.kept,
          size.left, kept, left);
}

/* What memory and transfers are planned by. */
static void test_sizes(void) {
    static const struct {
        int n_leaves, n_ranks, kept, left;
    } cases[] = {
        {1,  1, 0, 1},
        {8,  8, 0, 1},
        {8,  4, 1, 1},
        {8,  1, 3, 1},
        {12, 1, 3, 1},
        {12, 2, 3, 2},
        {12, 3, 2, 1},
        {12, 4, 2, 2},
        {12, 6, 1, 1},
        {64, 8, 3, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const SumTreeSize size = sum_tree_size(cases[i].n_leaves, cases[i].n_ranks);
        CHECK(size.kept == cases[i].kept && size.left == cases[i].left,
              "%d leaves of %d ranks: %d kept and %d left, expected %d and %d", cases[i].n_leaves,
              cases[i].n_ranks, size.kept, size.left, cases[i].kept, cases[i].left);
    }
}

/* The values would show another order: a plain sum from left to right has other bits. */
static void test_values(void) {
    float plain = 0;
    for (int i = 0; i < 24; i++) plain += leaf_value(i);
    CHECK(plain != tree_sum(24), "the order of these values makes no difference");
}

int main(void) {
    test_values();
    for (int n_leaves = 1; n_leaves <= MOST_LEAVES; n_leaves++)
        for (int n_ranks = 1; n_ranks <= n_leaves; n_ranks++)
            if (n_leaves % n_ranks == 0) test_ranks(n_leaves, n_ranks);
    test_sizes();
    return check_finish("sum tree");
}
