/* The model: GPT-2 of any depth, width, heads and context, written once over ops.h.
 *
 * (Radford et al. 2019; pre-norm blocks, tied LM head, learned positions.) Three tables drive everything:
 * tensors, activations, and the config's fields. Sizes, offsets, initialisation, weight decay, the memory
 * plan, recomputation, checkpoints and tests all loop over them. */
#pragma once
#include "comm.h"
#include "gpt2_parameters.h"
#include "sum_tree.h"

struct GPT2Config {
    int max_seq_len;       /* rows of wpe */
    int vocab_size;        /* V: real entries */
    int padded_vocab_size; /* Vp: V rounded up to a multiple of VOCAB_PADDING; padding rows of wte stay 0 */
    int n_layer, n_head, n_embd;
    int window;     /* attention sees the last `window` positions, the query's own among them; 0: all */
    float dropout;  /* in training: attention's probabilities, each branch's output, the embedding; 0: none */
    bool documents; /* attention sees its own document only; positions go on from one to the next */
    int end_of_text;      /* where `documents`: the token that ends one */
    SparsePattern sparse; /* of attention's blocks; it joins with neither a window nor documents */
};

/* The names that a descriptor may be, i from 0; NULL behind the last. */
const char *gpt2_descriptor(int i);
/* "d12", "gpt3:c768", ...: fills layers, heads, channels; leaves max_seq_len and vocabulary as they are. */
bool gpt2_config_from_descriptor(GPT2Config *config, const char *descriptor, Error *err);
/* Ranges, divisibility, overflow; `what` names the source in the message ("--model d12", a file). */
bool gpt2_config_check(const GPT2Config *config, const char *what, Error *err);
int gpt2_pad_vocab(int vocab_size);

/* What backward computes again instead of keeping; each level also does what those before it do.
 * GELU: fch_gelu. LINEAR: all of a block but attention: two norms and three linear layers. BLOCK: all of it. */
/* Limits of a model and a micro-batch, which keep their products in 64 bits and what a row counts in 32. */
enum {
    MAX_LAYERS = 4096,
    MAX_HEADS = 4096,
    MAX_CHANNELS = 1 << 17,
    MAX_CONTEXT = 1 << 26,
    MAX_BATCH = 1 << 20
};

typedef enum { RECOMPUTE_NONE, RECOMPUTE_GELU, RECOMPUTE_LINEAR, RECOMPUTE_BLOCK } Recompute;
typedef enum { ATTENTION_FLASH, ATTENTION_STANDARD } AttentionKind;

/* Activations, as gpt2_activation() names them; (L) = one per layer. */
typedef enum {
    ACT_ENCODED, /* (B,T,C) */
    ACT_LN_1,    /* (L) (B,T,C) */
    ACT_LN_1_MEAN,
    ACT_LN_1_RSTD,  /* (L) (B,T) fp32 */
    ACT_QKV,        /* (L) (B,T,3C) */
    ACT_ATTN,       /* (L) (B,T,C): heads' output before c_proj */
    ACT_LSE,        /* (L) (B,NH,T) fp32, flash only */
    ACT_PROBS,      /* (L) (B,NH,T,T), standard only */
    ACT_RESIDUAL_2, /* (L) (B,T,C): after attention */
    ACT_LN_2,       /* (L) (B,T,C) */
    ACT_LN_2_MEAN,
    ACT_LN_2_RSTD,  /* (L) (B,T) fp32 */
    ACT_FCH,        /* (L) (B,T,4C): c_fc before GELU; backward leaves dqkv (B,T,3C) in it */
    ACT_FCH_GELU,   /* (L) (B,T,4C); backward leaves dfch in it */
    ACT_RESIDUAL_3, /* (L) (B,T,C): the block's output, for the next block */
    ACT_LN_F,       /* (B,T,C) */
    ACT_LN_F_MEAN,
    ACT_LN_F_RSTD, /* (B,T) fp32 */
    ACT_LOSSES,    /* (B,T) fp32 */
    ACT_BRANCH, /* scratch (B,T,C): a branch's output before it joins the residual; in backward its gradient */
    ACT_LOGITS,    /* scratch (loss_rows,Vp): logits, then their gradient */
    ACT_DRESIDUAL, /* scratch (B,T,C), backward */
    ACT_DPROBS,    /* scratch (B,NH,T,T), backward, standard only */
    N_ACTIVATIONS
} ActivationId;

typedef struct Activation {
    const char *name;
    int64_t elems;     /* of one instance, at (B,T) of the plan */
    int64_t instances; /* 1 or n_layer */
    int64_t stride; /* elements between instances, elems rounded up; 0 where one buffer serves every layer */
    DType dtype;
    const char *category; /* "activations", "recomputed", "scratch" */
    bool backward_only;   /* absent in a model opened for inference */
    char *data;           /* device memory, NULL before gpt2_open or where absent */
} Activation;

typedef struct GPT2Options {
    int B, T; /* largest micro-batch and context, all ranks' parts of it */
    Recompute recompute;
    AttentionKind attention;
    bool training; /* false: no gradients, moments or backward scratch */
    OptimizerKind optimizer;
    uint64_t dropout_seed;
    bool graph; /* micro-steps after the first of a shape are launched as one graph, where the device can */
    Comm *comm; /* of the ranks that train together; NULL: alone */
    /* N: the micro-batches of a step, a multiple of N, make N equal leaves, whose gradients are added in a fixed tree, so
     * that weights have the same bits at any number of ranks that divides N. 0: in the fastest order. */
    int reproducible;
    /* Of the ranks that share the context out among them, a group of comm's: rank r has part r of K of every sequence's
     * tokens; attention works on all tokens and part r of the heads. NULL: this rank has whole sequences. */
    Comm *context;
} GPT2Options;

/* A micro-step's forward and backward, captured once; the tokens are uploaded before each launch. */
typedef struct CapturedStep {
    int B, T;
    float weight;
    int64_t n_runs; /* micro-steps of these three so far */
    Graph *graph;   /* NULL before the second */
} CapturedStep;

/* Where in a step the model is: it writes that on the way, for a trace to read. */
typedef struct PassPlace {
    const char *phase; /* "begin", "data", "forward", "head", "recompute", "backward", "update" */
    int micro_step;    /* -1: outside of all */
    int layer;         /* -1: none */
} PassPlace;

typedef struct GPT2 {
    GPT2Config config;
    GPT2Options options;
    const Ops *ops;
    Comm *comm;
    OpShape shape;
    Tensor tensors[N_TENSORS];
    int64_t n_parameters; /* of the model, padding rows of wte counted */
    int64_t n_elements;   /* of a flat buffer: tensors are padded to whole tiles, layers to whole parts */
    int n_parts;          /* of a layer's parameters: as many as ranks that train, else 1 */
    Activation activations[N_ACTIVATIONS];
    floatX *weights;      /* (n_elements) storage type; in fp32 the same buffer as master */
    float *master;        /* (n_elements); in bf16 the own parts alone */
    float *grads;         /* (n_elements), training only */
    float *kept_sums;     /* (tree_size.kept, n_elements) fp32: of leaves that wait for their siblings */
    float *received_sums; /* (tree_size.left, elements of the largest layer): of the own part, by all ranks */
    float *states[N_STATES]; /* training only; gpt2_states.c says what of; NULL where no group has it */
    int32_t *tile_groups;    /* (n_elements / PARAMETER_TILE), training only: GroupId of each tile */
    int32_t *block_tiles;    /* with Muon: the tiles of this rank's part of a block, AdamW's, then Muon's */
    int64_t n_block_tiles[N_OPTIMIZERS];
    int32_t *tokens, *targets; /* (B,T) on the device, this rank's */
    int32_t *starts, *ends;    /* (B, whole T) of documents; NULL: sequences are not cut */
    double seen_pairs; /* with documents: of query and key, of this rank's sequences since gpt2_begin_step */
    int64_t seen_tokens;
    int32_t *sparse_tables; /* (n_layer, sparse_table_words) of sequences of sparse_T; NULL: no pattern */
    int sparse_T;           /* options.T at gpt2_open */
    void *scratch;          /* ops->scratch_bytes(shape) */
    StepSums *sums;         /* of the step at hand, on the device */
    StepStats *stats;       /* of the last step updated, on the device */
    uint64_t *dropout_key;  /* of the micro-step at hand, on the device; NULL where nothing is dropped */
    int64_t step; /* steps begun: with the seed it says what dropout draws, so a resumed run sets it */
    int64_t n_micro_steps;   /* of this step, done */
    int64_t last_micro_step; /* n_micro_steps in the last of this step: there gradients become final */
    bool first; /* gradients begin anew in this micro-step: those of linear layers are not zero */
    int64_t leaf_micro_steps;    /* of this rank, in one leaf */
    SumTree kept;                /* what kept_sums are */
    SumTreeSize tree_size;       /* 0 without leaves */
    bool is_attached;            /* gpt2_attach */
    CapturedStep captured[2][2]; /* [is a step's first][its last] */
    PassPlace at;
    /* Asked between the parts of a pass; once true, it must stay so: the rest is left out, and loss, gradients and
     * activations are void. Weights and moments stand. NULL: passes are whole. */
    bool (*stop)(void);
} GPT2;

static inline bool gpt2_stops(const GPT2 *model) {
    return model->stop && model->stop();
}

/* ---- memory plan ---- */
typedef struct MemoryRow {
    char name[48];
    const char *category; /* "weights", "optimizer", "gradients", "activations", "recomputed", "scratch" */
    size_t bytes;
} MemoryRow;

enum { MEMORY_MAX_ROWS = 64 };
typedef struct MemoryPlan {
    int n_rows;
    MemoryRow rows[MEMORY_MAX_ROWS];
    size_t total_bytes;
} MemoryPlan;

/* Exactly what gpt2_open would allocate, without allocating. */
void gpt2_memory_plan(MemoryPlan *plan, const Ops *ops, const GPT2Config *config, const GPT2Options *options);
/* Largest B whose plan fits in budget_bytes; 0 if none does. */
int gpt2_largest_batch(const Ops *ops, const GPT2Config *config, const GPT2Options *options,
                       size_t budget_bytes);

/* Whether n_ranks can share out a context of T tokens: they divide it and the heads. */
bool gpt2_check_context(const GPT2Config *config, int T, int n_ranks, Error *err);

/* ---- life ---- */
/* Allocates on the device; the device is open. On false, nothing stays allocated. Weights and states are 0. */
bool gpt2_open(GPT2 *model, const Ops *ops, const GPT2Config *config, const GPT2Options *options, Error *err);
/* Lets the ranks write into each other's memory where they can; all ranks together, once all are open. gpt2_close then
 * waits for the other ranks. */
void gpt2_attach(GPT2 *model);
void gpt2_close(GPT2 *model);
/* normal 0.02 for matrices and embeddings, 0.02/sqrt(2 n_layer) for the two c_proj, LayerNorm weight 1,
 * biases 0. A counter-based generator: the values depend on (seed, tensor, element) alone. */
void gpt2_init(GPT2 *model, uint64_t seed);
/* Host to device: elements [begin, begin + n) of a flat buffer (fp32, gpt2_tensors order), of which a rank keeps its
 * parts; the storage-type weights are whole on every rank. Between steps: gradients are lost. */
void gpt2_set_weights(GPT2 *model, const float *host, int64_t begin, int64_t n);
void gpt2_set_state(GPT2 *model, StateId id, const float *host, int64_t begin, int64_t n);
/* Elements of a state of this kind of optimizer, on the rank that has most; 0: nothing is of this kind. */
int64_t gpt2_state_elements(const GPT2 *model, OptimizerKind kind);

/* A layer's parameters (gpt2_layer_range) are n_parts equal parts of whole tiles. A rank sums the gradients of one part
 * over the ranks, updates it, and holds optimizer states of that part alone, in bf16 master weights as well. */
typedef struct OwnSpan {
    int64_t begin, n; /* elements of the flat buffers */
    int64_t at; /* where they begin in a buffer that has a rank's own alone, one layer's behind the other's */
} OwnSpan;
OwnSpan gpt2_own_part(const GPT2 *model, int layer);
static inline bool gpt2_master_is_sharded(const GPT2 *model) {
    return model->n_parts > 1 && model->ops->dtype != DTYPE_F32;
}
/* All parts of all ranks, (n_elements) on the device: on ranks, and of a state that not all parameters have, in the
 * gradients' buffer, until the next call. All ranks make the call, between steps. */
const float *gpt2_gather_master(GPT2 *model);
const float *gpt2_gather_state(GPT2 *model, StateId id);

/* ---- work ---- */
/* tokens, targets: host, (B,T), whole sequences; ranks that share the context out are all given the same. */
/* Validation: mean loss in nats over (B,T); touches no gradient, no statistics. Where ranks share the context out, this
 * rank's part of it: the mean is the sum of the parts. */
float gpt2_eval(GPT2 *model, const int32_t *tokens, const int32_t *targets, int B, int T);
/* The same without a wait: the device address of the losses (B,T), valid until the next pass. B may be larger than the
 * model was opened for, where B*T and T are not. */
const float *gpt2_losses(GPT2 *model, const int32_t *tokens, const int32_t *targets, int B, int T);
/* One optimizer step: begin, n_micro_steps micro-steps (gradients +=, each weighted by its part of all ranks' tokens),
 * update. In the last micro-step gradients are reduced over the ranks, layer by layer, as they become final.
 * weight: this micro-batch's tokens over those of the step, all ranks'; the loss's gradient is weight / (B*T) a token. */
void gpt2_begin_step(GPT2 *model, int64_t n_micro_steps);
void gpt2_micro_step(GPT2 *model, const int32_t *tokens, const int32_t *targets, int B, int T, float weight);
/* Between begin and update: the run is to end behind this step, on all ranks. */
void gpt2_request_stop(GPT2 *model);
/* The same for a checkpoint. */
void gpt2_request_save(GPT2 *model);
/* Between begin and update: the step's statistics will have the hash of the weights that it was computed with. Behind
 * the update a rank's weights are those that the others sent, whatever they were before. */
void gpt2_hash_weights(GPT2 *model);
/* Behind the micro-steps: the hash of the gradients that this rank updates weights with. Waits for the device. */
uint64_t gpt2_hash_gradients(GPT2 *model);
void gpt2_update(GPT2 *model, const UpdateArgs *args);
StepStats gpt2_step_stats(GPT2 *model); /* waits for the device */
/* The same without a wait inside the step: queue_stats behind gpt2_update, take_stats of that slot
 * (< READBACK_SLOTS) when the next step is on its way; it waits for its own step alone. */
void gpt2_queue_stats(GPT2 *model, int slot);
StepStats gpt2_take_stats(GPT2 *model, int slot);

/* Device address of an activation of a layer (0 where it has no layers), NULL where it is absent. */
floatX *gpt2_activation(const GPT2 *model, ActivationId id, int layer);
/* Device address of a weight tensor of a layer. */
floatX *gpt2_weight(const GPT2 *model, TensorId id, int layer);
/* The same of its gradient, fp32, of this rank's own tokens; behind the last micro-step of several ranks the own part alone is the
 * sum of all. */
float *gpt2_grad(const GPT2 *model, TensorId id, int layer);

/* Model FLOPs per token, of matrix products alone: 6 N + 12 L C K, N the weights of the linear layers and of the head
 * over the real vocabulary (no position embeddings, biases, norms), K the mean number of keys that a query sees: T/2
 * counted for all of them, W - W^2/2T for a window of W, what sparse_pairs counts for blocks. */
double gpt2_flops_per_token(const GPT2Config *config, int T);
/* The same of the step at hand, behind its micro-steps: with documents, by the pairs that this rank's sequences see. */
double gpt2_step_flops_per_token(const GPT2 *model, int T);
