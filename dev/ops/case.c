/* One case of an op: inputs from a fixed seed, rounded to the storage type first, so that the reference sees the same
 * values; what the op must give; and a call on a device, outputs and scratch poisoned, every buffer between guard bands. */
#include "op.h"
#include <string.h>
#include "dev/test/op_test.h"
#include "op_run.h"

/* ---- values ---- */

void op_encode(void *bytes, const float *values, Store store, DType dtype, int64_t n) {
#pragma omp parallel for
    for (int64_t i = 0; i < n; i++)
        if (store == STORE_I32)
            ((int32_t *)bytes)[i] = (int32_t)values[i];
        else if (store == STORE_X && dtype == DTYPE_BF16)
            ((uint16_t *)bytes)[i] = bf16_from_float(values[i]);
        else
            ((float *)bytes)[i] = values[i];
}

void op_decode(float *values, const void *bytes, Store store, DType dtype, int64_t n) {
#pragma omp parallel for
    for (int64_t i = 0; i < n; i++)
        if (store == STORE_I32)
            values[i] = (float)((const int32_t *)bytes)[i];
        else if (store == STORE_X && dtype == DTYPE_BF16)
            values[i] = bf16_to_float(((const uint16_t *)bytes)[i]);
        else
            values[i] = ((const float *)bytes)[i];
}

void op_round(float *values, DType dtype, int64_t n) {
    if (dtype == DTYPE_F32) return;
#pragma omp parallel for
    for (int64_t i = 0; i < n; i++) values[i] = round_bf16(values[i]);
}

/* Tokens are as in text. */
float op_value(const Operand *o, int k, int64_t i) {
    if (o->store != STORE_I32 || o->offset == 0) return o->offset + o->scale * op_normal((uint64_t)k, i);
    const double u = (double)(op_mix((uint64_t)i) >> 40) * 0x1p-24;
    return (float)((int64_t)(30 * u * u / (1.0001 - u)) % (int64_t)o->offset);
}

/* ---- inputs and results ---- */

size_t operand_bytes(const Operand *o, DType dtype) {
    return o->elems < 0 ? 0 : (size_t)o->elems * (o->store == STORE_X ? dtype_bytes(dtype) : 4);
}

static int larger(int a, int b) {
    return a > b ? a : b;
}

size_t op_scratch_bytes(const Ops *ops, const Sizes *s) {
    const int64_t tokens = s->N > (int64_t)s->B * s->T ? s->N : (int64_t)s->B * s->T;
    const int widest = larger(larger(s->C, s->NH * s->HD), larger(s->OC, s->IC));
    const OpShape shape = {.B = s->N ? 1 : s->B,
                           .T = (int)(s->N ? s->N : s->T),
                           .C = widest,
                           .NH = s->NH ? s->NH : 1,
                           .V = larger(s->V, widest),
                           .Vp = larger(s->Vp, widest),
                           .loss_rows = tokens,
                           .sparse = s->blocks};
    const size_t bytes = ops->scratch_bytes(&shape),
                 sums = sizeof(StepSums); /* loss_sum and grad_norm have them there */
    return bytes > sums ? bytes : sums;
}

void op_case_build(OpCase *c) {
    const DType dtype = c->dtype;
    c->n = c->op->describe(c->operands, &c->s);
    for (int k = 0; k < c->n; k++) {
        const Operand *o = &c->operands[k];
        if ((o->role != IN && o->role != ADD) || o->elems == 0) continue;
        float *in = c->in[k] = op_malloc((size_t)o->elems * sizeof *in);
#pragma omp parallel for
        for (int64_t i = 0; i < o->elems; i++) in[i] = op_value(o, k, i);
        if (o->store == STORE_X) op_round(in, dtype, o->elems);
    }
    if (c->op->prepare) c->op->prepare(c);
    for (int k = 0; k < c->n; k++)
        if (c->in[k] && c->operands[k].store == STORE_X) op_round(c->in[k], dtype, c->operands[k].elems);
}

/* Outputs start as NaN here, too. */
void op_case_oracle(OpCase *c) {
    OpCase fp32 = *c; /* the same inputs, stored in fp32 */
    OpRun run;
    fp32.dtype = DTYPE_F32;
    if (!op_run_open(&run, &fp32, &ops_cpu, op_scratch_bytes(&ops_cpu, &c->s), 0)) abort();
    op_run_fill(&run, POISON_VALUE);
    if (c->op->reference)
        c->op->reference(run.call.p, c);
    else
        c->op->run(&run.call);
    for (int k = 0; k < c->n; k++) {
        const Operand *o = &c->operands[k];
        if (o->role == SPACE || o->elems == 0) continue;
        c->want[k] = op_malloc((size_t)o->elems * sizeof(float));
        op_decode(c->want[k], run.call.p[k], o->store, DTYPE_F32, o->elems);
    }
    op_run_close(&run);
}

void op_case_plain(OpCase *c) {
    if (c->dtype != DTYPE_BF16) return;
    for (int k = 0; k < c->n; k++) {
        const Operand *o = &c->operands[k];
        if ((o->role != OUT && o->role != ADD) || o->store != STORE_X || o->elems == 0) continue;
        const size_t bytes = (size_t)o->elems * sizeof(float);
        c->plain[k] = op_malloc(bytes);
        memcpy(c->plain[k], c->want[k], bytes);
        op_round(c->plain[k], DTYPE_BF16, o->elems);
        c->slack[k] = op_malloc(bytes);
        memset(c->slack[k], 0, bytes);
    }
    if (c->op->plain) c->op->plain(c);
}

void op_case_free(OpCase *c) {
    for (int k = 0; k < c->n; k++) {
        free(c->in[k]);
        free(c->want[k]);
        free(c->plain[k]);
        free(c->slack[k]);
    }
}

/* ---- a call ---- */

bool op_run_open(OpRun *run, const OpCase *c, const Ops *ops, size_t scratch_bytes, size_t shift) {
    *run = (OpRun){
        .c = c, .call = {.ops = ops, .s = c->s}
    };
    for (int k = 0; k < c->n; k++) {
        const Operand *o = &c->operands[k];
        const bool scratch = o->elems < 0;
        const size_t bytes = scratch ? scratch_bytes : operand_bytes(o, c->dtype);
        if (bytes == 0) continue;
        if (!guarded_alloc(&run->device[k], ops, bytes, scratch ? 0 : shift)) return false;
        run->call.p[k] = run->device[k].data;
        if (o->role == SPACE) continue;
        run->image[k] = op_malloc(bytes);
        memset(run->image[k], POISON_VALUE, bytes);
        if (c->in[k]) op_encode(run->image[k], c->in[k], o->store, c->dtype, o->elems);
    }
    return true;
}

void op_run_fill(OpRun *run, int scratch) {
    for (int k = 0; k < run->c->n; k++) {
        const Guarded *g = &run->device[k];
        if (run->image[k])
            g->ops->device->upload(g->data, run->image[k], g->bytes);
        else if (g->base && !guarded_fill(g->ops, g->data, scratch, g->bytes))
            abort();
    }
}

void *op_run_download(const OpRun *run, int k) {
    void *bytes = op_malloc(run->device[k].bytes);
    run->device[k].ops->device->download(bytes, run->device[k].data, run->device[k].bytes);
    return bytes;
}

void op_run_close(OpRun *run) {
    for (int k = 0; k < run->c->n; k++) {
        guarded_free(&run->device[k]);
        free(run->image[k]);
    }
}
