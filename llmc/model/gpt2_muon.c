/* Muon's part of an update. Momentum and weights are sharded over ranks as AdamW's are, in parts of a layer, but a matrix is
 * orthogonalised as a whole: so of as many blocks as there are ranks each rank is sent one, and sends back what it made
 * of it. A rank alone has all blocks where they are.
 *
 *   rank 0  | momentum of part 0 of blocks 0, 1 |   | block 0 | orthogonalise |   | part 0 of blocks 0, 1 | update
 *   rank 1  | momentum of part 1 of blocks 0, 1 | x | block 1 | orthogonalise | x | part 1 of blocks 0, 1 | update
 *
 * x: all-to-all. What passes is of the storage type. Blocks are taken as many at a time as the workspace holds. */
#include <math.h>
#include "gpt2_pass.h"
#include "llmc/base/integers.h"

enum { LEAST_ROUNDS = 4 }; /* blocks that a rank has at a time at least: enough to fill a card */

static bool has_muon(const GPT2 *model) {
    return model->options.optimizer == OPTIMIZER_MUON;
}

/* ---- the matrices of a block ---- */

enum { MAX_SETS = 2 }; /* of matrices of one shape, or transposed */

static void add_matrix(OrthogonaliseArgs sets[MAX_SETS], int *n_sets, int64_t offset, int rows, int cols) {
    const bool tall = rows > cols;
    const int least = tall ? cols : rows, most = tall ? rows : cols;
    OrthogonaliseArgs *set = sets;
    while (set < sets + *n_sets && (set->rows != least || set->cols != most)) set++;
    if (set == sets + *n_sets) {
        *set = (OrthogonaliseArgs){.rows = least, .cols = most};
        ++*n_sets;
    }
    set->offsets[set->n_matrices] = offset;
    set->transposed[set->n_matrices++] = tall;
}

/* Which matrices a block has, and where in it. q, k and v lie in one tensor, and are three: what is singular in one is not
 * in another. Returns how many sets. */
static int matrix_sets(const GPT2 *model, OrthogonaliseArgs sets[MAX_SETS]) {
    const int64_t begin = gpt2_layer_range(model->tensors, 0).begin;
    int n_sets = 0;
    for (int id = LN_1_W; id <= MLP_PROJ_B; id++) {
        const Tensor *t = &model->tensors[id];
        if (optimizer_of(OPTIMIZER_MUON, t->group) != OPTIMIZER_MUON) continue;
        const int n = id == C_ATTN_W ? 3 : 1, rows = (int)t->rows / n, cols = (int)t->cols;
        for (int i = 0; i < n; i++)
            add_matrix(sets, &n_sets, tensor_at(t, 0) - begin + (int64_t)i * rows * cols, rows, cols);
    }
    return n_sets;
}

/* ---- the workspace: parts of blocks, whole blocks, scratch ---- */

typedef struct Workspace {
    int rounds;          /* exchanges at a time, of n_parts blocks each */
    int64_t part, block; /* elements of a part of a block, of a block */
    floatX *parts;       /* (rounds, n_parts, part) this rank's of all blocks */
    floatX *whole;       /* (rounds, block) this rank's blocks; alone the same as parts */
    void *scratch;
    size_t scratch_bytes;
} Workspace;

static int64_t block_elements(const GPT2 *model) {
    return gpt2_layer_range(model->tensors, 0).n;
}

static size_t blocks_bytes(const GPT2 *model) {
    return (size_t)(model->n_parts > 1 ? 2 : 1) * (size_t)block_elements(model) *
           dtype_bytes(model->ops->dtype);
}

/* Of all matrices of one shape in a block at once. */
static size_t block_scratch_bytes(const GPT2 *model) {
    OrthogonaliseArgs sets[MAX_SETS];
    size_t most = 0;
    const int n = matrix_sets(model, sets);
    for (int i = 0; i < n; i++) {
        const size_t bytes = (size_t)sets[i].n_matrices *
                             orthogonalise_scratch_bytes(sets[i].rows, sets[i].cols, model->ops->dtype);
        if (bytes > most) most = bytes;
    }
    return most;
}

static int all_rounds(const GPT2 *model) {
    return (int)ceil_div(model->config.n_layer, model->n_parts);
}

size_t muon_workspace_bytes(const GPT2 *model) {
    const int all = all_rounds(model), rounds = all < LEAST_ROUNDS ? all : LEAST_ROUNDS;
    if (!has_muon(model)) return 0;
    return (size_t)rounds * (blocks_bytes(model) + block_scratch_bytes(model));
}

static Workspace workspace(const GPT2 *model) {
    const Activation *logits = &model->activations[ACT_LOGITS];
    const size_t bytes = activation_bytes(logits, &model->options), of_a_round = blocks_bytes(model);
    const size_t fit = bytes / (of_a_round + block_scratch_bytes(model));
    const int all = all_rounds(model);
    Workspace w = {.rounds = fit < (size_t)all ? (int)fit : all, .block = block_elements(model)};
    w.part = w.block / model->n_parts;
    w.parts = logits->data;
    w.whole = model->n_parts > 1 ? rows_from(model, w.parts, w.rounds, w.block) : w.parts;
    w.scratch = logits->data + (size_t)w.rounds * of_a_round;
    w.scratch_bytes = bytes - (size_t)w.rounds * of_a_round;
    return w;
}

/* ---- the exchange ---- */

/* Part r of `to` = part `rank` of what rank r has in `from`, in every round. */
static void exchange(GPT2 *model, const Workspace *w, floatX *to, floatX *from, int rounds) {
    if (model->n_parts == 1) return;
    side_waits(model, EVENT_PARTS_FINAL);
    for (int i = 0; i < rounds; i++)
        model->comm->all_to_all(model->comm, STREAM_SIDE, rows_from(model, to, i, w->block),
                                rows_from(model, from, i, w->block),
                                w->part * (int64_t)dtype_bytes(model->ops->dtype));
    main_waits(model, EVENT_PARTS_EXCHANGED);
}

/* ---- the update ---- */

static void orthogonalise_blocks(GPT2 *model, const Workspace *w, int n_blocks, const UpdateArgs *update) {
    OrthogonaliseArgs sets[MAX_SETS];
    const int n = matrix_sets(model, sets);
    for (OrthogonaliseArgs *args = sets; args < sets + n && n_blocks > 0; args++) {
        args->x = w->whole;
        args->n_blocks = n_blocks;
        args->stride = w->block;
        args->gain = 0.2f * sqrtf((float)args->cols);
        args->polynomial = &newton_schulz[update->polynomial];
        args->scratch = w->scratch;
        args->scratch_bytes = w->scratch_bytes;
        model->ops->orthogonalise(args);
    }
}

/* Of a block, which is number `i` of those in the workspace. */
static MuonArgs muon_args(const GPT2 *model, const Workspace *w, int layer, int i, const UpdateArgs *update) {
    const OwnSpan part = gpt2_own_part(model, layer);
    const AdamWGroup rates = optimizer_rates(GROUP_MATRICES, update);
    return (MuonArgs){
        .master = master_of(model, part),
        .weights = rows_from(model, model->weights, part.begin, 1),
        .m = state_of(model, MUON_M, layer),
        .x = rows_from(model, w->parts, i, w->part),
        .grads = model->grads + part.begin,
        .stats = model->stats,
        .tiles = model->block_tiles + model->n_block_tiles[OPTIMIZER_ADAMW],
        .n_tiles = model->n_block_tiles[OPTIMIZER_MUON],
        .lr = rates.lr,
        .weight_decay = rates.weight_decay,
        .momentum = update->momentum,
        .clip = update->clip,
    };
}

/* Blocks [first, end), as many as `rounds` exchanges move. */
static void update_blocks(GPT2 *model, const Workspace *w, int first, int end, const UpdateArgs *update) {
    const int n_ranks = model->n_parts, rounds = (int)ceil_div(end - first, n_ranks);
    for (int layer = first; layer < end; layer++) {
        const MuonArgs args = muon_args(model, w, layer, layer - first, update);
        if (args.n_tiles > 0) model->ops->muon_momentum(&args);
    }
    exchange(model, w, w->whole, w->parts, rounds);
    orthogonalise_blocks(model, w, (end - first - own_rank(model) + n_ranks - 1) / n_ranks, update);
    exchange(model, w, w->parts, w->whole, rounds);
    for (int layer = first; layer < end; layer++) {
        const MuonArgs args = muon_args(model, w, layer, layer - first, update);
        if (args.n_tiles > 0) model->ops->muon_update(&args);
        update_layer(model, layer, update);
    }
}

void update_blocks_with_muon(GPT2 *model, const UpdateArgs *update) {
    const Workspace w = workspace(model);
    const int L = model->config.n_layer, at_a_time = w.rounds * model->n_parts;
    for (int first = 0; first < L; first += at_a_time)
        update_blocks(model, &w, first, first + at_a_time < L ? first + at_a_time : L, update);
}
