/* --reproducible N: a step's micro-batches are N leaves, equal parts one behind the other, and the gradients of the leaves
 * are added in a fixed tree (sum_tree.h). So the bits do not depend on how many ranks share them out.
 *
 * A leaf's gradients are what a step's are elsewhere. Behind a leaf they move to the sums that are kept for later
 * siblings; behind the last, layer by layer, all siblings that this rank has are added in the gradients' own buffer. What
 * is left then goes in parts to the ranks that own them, and these add all ranks' in the order of the tree. */
#include "gpt2_pass.h"

/* Where the sum of node i of the tree at hand lies, (n_elements). */
static float *kept_sum(const GPT2 *model, int i) {
    return model->kept_sums + i * model->n_elements;
}

static SumNode leaf_at_hand(const GPT2 *model) {
    return sum_tree_leaf(model->options.reproducible, model->comm->ranks,
                         (int)(model->n_micro_steps / model->leaf_micro_steps));
}

bool leaf_is_done(const GPT2 *model) {
    return model->options.reproducible && !is_last_micro_step(model) &&
           (model->n_micro_steps + 1) % model->leaf_micro_steps == 0;
}

void leaf_keep(GPT2 *model) {
    const Ops *ops = model->ops;
    SumTree *tree = &model->kept;
    const float *sum = model->grads;
    sum_tree_push(tree, leaf_at_hand(model));
    while (sum_tree_join(tree)) {
        float *left = kept_sum(model, tree->n - 1);
        ops->sum_gradients(left, left, sum, model->n_elements);
        sum = left;
    }
    if (sum == model->grads)
        ops->device->copy(kept_sum(model, tree->n - 1), sum, (size_t)model->n_elements * sizeof *sum);
}

void leaves_join(GPT2 *model, ParameterRange range) {
    SumTree tree = model->kept;
    float *sum = model->grads + range.begin;
    sum_tree_push(&tree, leaf_at_hand(model));
    while (sum_tree_join(&tree))
        model->ops->sum_gradients(sum, kept_sum(model, tree.n - 1) + range.begin, sum, range.n);
}

/* ---- over ranks ---- */

bool leaves_exchange(const GPT2 *model) {
    const Ranks ranks = model->comm->ranks;
    const bool in_two_halves = ranks.n_ranks == 2 && model->tree_size.left == 1; /* a + b is b + a */
    return model->options.reproducible && ranks.n_ranks > 1 && !in_two_halves;
}

/* What rank r of all has at its end. */
static SumTree tree_at_end(const GPT2 *model, int r) {
    return sum_tree_of(model->options.reproducible, (Ranks){r, model->comm->ranks.n_ranks});
}

/* Where rank r's node i of the own part lies. */
static float *received_sum(const GPT2 *model, int r, int i, int64_t part) {
    return model->received_sums + (i * model->comm->ranks.n_ranks + r) * part;
}

/* The last node's sum is in the gradients. A rank with fewer nodes than others sends anything in their place. */
void leaves_send(GPT2 *model, ParameterRange range) {
    Comm *comm = model->comm;
    const int64_t part = range.n / comm->ranks.n_ranks;
    const int n_nodes = tree_at_end(model, comm->ranks.rank).n;
    for (int i = 0; i < model->tree_size.left; i++) {
        const float *sum = i < n_nodes - 1 ? kept_sum(model, i) : model->grads;
        comm->all_to_all(comm, STREAM_SIDE, received_sum(model, 0, i, part), sum + range.begin,
                         part * (int64_t)sizeof *sum);
    }
}

void leaves_add_received(GPT2 *model, ParameterRange range) {
    const Ranks ranks = model->comm->ranks;
    const int64_t part = range.n / ranks.n_ranks;
    float *own = model->grads + range.begin + ranks.rank * part, *sums[SUM_TREE_MAX];
    SumTree tree = {.n_leaves = model->options.reproducible};
    for (int r = 0; r < ranks.n_ranks; r++) {
        const SumTree theirs = tree_at_end(model, r);
        for (int i = 0; i < theirs.n; i++) {
            const bool last = r == ranks.n_ranks - 1 && i == theirs.n - 1;
            sum_tree_push(&tree, theirs.nodes[i]);
            sums[tree.n - 1] = received_sum(model, r, i, part);
            while (sum_tree_join(&tree)) {
                float *left = sums[tree.n - 1], *right = sums[tree.n];
                model->ops->sum_gradients(last && tree.n == 1 ? own : left, left, right, part);
            }
        }
    }
}
