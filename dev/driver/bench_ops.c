/* Times every op of a CUDA table at the shapes of a d12 training step (64 x 1024 tokens, 768 channels).
 *
 *   bench_ops [bf16|fp32]
 *
 * Each op runs on random data for at least 0.3 s back to back after a warm-up, so the figures are those of a
 * card under load. "% roof" is against what the same card just gave in the same run: a device copy for ops
 * that move bytes, an 8192^3 GEMM for ops that multiply. Bytes and FLOPs are the least that the op's contract
 * needs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "../../llmc/ops.h"

enum {
    B = 64,
    T = 1024,
    C = 768,
    NH = 12,
    V = 50257,
    Vp = 50304,
    HEAD_ROWS = 16384,
    ROOF = 8192,
    N = B * T,
};
static const int64_t N_PARAMETERS = 124475904; /* GPT-2 124M */

/* Device buffers, each large enough for every use below. */
static const Ops *ops;
static floatX *wide[4];      /* (N,4C) */
static floatX *logits;       /* (HEAD_ROWS,Vp) */
static floatX *weight;       /* (Vp,C) */
static float *parameters[4]; /* (N_PARAMETERS): master, gradients, m, v */
static floatX *rounded;      /* (N_PARAMETERS) */
static float *rows[4];       /* (N*NH): mean, rstd, losses, lse */
static int32_t *tokens, *bytes;
static StepStats *stats;
static void *scratch;

static void fail_run(const char *what) {
    fprintf(stderr, "error: bench_ops: %s\n", what);
    exit(EXIT_RUN);
}

/* ---- the ops ---- */

typedef struct LinearShape {
    const char *name;
    int OC, IC;
    int64_t rows;
    bool gelu_out, gelu_in; /* GELU after the layer, before it */
    bool bias;              /* its gradient comes from linear_backward_weight, as in the model */
} LinearShape;

static const LinearShape linears[] = {
    {"qkv",    3 * C, C,     N,         false, false, true },
    {"proj",   C,     C,     N,         false, false, false},
    {"fc",     4 * C, C,     N,         true,  false, false},
    {"fcproj", C,     4 * C, N,         false, true,  false},
    {"head",   Vp,    C,     HEAD_ROWS, false, false, false},
};

static void copy(const LinearShape *s) {
    ops->copy(wide[0], wide[1], (size_t)N * 4 * C * dtype_bytes(ops->dtype));
}
static void square(const LinearShape *s) {
    ops->linear_forward(wide[0], NULL, wide[1], wide[2], NULL, ROOF, ROOF, ROOF);
}
static void embedding_forward(const LinearShape *s) {
    ops->embedding_forward(wide[0], tokens, weight, weight, B, T, C);
}
static void embedding_backward(const LinearShape *s) {
    ops->embedding_backward(parameters[1], parameters[0], wide[0], tokens, scratch, B, T, C, V);
}
static void embedding_backward_bytes(const LinearShape *s) {
    ops->embedding_backward(parameters[1], parameters[0], wide[0], bytes, scratch, B, T, C, 256);
}
static void layernorm_forward(const LinearShape *s) {
    ops->layernorm_forward(wide[0], rows[0], rows[1], wide[1], weight, weight, N, C);
}
static void residual_layernorm_forward(const LinearShape *s) {
    ops->residual_layernorm_forward(wide[0], wide[1], rows[0], rows[1], wide[2], wide[3], weight, weight, N,
                                    C);
}
static void layernorm_backward(const LinearShape *s) {
    ops->layernorm_backward(wide[0], parameters[1], parameters[1] + C, parameters[2], wide[0], wide[1],
                            wide[2], weight, rows[0], rows[1], scratch, N, C);
}
static void residual_forward(const LinearShape *s) {
    ops->residual_forward(wide[0], wide[1], wide[2], (int64_t)N * C);
}
static void gelu_forward(const LinearShape *s) {
    ops->gelu_forward(wide[0], wide[1], (int64_t)N * 4 * C);
}
static void linear_forward(const LinearShape *s) {
    ops->linear_forward(s->OC == Vp ? logits : wide[0], s->gelu_out ? wide[1] : NULL, wide[2], weight,
                        s->OC == Vp ? NULL : rounded, s->rows, s->OC, s->IC);
}
static void linear_backward_input(const LinearShape *s) {
    ops->linear_backward_input(wide[0], s->gelu_in ? parameters[2] : NULL, s->OC == Vp ? logits : wide[1],
                               weight, s->gelu_in ? wide[2] : NULL, scratch, s->rows, s->OC, s->IC);
}
static void linear_backward_weight(const LinearShape *s) {
    ops->linear_backward_weight(parameters[1], s->bias ? parameters[2] : NULL, s->OC == Vp ? logits : wide[1],
                                wide[2], scratch, s->rows, s->OC, s->IC);
}
static void attention_forward(const LinearShape *s) {
    ops->attention_forward(wide[0], rows[3], wide[1], B, T, NH, C / NH);
}
static void attention_backward(const LinearShape *s) {
    ops->attention_backward(wide[2], wide[3], wide[0], wide[1], rows[3], scratch, B, T, NH, C / NH);
}
static void cross_entropy_forward(const LinearShape *s) {
    ops->cross_entropy_forward(rows[2], logits, tokens, HEAD_ROWS, V, Vp);
}
static void cross_entropy_backward(const LinearShape *s) {
    ops->cross_entropy_backward_inplace(rows[2], logits, tokens, 1.0f / N, HEAD_ROWS, V, Vp);
}
static void loss_sum(const LinearShape *s) {
    ops->loss_sum(stats, rows[2], 1.0f / N, scratch, N);
}
static void grad_norm(const LinearShape *s) {
    ops->grad_norm(stats, parameters[1], scratch, N_PARAMETERS);
}
static void adamw(const LinearShape *s) {
    AdamWArgs args = {.master = parameters[0],
                      .m = parameters[2],
                      .v = parameters[3],
                      .weights = rounded,
                      .grads = parameters[1],
                      .stats = stats,
                      .step = 1000,
                      .lr = 1e-6f,
                      .beta1 = 0.9f,
                      .beta2 = 0.95f,
                      .eps = 1e-8f,
                      .clip = 1.0f,
                      .n_ranges = 16};
    for (int i = 0; i < 16; i++) {
        const int64_t tensor = N_PARAMETERS / 16;
        args.ranges[i] =
            (AdamWRange){i * tensor, i == 15 ? N_PARAMETERS : (i + 1) * tensor, i % 2 ? 0.1f : 0};
    }
    ops->adamw(&args);
}
static void weights_from_master(const LinearShape *s) {
    ops->weights_from_master(rounded, parameters[0], N_PARAMETERS);
}

/* ---- data ---- */

static void *device(size_t size) {
    void *p = ops->alloc(size);
    if (!p) fail_run("the device has too little free memory (about 9 GiB in bf16, 14 GiB in fp32)");
    return p;
}

static uint32_t next_random(void) {
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

/* n elements of roughly normal numbers with deviation 0.3, repeating every 4M; fp32 or the storage type */
static void fill(void *dst, int64_t n, DType dtype) {
    enum { PIECE = 1 << 22 };
    static float *host, *piece;
    if (!host) {
        host = malloc(PIECE * sizeof *host);
        if (!host) fail_run("out of host memory");
        for (int i = 0; i < PIECE; i++) {
            double sum = 0; /* of 4 uniforms: deviation 1/sqrt(3) of their range */
            for (int k = 0; k < 4; k++) sum += next_random() / 2147483648.0 - 0.5;
            host[i] = (float)(sum * 0.52);
        }
        piece = device(PIECE * sizeof *piece);
        ops->upload(piece, host, PIECE * sizeof *piece);
    }
    for (int64_t i = 0; i < n; i += PIECE) {
        const int64_t left = n - i < PIECE ? n - i : PIECE;
        char *at = (char *)dst + (size_t)i * dtype_bytes(dtype);
        if (dtype == DTYPE_F32)
            ops->copy(at, piece, (size_t)left * sizeof *piece);
        else
            ops->weights_from_master(at, piece, left);
    }
}

/* Tokens below `vocabulary` from a steep distribution, as text has: the first takes about a sixth. */
static int32_t *upload_tokens(int vocabulary) {
    int32_t *host = malloc(N * sizeof *host), *p = device(N * sizeof *host);
    if (!host) fail_run("out of host memory");
    for (int i = 0; i < N; i++) {
        const double u = (next_random() + 0.5) / 2147483648.0;
        int rank = (int)(30 * u * u / (1.0001 - u)); /* heavy-tailed */
        host[i] = rank % vocabulary;
    }
    ops->upload(p, host, N * sizeof *host);
    free(host);
    return p;
}

static void make_data(void) {
    const DType X = ops->dtype;
    const OpShape shape = {B, T, C, NH, V, Vp, HEAD_ROWS, N_PARAMETERS};
    const int64_t wide_elems = (int64_t)N * 4 * C, head_elems = (int64_t)HEAD_ROWS * Vp;
    for (int i = 0; i < 4; i++) {
        wide[i] = device((size_t)wide_elems * dtype_bytes(X));
        fill(wide[i], wide_elems, X);
        parameters[i] = device((size_t)N_PARAMETERS * sizeof(float));
        fill(parameters[i], N_PARAMETERS, DTYPE_F32);
        rows[i] = device((size_t)N * NH * sizeof(float));
        fill(rows[i], (int64_t)N * NH, DTYPE_F32);
    }
    ops->zero(parameters[3], (size_t)N_PARAMETERS * sizeof(float)); /* v must not be negative */
    logits = device((size_t)head_elems * dtype_bytes(X));
    fill(logits, head_elems, X);
    weight = device((size_t)Vp * C * dtype_bytes(X));
    fill(weight, (int64_t)Vp * C, X);
    rounded = device((size_t)N_PARAMETERS * dtype_bytes(X));
    fill(rounded, N_PARAMETERS, X);
    tokens = upload_tokens(V);
    bytes = upload_tokens(256);
    stats = device(sizeof *stats);
    ops->zero(stats, sizeof *stats);
    scratch = device(ops->scratch_bytes(&shape));
}

/* ---- timing and the table ---- */

typedef void Run(const LinearShape *shape);

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds a call. */
static double time_op(Run *run, const LinearShape *shape) {
    const double warm_up = 0.1, measured = 0.3;
    int calls = 0;
    run(shape); /* plans, first launches */
    ops->synchronize();
    double start = seconds();
    do {
        run(shape);
        ops->synchronize();
        calls++;
    } while (seconds() - start < warm_up);
    calls = (int)(calls * measured / warm_up) + 1;
    start = seconds();
    for (int i = 0; i < calls; i++) run(shape);
    ops->synchronize();
    return (seconds() - start) / calls;
}

static double copy_roof, matmul_roof; /* bytes/s, FLOP/s */

/* One line; the larger share of a roof is the one that limits the op. */
static void report(const char *name, const char *shape_name, Run *run, const LinearShape *shape, double moved,
                   double flops) {
    const double t = time_op(run, shape);
    const double byte_share = copy_roof ? moved / t / copy_roof : 1;
    const double flop_share = matmul_roof ? flops / t / matmul_roof : flops > 0;
    char title[64];
    snprintf(title, sizeof title, "%s %s", name, shape_name);
    printf("%-34s %10.1f %9.0f %9.1f %7.0f%%\n", title, 1e6 * t, 1e-9 * moved / t, 1e-12 * flops / t,
           100 * (byte_share > flop_share ? byte_share : flop_share));
    fflush(stdout);
    if (run == copy) copy_roof = moved / t;
    if (run == square) matmul_roof = flops / t;
}

static void bench_linear(void) {
    const struct {
        const char *name;
        Run *run;
    } directions[] = {
        {"linear_forward",         linear_forward        },
        {"linear_backward_input",  linear_backward_input },
        {"linear_backward_weight", linear_backward_weight},
    };
    for (size_t d = 0; d < sizeof directions / sizeof *directions; d++)
        for (size_t i = 0; i < sizeof linears / sizeof *linears; i++) {
            const LinearShape *s = &linears[i];
            report(directions[d].name, s->name, directions[d].run, s, 0,
                   2.0 * (double)s->rows * s->OC * s->IC);
        }
}

int main(int argc, char **argv) {
    const char *precision = argc > 1 ? argv[1] : "bf16";
    if (argc > 2 || (strcmp(precision, "bf16") && strcmp(precision, "fp32"))) {
        fprintf(stderr, "error: bench_ops: expected no argument, bf16 or fp32\n");
        return EXIT_INPUT;
    }
    if (!cuda_available()) fail_run("no CUDA device");
    Error err = {0};
    ops = strcmp(precision, "bf16") ? ops_cuda_fp32 : ops_cuda_bf16;
    if (!ops->open(&err)) fail_run(err.text);
    make_data();

    const double X = (double)dtype_bytes(ops->dtype), act = X * N * C, head = X * HEAD_ROWS * Vp;
    const double n = (double)N_PARAMETERS, attention = 2.0 * B * NH * (double)T * T * (C / NH);
    const struct {
        const char *name;
        Run *run;
        double moved, flops;
    } table[] = {
        {"device copy (roof)",         copy,                       8 * act,      0                       },
        {"GEMM 8192^3 (roof)",         square,                     0,            2.0 * ROOF * ROOF * ROOF},
        {"embedding_forward",          embedding_forward,          act,          0                       },
        {"embedding_backward, GPT-2",  embedding_backward,         act,          0                       },
        {"embedding_backward, bytes",  embedding_backward_bytes,   act,          0                       },
        {"layernorm_forward",          layernorm_forward,          2 * act,      0                       },
        {"residual_layernorm_forward", residual_layernorm_forward, 4 * act,      0                       },
        {"layernorm_backward",         layernorm_backward,         4 * act,      0                       },
        {"residual_forward",           residual_forward,           3 * act,      0                       },
        {"gelu_forward",               gelu_forward,               8 * act,      0                       },
        {"attention_forward",          attention_forward,          0,            attention               },
        {"attention_backward",         attention_backward,         0,            2.5 * attention         },
        {"cross_entropy_forward",      cross_entropy_forward,      head,         0                       },
        {"cross_entropy_backward",     cross_entropy_backward,     2 * head,     0                       },
        {"loss_sum",                   loss_sum,                   4.0 * N,      0                       },
        {"grad_norm",                  grad_norm,                  4 * n,        0                       },
        {"adamw",                      adamw,                      (28 + X) * n, 0                       },
        {"weights_from_master",        weights_from_master,        (4 + X) * n,  0                       },
    };
    printf("%s, %s\n%-34s %10s %9s %9s %8s\n", ops->device_name(), ops->name, "op", "us", "GB/s", "TFLOP/s",
           "% roof");
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        report(table[i].name, "", table[i].run, NULL, table[i].moved, table[i].flops);
    bench_linear();
    return 0;
}
