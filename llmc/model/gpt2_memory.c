/* What the model keeps in memory: the activation table, the plan printed from it, and the allocation that
 * follows it. */
#include "gpt2_pass.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "llmc/base/integers.h"

/* Whether every layer keeps its own activation, or one buffer serves all. */
typedef enum {
    KEPT,                              /* one per layer, or the only one */
    KEPT_UNLESS_GELU = RECOMPUTE_GELU, /* one per layer below that level of --recompute, then shared */
    KEPT_UNLESS_LINEAR = RECOMPUTE_LINEAR,
    KEPT_UNLESS_BLOCK = RECOMPUTE_BLOCK,
    SCRATCH, /* one buffer, no meaning between ops */
} Keep;

/* Bytes and elements that no device has: products beyond it stay at it, and sums of all rows fit 63 bits. */
static const int64_t TOO_MUCH = (int64_t)1 << 57;

static int64_t times(int64_t a, int64_t b) {
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) || product > TOO_MUCH ? TOO_MUCH : product;
}

static Activation row(const char *name, int64_t elems, int64_t layers, DType dtype, Keep keep,
                      bool backward_only, const GPT2Options *options) {
    const bool recomputed = keep != KEPT && (int)options->recompute >= (int)keep;
    const bool shared = keep == SCRATCH || !options->training || recomputed;
    const int64_t apart = round_up(elems, 128); /* every layer's instance starts at a multiple of 256 bytes */
    return (Activation){
        .name = name,
        .elems = elems,
        .instances = shared ? 1 : layers,
        .stride = shared || layers == 1 ? 0 : apart,
        .dtype = dtype,
        .category = keep == SCRATCH        ? "scratch"
                    : shared && layers > 1 ? "recomputed"
                                           : "activations",
        .backward_only = backward_only,
    };
}

/* Tokens per chunk of the LM head: logits of at most 1.65 GB (16,384 rows of GPT-2's vocabulary in bf16;
 * chunks of 8k cost 1 % and of 4k 3 % of the head's GEMMs on an H200). */
static int64_t loss_rows(int64_t N, int Vp, DType dtype) {
    int64_t limit = (int64_t)16384 * 50304 * 2 / ((int64_t)Vp * (int64_t)dtype_bytes(dtype));
    if (limit < 128) limit = 128;
    return N < limit ? N : limit;
}

static OpShape op_shape(const Ops *ops, const GPT2Config *config, const GPT2Options *options) {
    const int n_ranks = context_ranks(options).n_ranks;
    const int T = (int)ceil_div(options->T, n_ranks); /* this rank's */
    return (OpShape){
        .B = options->B,
        .T = T,
        .C = config->n_embd,
        .NH = config->n_head,
        .V = config->vocab_size,
        .Vp = config->padded_vocab_size,
        .loss_rows = loss_rows((int64_t)options->B * T, config->padded_vocab_size, ops->dtype),
        .sparse = config->sparse,
    };
}

/* Attention's rows and heads are not those of the other ops where ranks share the context out. */
static size_t scratch_bytes(const Ops *ops, const OpShape *shape, const GPT2Options *options) {
    const int n_ranks = context_ranks(options).n_ranks;
    OpShape attention = *shape;
    attention.T = options->T;
    attention.NH = shape->NH / n_ranks;
    attention.C = shape->C / n_ranks;
    const size_t a = ops->scratch_bytes(shape), b = ops->scratch_bytes(&attention);
    return a > b ? a : b;
}

/* To add an activation: a row here, a name in ActivationId. An activation with 0 elements is absent. */
void activation_table(Activation table[N_ACTIVATIONS], const Ops *ops, const OpShape *shape, int L,
                      const GPT2Options *o) {
    const int64_t N = (int64_t)shape->B * shape->T, NC = N * shape->C, NHT = N * shape->NH;
    const bool flash = o->attention == ATTENTION_FLASH;
    const int64_t TT = flash ? 0 : times(NHT, o->T);
    const DType X = ops->dtype, F = DTYPE_F32;
    const Activation rows[N_ACTIVATIONS] = {
        [ACT_ENCODED] = row("encoded", NC, 1, X, KEPT, false, o),
        [ACT_LN_1] = row("ln_1", NC, L, X, KEPT_UNLESS_LINEAR, false, o),
        [ACT_LN_1_MEAN] = row("ln_1.mean", N, L, F, KEPT_UNLESS_LINEAR, false, o),
        [ACT_LN_1_RSTD] = row("ln_1.rstd", N, L, F, KEPT_UNLESS_LINEAR, false, o),
        [ACT_QKV] = row("qkv", 3 * NC, L, X, KEPT_UNLESS_LINEAR, false, o),
        [ACT_ATTN] = row("attn", NC, L, X, KEPT_UNLESS_BLOCK, false, o),
        [ACT_LSE] = row("lse", flash ? NHT : 0, L, F, KEPT_UNLESS_BLOCK, false, o),
        [ACT_PROBS] = row("probs", TT, L, X, KEPT_UNLESS_BLOCK, false, o),
        [ACT_RESIDUAL_2] = row("residual_2", NC, L, X, KEPT_UNLESS_LINEAR, false, o),
        [ACT_LN_2] = row("ln_2", NC, L, X, KEPT_UNLESS_LINEAR, false, o),
        [ACT_LN_2_MEAN] = row("ln_2.mean", N, L, F, KEPT_UNLESS_LINEAR, false, o),
        [ACT_LN_2_RSTD] = row("ln_2.rstd", N, L, F, KEPT_UNLESS_LINEAR, false, o),
        [ACT_FCH] = row("fch", 4 * NC, L, X, KEPT_UNLESS_LINEAR, false, o),
        [ACT_FCH_GELU] = row("fch_gelu", 4 * NC, L, X, KEPT_UNLESS_GELU, false, o),
        [ACT_RESIDUAL_3] = row("residual_3", NC, L, X, KEPT, false, o),
        [ACT_LN_F] = row("ln_f", NC, 1, X, KEPT, false, o),
        [ACT_LN_F_MEAN] = row("ln_f.mean", N, 1, F, KEPT, false, o),
        [ACT_LN_F_RSTD] = row("ln_f.rstd", N, 1, F, KEPT, false, o),
        [ACT_LOSSES] = row("losses", N, 1, F, KEPT, false, o),
        [ACT_BRANCH] = row("branch", NC, 1, X, SCRATCH, false, o),
        [ACT_LOGITS] = row("logits", shape->loss_rows * shape->Vp, 1, X, SCRATCH, false, o),
        [ACT_DRESIDUAL] = row("dresidual", NC, 1, X, SCRATCH, true, o),
        [ACT_DPROBS] = row("dprobs", TT, 1, X, SCRATCH, true, o),
    };
    memcpy(table, rows, sizeof rows);
}

size_t activation_bytes(const Activation *a, const GPT2Options *options) {
    if (a->backward_only && !options->training) return 0;
    const int64_t elems = times(a->stride, a->instances - 1) + a->elems;
    return (size_t)times(elems, (int64_t)dtype_bytes(a->dtype));
}

/* ---- the plan ---- */

static void add_row(MemoryPlan *plan, MemoryRow row) {
    if (row.bytes == 0) return;
    plan->rows[plan->n_rows++] = row;
    plan->total_bytes += row.bytes;
}

/* Of a buffer that has one of n_parts parts: the name says so. */
static MemoryRow row_of(const char *name, int n_parts, const char *category, size_t bytes) {
    MemoryRow row = {.category = category, .bytes = bytes};
    snprintf(row.name, sizeof row.name, n_parts > 1 ? "%s (1/%d)" : "%s", name, n_parts);
    return row;
}

/* One buffer that is not an activation, and where its pointer goes. */
typedef struct Buffer {
    void **data;
    MemoryRow row;
} Buffer;

enum { FIRST_STATE = 5, AFTER_STATES = FIRST_STATE + N_STATES, N_BUFFERS = AFTER_STATES + 11 };

static Buffer state_buffer(GPT2 *model, StateId id) {
    const OptimizerState *state = &optimizer_states[id];
    const int64_t n = model->options.training ? gpt2_state_elements(model, state->kind) : 0;
    return (Buffer){(void **)&model->states[id],
                    row_of(state->title, model->n_parts, "optimizer", (size_t)n * sizeof(float))};
}

/* Of one layer what --reproducible exchanges: all nodes of all ranks, of the own part. */
static size_t received_bytes(const GPT2 *model) {
    int64_t largest = 0;
    for (int layer = -1; layer <= model->config.n_layer; layer++) {
        const int64_t n = gpt2_layer_range(model->tensors, layer).n;
        if (n > largest) largest = n;
    }
    return leaves_exchange(model) ? (size_t)model->tree_size.left * (size_t)largest * 4 : 0;
}

/* Of this rank's part, by kind of optimizer; there is one kind without Muon. */
static size_t block_tiles_bytes(const GPT2 *model) {
    const bool listed = model->options.training && model->options.optimizer == OPTIMIZER_MUON;
    return listed ? (size_t)gpt2_own_part(model, 0).n / PARAMETER_TILE * sizeof(int32_t) : 0;
}

/* Of all layers. */
static size_t sparse_bytes(const GPT2 *model) {
    return (size_t)model->config.n_layer * sparse_words(model) * sizeof(int32_t);
}

/* Sizes come from model->config, options, ops, shape and n_elements; the pointers are only written by gpt2_open. */
static void buffer_table(Buffer table[N_BUFFERS], GPT2 *model) {
    const size_t n = (size_t)model->n_elements, X = dtype_bytes(model->ops->dtype);
    const size_t N = (size_t)model->shape.B * (size_t)model->shape.T;
    const bool training = model->options.training, own_master = model->ops->dtype != DTYPE_F32;
    const bool drops = training && model->config.dropout > 0;
    const size_t bounds =
        model->config.documents ? (size_t)model->options.B * (size_t)model->options.T * 4 : 0;
    const int master_parts = gpt2_master_is_sharded(model) ? model->n_parts : 1;

    /* clang-format off */
    const Buffer rows[N_BUFFERS] = {
        {(void **)&model->master, row_of("master weights (fp32)", master_parts, "weights", n / (size_t)master_parts * 4)},
        {&model->weights,         {"weights (bf16)",        "weights",   own_master ? n * X : 0}},
        {(void **)&model->grads,  {"gradients (fp32)",      "gradients", training ? n * 4 : 0}},
        {(void **)&model->kept_sums, {"kept sums (fp32)", "gradients", (size_t)model->tree_size.kept * n * 4}},
        {(void **)&model->received_sums, {"received sums (fp32)", "gradients", received_bytes(model)}},
        [AFTER_STATES] =
        {(void **)&model->tile_groups, {"parameter groups", "optimizer", training ? n / PARAMETER_TILE * 4 : 0}},
        {(void **)&model->block_tiles, {"tiles of a block", "optimizer", block_tiles_bytes(model)}},
        {(void **)&model->tokens,      {"tokens",           "scratch",   N * 4}},
        {(void **)&model->targets,     {"targets",          "scratch",   N * 4}},
        {(void **)&model->starts,      {"starts of documents", "scratch", bounds}},
        {(void **)&model->ends,        {"ends of documents", "scratch",  bounds}},
        {(void **)&model->sparse_tables, {"seen blocks", "scratch",      sparse_bytes(model)}},
        {&model->scratch,              {"op scratch",       "scratch",   scratch_bytes(model->ops, &model->shape, &model->options)}},
        {(void **)&model->sums,        {"step sums",        "scratch",   sizeof(StepSums)}},
        {(void **)&model->stats,       {"step statistics",  "scratch",   sizeof(StepStats)}},
        {(void **)&model->dropout_key, {"dropout key",      "scratch",   drops ? sizeof(uint64_t) : 0}},
    };
    /* clang-format on */
    memcpy(table, rows, sizeof rows);
    for (int i = 0; i < N_STATES; i++) table[FIRST_STATE + i] = state_buffer(model, (StateId)i);
}

static void model_shape(GPT2 *model, const Ops *ops, const GPT2Config *config, const GPT2Options *options) {
    *model = (GPT2){.config = *config, .options = *options, .ops = ops};
    model->comm = options->comm ? options->comm : &comm_alone;
    model->sparse_T = options->T;
    model->n_parts = options->training ? model->comm->ranks.n_ranks : 1;
    model->n_parameters = gpt2_tensors(model->tensors, config, model->n_parts);
    model->n_elements = gpt2_n_elements(model->tensors);
    if (options->training && options->reproducible)
        model->tree_size = sum_tree_size(options->reproducible, model->comm->ranks.n_ranks);
    model->shape = op_shape(ops, config, options);
    activation_table(model->activations, ops, &model->shape, config->n_layer, options);
    const int64_t update = (int64_t)(muon_workspace_bytes(model) / dtype_bytes(ops->dtype));
    Activation *logits = &model->activations[ACT_LOGITS];
    if (options->training && logits->elems < update) logits->elems = update;
}

void gpt2_memory_plan(MemoryPlan *plan, const Ops *ops, const GPT2Config *config,
                      const GPT2Options *options) {
    GPT2 model;
    Buffer buffers[N_BUFFERS];
    model_shape(&model, ops, config, options);
    buffer_table(buffers, &model);
    memset(plan, 0, sizeof *plan);
    for (int i = 0; i < N_BUFFERS; i++) add_row(plan, buffers[i].row);
    for (int i = 0; i < N_ACTIVATIONS; i++) {
        const Activation *a = &model.activations[i];
        add_row(plan, row_of(a->name, 1, a->category, activation_bytes(a, options)));
    }
    const size_t attached =
        model.n_parts > 1 ? model.comm->attached_bytes(model.comm, attached_gradients(&model)) : 0;
    const size_t heads = options->context ? options->context->fixed_bytes : 0;
    add_row(plan, (MemoryRow){"library workspace", "scratch", ops->device->fixed_bytes()});
    add_row(plan, (MemoryRow){"exchange with other ranks", "scratch", model.comm->fixed_bytes});
    add_row(plan, (MemoryRow){"gradients of other ranks", "gradients", attached});
    add_row(plan, (MemoryRow){"exchange of heads", "scratch", heads});
}

int gpt2_largest_batch(const Ops *ops, const GPT2Config *config, const GPT2Options *options,
                       size_t budget_bytes) {
    const int most = INT32_MAX / options->T; /* settings.c: tokens of a micro-batch */
    /* low fits (0: nothing does), high does not */
    int low = 0, high = most < MAX_BATCH ? most + 1 : MAX_BATCH;
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        GPT2Options trial = *options;
        trial.B = middle;
        MemoryPlan plan;
        gpt2_memory_plan(&plan, ops, config, &trial);
        if (plan.total_bytes <= budget_bytes)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* ---- the allocation ---- */

static bool allocate(void **data, const Ops *ops, const char *name, size_t bytes, size_t total_bytes,
                     Error *err) {
    *data = NULL;
    if (bytes == 0) return true;
    *data = ops->device->alloc(bytes);
    if (*data) return true;
    size_t free_bytes, device_bytes;
    ops->device->memory_info(&free_bytes, &device_bytes);
    return fail(err, EXIT_RUN,
                "out of memory: '%s' asks %.2f GiB, %.2f GiB are free of %.2f GiB; the whole plan is %.2f "
                "GiB; hint: %sa smaller --batch or --seq; --memory prints the plan",
                name, (double)bytes / 1073741824.0, (double)free_bytes / 1073741824.0,
                (double)device_bytes / 1073741824.0, (double)total_bytes / 1073741824.0,
                total_bytes < free_bytes ? "a limit of the process (ulimit -a), or " : "");
}

static void upload_tile_groups(GPT2 *model) {
    const size_t bytes = (size_t)model->n_elements / PARAMETER_TILE * sizeof(int32_t);
    int32_t *groups = must_allocate(bytes, "the groups of parameters");
    gpt2_tile_groups(groups, model->tensors);
    model->ops->device->upload(model->tile_groups, groups, bytes);
    free(groups);
}

static bool check_sparse(const GPT2Config *config, int T, Error *err) {
    const int64_t visits = sparse_most_visits(config->sparse, T);
    return config->sparse.window == 0 || visits <= INT32_MAX ||
           fail(err, EXIT_INPUT,
                "--sparse in --seq %d: blocks of keys are visited %lld times, expected %d at most; hint: a "
                "smaller window, or fewer blocks at random",
                T, (long long)visits, INT32_MAX);
}

static void upload_sparse_tables(GPT2 *model) {
    const GPT2Config *c = &model->config;
    const size_t bytes = sparse_bytes(model);
    int32_t *tables = must_allocate(bytes, "the seen blocks");
    memset(tables, 0, bytes); /* a layer may need fewer */
    for (int l = 0; l < c->n_layer; l++)
        sparse_table(tables + (size_t)l * sparse_words(model), c->sparse, model->sparse_T, c->max_seq_len, l);
    model->ops->device->upload(model->sparse_tables, tables, bytes);
    free(tables);
}

bool gpt2_open(GPT2 *model, const Ops *ops, const GPT2Config *config, const GPT2Options *options,
               Error *err) {
    Buffer buffers[N_BUFFERS];
    MemoryPlan plan;
    if (!gpt2_check_context(config, options->T, context_ranks(options).n_ranks, err) ||
        !check_sparse(config, options->T, err))
        return false;
    model_shape(model, ops, config, options);
    buffer_table(buffers, model);
    gpt2_memory_plan(&plan, ops, config, options);
    bool ok = true;
    for (int i = 0; ok && i < N_BUFFERS; i++)
        ok = allocate(buffers[i].data, ops, buffers[i].row.name, buffers[i].row.bytes, plan.total_bytes, err);
    for (int i = 0; ok && i < N_ACTIVATIONS; i++) {
        Activation *a = &model->activations[i];
        ok = allocate((void **)&a->data, ops, a->name, activation_bytes(a, options), plan.total_bytes, err);
    }
    if (!ok) {
        gpt2_close(model);
        return false;
    }
    for (int i = 0; i < N_BUFFERS; i++) /* what lies between tensors stays 0 */
        if (*buffers[i].data) ops->device->zero(*buffers[i].data, buffers[i].row.bytes);
    if (options->training) upload_tile_groups(model);
    if (model->sparse_tables) upload_sparse_tables(model);
    if (model->block_tiles) open_block_tiles(model);
    if (ops->dtype == DTYPE_F32) model->weights = model->master;
    return true;
}

void gpt2_close(GPT2 *model) {
    const Ops *ops = model->ops;
    if (model->weights == model->master) model->weights = NULL;
    for (int i = 0; i < 4; i++) ops->device->graph_free(model->captured[i / 2][i % 2].graph);
    if (model->is_attached) model->comm->detach(model->comm);
    Buffer buffers[N_BUFFERS];
    buffer_table(buffers, model);
    for (int i = 0; i < N_BUFFERS; i++) ops->device->free(*buffers[i].data);
    for (int i = 0; i < N_ACTIVATIONS; i++) ops->device->free(model->activations[i].data);
    *model = (GPT2){.ops = ops};
}
