/* A call of a case between guard bands, for tests and lab: case.c. */
#pragma once
#include "dev/test/compare.h"
#include "op.h"

typedef struct OpRun {
    const OpCase *c;
    Call call;
    Guarded device[MAX_OPERANDS];
    void *image[MAX_OPERANDS]; /* contents before a run: inputs as stored, NaN in results; NULL of SPACE */
} OpRun;

/* scratch_bytes: of an operand whose elems is -1; shift: bytes past the alignment of an allocation, a
 * multiple of 16. False if the device has too little memory. */
bool op_run_open(OpRun *run, const OpCase *c, const Ops *ops, size_t scratch_bytes, size_t shift);
/* Contents before a run; `scratch` in every byte of scratch. */
void op_run_fill(OpRun *run, int scratch);
void *op_run_download(const OpRun *run, int k); /* malloc'ed */
void op_run_close(OpRun *run);
