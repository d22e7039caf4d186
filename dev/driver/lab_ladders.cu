/* The rows of the ladders of the ops other than attention. The shipped kernel of each op: dev/ops/ops.c.
 *
 * To add a rung: write dev/OP/NAME.cu with `extern "C" void NAME(const Call *call)` (operands: dev/OP/ladder.h),
 * declare it there, add a row. */
#include "dev/adamw/ladder.h"
#include "dev/embedding/ladder.h"
#include "dev/gelu/ladder.h"
#include "dev/grad_norm/ladder.h"
#include "dev/layernorm/ladder.h"
#include "dev/matmul/ladder.h"
#include "dev/newton_schulz/ladder.h"
#include "dev/softmax_loss/ladder.h"
#include "llmc/cuda/cuda_ops.cuh"

template <typename X> static void shipped_gelu_backward(const Call *c) {
    gelu_backward_sums<X>((X *)c->p[0], NULL, NULL, (const X *)c->p[1], c->p[2], c->s.N, c->s.C);
}

/* clang-format off */
static const Variant rows[] = {
    LADDER("linear_forward", "naive", matmul_naive, "one thread an output: two loads a multiply-add",
           .bytes = matmul_naive_bytes),
    LADDER("linear_forward", "tiled", matmul_tiled,
           "tiles in shared memory: what is fetched is used 32 times", .bytes = matmul_tiled_bytes),
    LADDER("linear_forward", "registers", matmul_registers, "8 x 8 outputs a thread, 16-byte accesses",
           .bytes = matmul_registers_bytes),
    {.op = "linear_forward", .name = "mma", .run = matmul_mma, .needs = NEEDS_GPU, .dtype = DTYPE_BF16, .bytes = matmul_mma_bytes,
     .teaches = "tensor cores of sm_80: mma.sync, ldmatrix, cp.async"},
    {.op = "linear_forward", .name = "wgmma", .run = matmul_wgmma, .needs = NEEDS_HOPPER, .dtype = DTYPE_BF16, .bytes = matmul_wgmma_bytes,
     .teaches = "Hopper: TMA fetches, wgmma multiplies, in different warps"},
    {.op = "linear_forward", .name = "cublaslt", .run = matmul_cublaslt, .needs = NEEDS_GPU, .dtype = DTYPE_BF16,
     .teaches = "the library alone, bias and GELU in its epilogue"},

    LADDER("layernorm_forward", "row_a_thread", norm_row_a_thread, "neighbouring threads read far apart"),
    LADDER("layernorm_forward", "row_a_warp", norm_row_a_warp, "coalesced, sums by shuffles"),
    LADDER("layernorm_forward", "vectorised", norm_vectorised, "16 bytes a lane"),
    LADDER("layernorm_forward", "registers", norm_registers, "and read once: the row stays in registers"),

    LADDER("layernorm_backward", "atomics", norm_backward_atomics, "sums over columns by atomic additions",
           .flags = NOT_BITWISE),
    LADDER("layernorm_backward", "columns", norm_backward_columns,
           "a thread a column: deterministic, and empty", .scratch_bytes = norm_backward_columns_scratch,
           .bytes = norm_backward_columns_bytes),
    LADDER("layernorm_backward", "partials", norm_backward_partials,
           "each block its own sums, added in order", .scratch_bytes = norm_backward_partials_scratch),

    LADDER("gelu_forward", "scalar", gelu_scalar_forward, "one thread an element"),
    LADDER("gelu_forward", "vectorised", gelu_vectorised_forward, "16 bytes a thread"),
    LADDER("gelu_backward", "scalar", gelu_scalar_backward, "one thread an element"),
    LADDER("gelu_backward", "vectorised", gelu_vectorised_backward, "16 bytes a thread"),
    {.op = "gelu_backward", .name = "cuda", .run = shipped_gelu_backward<bf16>, .needs = NEEDS_GPU, .dtype = DTYPE_BF16,
     .teaches = "one exponential in place of tanhf; bf16 training has it in an epilogue"},
    {.op = "gelu_backward", .name = "cuda_fp32", .run = shipped_gelu_backward<float>, .needs = NEEDS_GPU, .dtype = DTYPE_F32,
     .teaches = "one exponential in place of tanhf"},

    LADDER("cross_entropy_forward", "passes", loss_passes_forward, "maximum, then sum: the row read twice",
           .bytes = loss_passes_forward_bytes),
    LADDER("cross_entropy_forward", "online", loss_online_forward, "maximum and sum in one pass"),
    LADDER("cross_entropy_backward", "passes", loss_passes_backward, "three reads and a write of the logits",
           .bytes = loss_passes_backward_bytes),
    LADDER("cross_entropy_backward", "online", loss_online_backward, "two reads and a write",
           .bytes = loss_online_backward_bytes),
    LADDER("cross_entropy_backward", "fused", loss_fused_backward, "one of each: the row in shared memory"),

    LADDER("embedding_backward", "atomics", embedding_atomics, "atomic additions, which queue up",
           .flags = NOT_BITWISE),
    LADDER("embedding_backward", "columns", embedding_columns, "a thread a column: a trip to memory a token"),
    LADDER("embedding_backward", "sorted_columns", embedding_sorted_columns,
           "tokens sorted: sums stay in registers"),
    LADDER("embedding_backward", "runs", embedding_runs,
           "a block a distinct token: the frequent ones take long"),

    LADDER("grad_norm", "atomics", grad_norm_atomics, "every thread adds to one address",
           .flags = NOT_BITWISE),
    LADDER("grad_norm", "block_atomics", grad_norm_block_atomics, "every block does", .flags = NOT_BITWISE),
    LADDER("grad_norm", "two_stage", grad_norm_two_stage, "partial sums, added in order"),

    LADDER("orthogonalise", "one_matrix", newton_schulz_one_matrix, "a product a matrix: few tiles, many launches"),
    LADDER("orthogonalise", "batched", newton_schulz_batched, "strided batches: one product for all matrices of a shape"),
    LADDER("orthogonalise", "fused", newton_schulz_fused, "the polynomial as the product's own sum"),

    LADDER("adamw", "per_tensor", adamw_per_tensor, "148 launches, one for each tensor of GPT-2"),
    LADDER("adamw", "one_launch", adamw_one_launch, "one launch over a flat buffer"),
    LADDER("adamw", "vectorised", adamw_vectorised, "four neighbours a thread"),
    {.name = NULL},
};
/* clang-format on */

extern "C" const Variant *const ladder_variants = rows;
