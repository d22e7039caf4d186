/* A decoding step of one sequence as one kernel (token.cu, token_wide.cu), of more as three kernels for a layer (rows.cuh).
 *
 * While a graph is captured, the ops that decoding calls also put down what they were asked: a list of steps. Where the list
 * is all that was captured, and is of a form that these kernels know, they are launched in its place; else the launches are
 * as they were captured. Sums have another order in them: the last bits are not the same. Parts of sums of 2^19 and
 * more are NaN in the one of one sequence. */
#pragma once
#include "llmc/cuda/device/cuda_common.cuh"

typedef enum StepKind { STEP_EMBEDDING, STEP_NORM, STEP_LINEAR, STEP_ATTENTION, STEP_DRAW } StepKind;

/* A call of an op: what it reads, in `in`, and what it writes, in `out`; the others as the op names them. */
typedef struct Step {
    StepKind kind;
    DType dtype;
    int64_t rows;
    void *out, *residual;  /* residual: of a norm that adds two */
    const void *in, *with; /* with: what a norm adds */
    const void *weight, *bias;
    int OC, IC; /* of a norm IC is C */
    bool gelu;
    void *cache;
    const int32_t *tokens, *positions, *begins;
    int T, NH, HD, window;
    DrawArgs draw;
} Step;

template <typename T> Step step_of(StepKind kind, int64_t rows, void *out, const void *in) {
    Step step = {};
    step.kind = kind;
    step.dtype = sizeof(T) == sizeof(bf16) ? DTYPE_BF16 : DTYPE_F32;
    step.rows = rows;
    step.out = out;
    step.in = in;
    return step;
}

/* Puts down a step, while a graph is captured; else does nothing. */
void step_captured(const Step &step);

typedef struct DecodeStep DecodeStep;

void steps_begin(void);
/* NULL where the steps since steps_begin, out of n_launches in all, are of no form that there are kernels for. */
DecodeStep *steps_end(size_t n_launches);
/* Whether its launches are many: they pay as a graph. */
bool decode_step_is_graph(const DecodeStep *step);
void decode_step_launch(DecodeStep *step);
const char *decode_step_name(const DecodeStep *step);
void decode_step_free(DecodeStep *step); /* NULL is fine */
