/* Every op that ships, described once: operands with roles, inputs, how to run it, what it must give. Read by the tests
 * (dev/test/ops) and by the lab (dev/driver); FLOP and bytes are in llmc/model/op_cost.h.
 *
 *   ops.c    the descriptions, in the order of llmc/model/ops.h
 *   case.c   inputs, the expected results, and a call between guard bands
 *
 * To add an op: llmc/model/ADD_AN_OP.md. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "llmc/model/op_cost.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { MAX_OPERANDS = 12, MAX_PARTS = 3 };

typedef enum Role { IN, OUT, ADD, SPACE } Role; /* ADD: read, then written; SPACE: scratch, not compared */
typedef enum Store { STORE_X, STORE_F32, STORE_I32 } Store; /* STORE_X: the storage type */

/* Kinds of input; forms of a call. */
typedef enum FillKind {
    FILL_NORMAL, /* normal values; tokens: any */
    FILL_EQUAL,
    FILL_GROWING,
    FILL_HUGE,
    FILL_DISTINCT,
    FILL_FALLING,
    FILL_PEAKS,
    FILL_STEP,
    FILL_TEXT /* tokens as in text, heavy-tailed: the first takes about a sixth */
} FillKind;
enum {
    NO_BIAS = 1,
    GELU = 2,
    ALIAS_A = 4, /* the output is also an input, or another one; the op's describe_ says which */
    ALIAS_B = 8,
    NO_RESIDUAL = 16,
    NO_SUMS = 32,
    FIRST = 64,          /* OVERWRITE */
    GELU_TOO = 128,      /* linear_backward_input gives gelu as well */
    GELU_IN_PLACE = 256, /* in the place of pre_gelu */
    BEGINS = 512,        /* sequences begin at positions of their own */
};

/* Sizes of a call; an op reads those it knows, the others stay 0. */
typedef struct Sizes {
    int B, T, Tk; /* sequences, queries of each, keys of each */
    int NH, HD;   /* heads, head size of q and k */
    int DV;       /* head size of v */
    bool causal;  /* query i sees the keys j <= i + Tk - T */
    bool sparse;  /* dev/attention/attention.h: blocks of 64 x 64, near the diagonal, global, or random */
    bool dropout; /* dev/attention/attention.h: a tenth of P is 0, the rest grows by as much */
    int window;   /* causal: a query sees its last `window` positions, itself among them; 0: all */
    int64_t N;    /* rows, or elements */
    int C, OC, IC, V, Vp;
    bool adversarial; /* the lab's checks: the other kinds of input are tried at these sizes too */
    const char *what; /* a name for the sizes, "qkv"; NULL: none */
    int flags;        /* NO_BIAS, ... */
    FillKind fill;
    float scale;          /* standard deviation of the main input; 0 means 1 */
    float p;              /* of dropout */
    int documents;        /* their mean length in the sequences of attention; 0: a sequence is one */
    SparsePattern blocks; /* of causal attention, the trainer's --sparse; window 0: none */
} Sizes;

/* A slice of an operand that is compared on its own: `outer` times `width` elements, `stride` apart. */
typedef struct Part {
    const char *name;
    int64_t offset, outer, stride, width;
    int row; /* elements of one row, whose error counts by itself */
} Part;

typedef struct Operand {
    const char *name;
    Role role;
    Store store;
    int64_t elems;       /* 0: the op gets NULL; of SPACE -1: what Ops.scratch_bytes gives */
    float scale, offset; /* inputs are offset + scale * normal; STORE_I32: tokens below offset, if not 0 */
    double limit;        /* error allowed of a STORE_F32 result in bf16; 0: fp32 sums in another order */
    int64_t part; /* in the tests, elements of a part of (.., 3, part): q, k, v one by one; 0: all at once */
    int row;      /* of a result, in the lab: elements of one row; 0: all of it */
    double row_limit; /* in the lab, of a result: beside twice a plain computation's error; 0: 1e-4 */
    int n_parts;      /* 0: compared whole */
    Part parts[MAX_PARTS];
} Operand;

/* One call: operands in the order of Op.describe. */
typedef struct Call {
    const Ops *ops; /* of the device and storage type */
    Sizes s;
    void *p[MAX_OPERANDS];
} Call;

/* At which sizes the lab checks and times an op (dev/driver/lab_ops.c). */
typedef enum LabShape {
    BY_ROWS, /* N = B*T rows of C: the activations of a block */
    LINEAR_FORWARD,
    LINEAR_BACKWARD,
    LINEAR_PROJ,
    LINEAR_WEIGHT,
    CACHE,      /* of T positions */
    LOGITS,     /* N rows of Vp */
    PARAMETERS, /* N of them */
    MATRICES    /* of the blocks: N blocks of those of one shape, OC x IC */
} LabShape;

struct OpCase;
typedef struct Op {
    const char *name;
    OpId id; /* of its cost; N_OPS: none */
    int (*describe)(Operand *operands,
                    const Sizes *s); /* fills operands, in the order of the call; their number */
    void (*run)(const Call *call);
    /* The rest may be NULL. */
    void (*prepare)(struct OpCase *c);                   /* inputs that are not plain normal: in[] */
    void (*reference)(void **p, const struct OpCase *c); /* where it is not run() on ops_cpu */
    void (*plain)(struct OpCase *c); /* a plain bf16 computation of the outputs: plain[], slack[] */
    LabShape shape;
    const char *teaches; /* of the lab's rows cpu, cuda, cuda_fp32: what shipped kernels show; NULL: none */
} Op;

/* op_layernorm_forward and so on: ops.c. */
#define DESCRIPTION(Type, name) extern const Op op_##name;
EACH_OP(DESCRIPTION)
#undef DESCRIPTION
extern const Op *const described_ops[]; /* ends with NULL */

/* What adamw gets: its operands, and the settings of one step. */
AdamWArgs op_adamw_args(const Call *call);
/* And orthogonalise. */
OrthogonaliseArgs op_orthogonalise_args(const Call *call);
/* FLOP and bytes of a call. */
OpCost op_case_cost(const Op *op, const Sizes *s, DType dtype);

/* ---- case.c ---- */

/* One op at one size in one storage type: inputs, and what it must give. */
typedef struct OpCase {
    const Op *op;
    Sizes s;
    DType dtype;
    int n;
    Operand operands[MAX_OPERANDS];
    float *in[MAX_OPERANDS];   /* initial contents, as stored; NULL of OUT and SPACE */
    float *want[MAX_OPERANDS]; /* by op_case_oracle: contents afterwards, in fp32; NULL of SPACE */
    /* By op_case_plain, of STORE_X outputs in bf16: */
    float *plain[MAX_OPERANDS];
    float *slack[MAX_OPERANDS]; /* what intermediate roundings may add up to, 0 at first */
    double approximate;         /* more noise, where a library approximates a function */
    const Ops *ops;             /* what is held against it */
    char label[128];
    bool unaligned; /* the library's kernels for operands at any address are asked for */
} OpCase;

/* Operands and inputs of c->op at c->s in c->dtype. */
void op_case_build(OpCase *c);
void op_case_oracle(OpCase *c);
/* plain[] = want[] rounded and slack[] = 0, then Op.plain's own; nothing in fp32. */
void op_case_plain(OpCase *c);
void op_case_free(OpCase *c);

/* n values as they lie in memory, and back */
void op_encode(void *bytes, const float *values, Store store, DType dtype, int64_t n);
void op_decode(float *values, const void *bytes, Store store, DType dtype, int64_t n);
void op_round(float *values, DType dtype, int64_t n);
/* Value i of operand k: normal, or a token. */
float op_value(const Operand *o, int k, int64_t i);
size_t operand_bytes(const Operand *o, DType dtype); /* 0 where elems is -1 */
size_t op_scratch_bytes(const Ops *ops, const Sizes *s);

#ifdef __cplusplus
}
#endif
