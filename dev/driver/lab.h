/* The lab: one driver for every op and every variant of it, shipped or experimental.
 *
 * An op (LabOp) says what is computed: its description (dev/ops), which the tests share, adversarial inputs, sizes.
 * A variant says how: one function and one row of a table (Variant). The driver does the rest: inputs,
 * poison, guard bands, the comparison with the reference, bits of a second run, timing, table and CSV.
 *
 *   lab.c          main(): what runs, in which order         lab_flags.c   the command line
 *   lab_case.c     reference, one variant checked            lab_time.c    roofs and timing
 *   lab_report.c   the CSV file, texts of sizes              lab_tables.c  rows: selection, requirements, --list
 *   lab_faults.c   faulty variants: the checker's own check  lab_ops.c     sizes of the ops other than attention
 *   lab_watchdog.c kernels that hang
 *   lab_ladders.cu rows of the ladders of those ops        launch.cuh     what their kernels share
 *   ../attention/  attention's ops, its reference, its variants; ../matmul, ../gelu, ...: ladders of the others
 *
 * To add a variant: write its file, and add a row to the table of its op (dev/README.md has an example). */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "dev/ops/op.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { MAX_SIZES = 256, MAX_OPS = 64, MAX_VARIANTS = 128 };

/* Where a variant runs. */
typedef enum Needs {
    NEEDS_CPU,
    NEEDS_GPU /* compute capability 8.0 or later */,
    NEEDS_HOPPER /* 9.0 */
} Needs;

/* What else is to be known of a variant. */
enum {
    CAUSAL_ONLY = 1,
    PACKED_ONLY = 2, /* q, k and v in one tensor: Tk = T, DV = HD */
    INEXACT = 4,     /* wrong by design: distances are shown and do not fail; all else does */
    NOT_BITWISE = 8, /* a second run may differ in the last bits */
    NO_NAN = 16,     /* NaN and inf inputs are not promised to come through */
    TAKES_SPARSE = 32,
    TAKES_DROPOUT = 64,
    TAKES_WINDOW = 128,
    TAKES_BLOCKS = 512, /* the trainer's --sparse */
    NEEDS_BLOCKS = 1024,
    ROUNDS_SCORES =
        256, /* S and dP are stored in the storage type: held against a computation that does so, too */
};

typedef struct Variant {
    const char *op, *name;
    void (*run)(const Call *call);
    Needs needs;
    DType dtype;
    int head_sizes[4]; /* 0-terminated; empty: any multiple of 8 up to 256 */
    int max_T;         /* 0: any */
    int flags;
    size_t (*scratch_bytes)(const Sizes *s, int elem_bytes); /* NULL: what Ops.scratch_bytes gives */
    void (*prepare)(const Call *call);                       /* before each run, not timed; NULL: nothing */
    double (*flops)(const Sizes *s);                         /* of this algorithm; NULL: the op's */
    double (*bytes)(const Sizes *s, int elem_bytes); /* moved to and from device memory; NULL: the op's */
    unsigned skips_parts; /* bit p: part p of the results, in order, is not written by this variant */
    const char *teaches;
} Variant;

/* Of the whole run. */
extern struct Counts {
    int passed, failed, skipped; /* checks */
    int timed, left_out;         /* rows at a size */
} counts;

struct Case;
/* Inputs of a case other than plain normal values. */
typedef struct Fill {
    const char *name;
    void (*apply)(struct Case *c); /* NULL: nothing */
    bool not_finite;               /* holds NaN or inf */
} Fill;

struct Options;
typedef struct LabOp {
    const Op *op;                      /* operands, how to run it */
    void (*reference)(struct Case *c); /* fills want[] and plain[] of every result; NULL: that of the tests */
    double (*flops)(const Sizes *s);   /* the least that the contract needs; NULL: op_case_cost */
    double (*bytes)(const Sizes *s, int elem_bytes);
    double (*density)(const Sizes *s); /* part of the work that a mask leaves; NULL: all */
    int (*check_sizes)(Sizes *list, const struct Options *o);
    int (*time_sizes)(Sizes *list, const struct Options *o, Needs needs);
    const Fill *fills;                        /* ends with a name of NULL; the first is plain */
    void (*prepare_timing)(const Call *call); /* results of earlier ops that this one reads; NULL: none */
} LabOp;

/* A row with bf16 and one with fp32 storage, whose name ends in _fp32. The function takes both: Call.ops->dtype. What
 * follows the text are fields between dtype and teaches, in their order. C++20. */
#define LADDER(op_name, row_name, function, text, ...)                                                       \
    {.op = op_name,                                                                                          \
     .name = row_name,                                                                                       \
     .run = function,                                                                                        \
     .needs = NEEDS_GPU,                                                                                     \
     .dtype = DTYPE_BF16,                                                                                    \
     __VA_OPT__(__VA_ARGS__, ).teaches = text},                                                              \
    {                                                                                                        \
        .op = op_name, .name = row_name "_fp32", .run = function, .needs = NEEDS_GPU, .dtype = DTYPE_F32,    \
        __VA_OPT__(__VA_ARGS__, ).teaches = text                                                             \
    }

/* A value of want[] that accepts everything. */
#define ANYTHING 1.7e308

/* One op at one size on one kind of input, for one storage type: what every variant of it must give. */
typedef struct Case {
    const LabOp *op;
    const Fill *fill;
    OpCase o;                     /* operands and inputs */
    double *want[MAX_OPERANDS];   /* of OUT and ADD: the exact result */
    double *plain[MAX_OPERANDS];  /* and that of a plain computation in this storage type */
    double *scores[MAX_OPERANDS]; /* and of one that rounds S and dP; NULL: the same */
} Case;

typedef struct Options {
    char ops[512], variants[512], fill[256], csv[1024], roofs[1024];
    int T[32], n_T, head_sizes[8], n_head_sizes;
    int batch_tokens, channels; /* 0: the op's own */
    int causal;                 /* -1: both */
    int repeat;
    double seconds, longest; /* of a row; of a call */
    int queries, window;     /* 0: as many as keys; all */
    bool sparse, dropout;
    const char *blocks; /* as --sparse of the trainer; read into pattern */
    SparsePattern pattern;
    bool check, time, once, quick, burst, sustained, list, help;
} Options;

/* ---- the tables ---- */
extern const LabOp attention_forward_op, attention_backward_op;
const LabOp *other_ops(void);                             /* lab_ops.c; ends with an op of NULL */
extern const Variant cpu_variants[], textbook_variants[]; /* end with a name of NULL */
/* NULL in a build without CUDA: attention's rows, and those of the other ops' ladders */
extern const Variant *const cuda_variants, *const ladder_variants;
int lab_compute_capability(void);    /* 0 where there is no GPU */
const char *lab_cuda_versions(void); /* of driver and runtime */
void lab_profile(bool on); /* what a profiler is to see begins, with a kernel of that name, or ends */

/* ---- lab_flags.c ---- */
bool lab_flags(Options *o, int argc, char **argv, Error *err);
void lab_usage(void);
/* True if the comma-separated list of names or patterns holds the name. !NAME leaves a name out; a list of nothing
 * else holds all the others. */
bool list_matches(const char *list, const char *name);

/* ---- lab_tables.c ---- */
/* The rows of the op that the list of names selects, of all tables; at most max. */
int select_variants(const Variant **selected, int max, const char *op, const char *names);
/* The table of a device and storage type, opened; NULL where this build or machine has none. */
const Ops *lab_table(Needs needs, DType dtype);
/* NULL if the variant runs on this machine; else why not. */
const char *variant_lacks(const Variant *v);
/* NULL if the variant takes these sizes; else why not. */
const char *variant_refuses(const Variant *v, const Sizes *s);
/* For a launcher that finds only when called that this card is too small: says why, and launches nothing. */
void lab_refuse(const char *why);
/* Why the last call was refused, NULL if it was not; forgets it. */
const char *lab_refused(void);
/* The ops, attention's first; their number. */
int lab_ops(const LabOp **ops);
void lab_list(const char *ops);
/* False if a row has no op, name, function or text, or the name of another of its op. */
bool rows_sound(Error *err);

/* ---- lab_case.c ---- */
void case_build(Case *c, const LabOp *op, const Sizes *s, DType dtype, const Fill *fill);
void case_free(Case *c);
/* What a check found; text names every part with its error over all rows and in its worst row. */
typedef struct Findings {
    bool ok;
    double error, limit; /* where error / limit is largest */
    double largest;      /* |got - want| of any element of the first result */
    char text[768];
} Findings;
/* Runs the variant `repeat` times, at least twice, on the case. */
Findings case_check(const Case *c, const Variant *v, const Ops *ops, int repeat);
size_t lab_scratch_bytes(const Variant *v, const Ops *ops, const Sizes *s);
void *lab_malloc(size_t bytes);

/* ---- lab_faults.c ---- */
/* Feeds the checker variants with one fault each; false, with a line, if it misses one. */
bool checker_sees_faults(void);

/* ---- lab_time.c ---- */
/* Refuses, before anything is timed, a --roofs file that cannot be written or holds anything else. */
bool roofs_open(const Options *o, Error *err);
/* Times the variants, all of one device and storage type, at one size; prints a line for each. */
void time_variants(const LabOp *op, const Sizes *s, const Variant *const *variants, int n, const Options *o);

/* ---- lab_watchdog.c ---- */
/* Until watch_end, a kernel that does not come back within 30 seconds ends the program with a line that says which. */
void watch_begin(const Variant *v, const Sizes *s);
void watch_end(void);

/* ---- lab_report.c ---- */
/* Opens the CSV file, if there is to be one, and writes its comment lines. */
bool report_open(const Options *o, int argc, char **argv, Error *err);
bool report_close(Error *err);
/* "64 x 1024, 24 x 64, causal" */
const char *sizes_text(const Sizes *s);
/* One line of the CSV; what a kind of line does not have is NaN, an empty cell. */
typedef struct CsvRow {
    const char *kind, *fill, *result;
    double error, limit, largest;               /* Findings */
    double ms, spread, tflops, gbytes, percent; /* rates by the op's FLOP and bytes; spread as a fraction */
    double gflop, mbytes;                       /* by the formulas of the variant */
    double density, scratch_mbytes;             /* of the mask; of scratch memory */
} CsvRow;
CsvRow csv_row(const char *kind, const char *result); /* all figures NaN */
void report_csv(const Variant *v, const Sizes *s, const CsvRow *row);
void report_comment(const char *text); /* on the screen and in the CSV */

#ifdef __cplusplus
}
#endif
