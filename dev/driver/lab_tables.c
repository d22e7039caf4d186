/* The rows: which are selected, what they need of the machine and of the sizes, and --list. */
#include <stdio.h>
#include <string.h>
#include "lab.h"

/* The shipped kernels of the ops that say what these teach: three rows an op. */
static const Variant *shipped_variants(void) {
    static Variant rows[3 * MAX_OPS + 1];
    static const struct {
        const char *name;
        Needs needs;
        DType dtype;
    } kinds[] = {
        {"cpu",       NEEDS_CPU, DTYPE_F32 },
        {"cuda",      NEEDS_GPU, DTYPE_BF16},
        {"cuda_fp32", NEEDS_GPU, DTYPE_F32 },
    };
    static int n;
    if (n > 0) return rows;
    for (const LabOp *op = other_ops(); op->op; op++)
        for (int i = 0; op->op->teaches && i < 3; i++, n++)
            rows[n] = (Variant){.op = op->op->name,
                                .name = kinds[i].name,
                                .run = op->op->run,
                                .needs = kinds[i].needs,
                                .dtype = kinds[i].dtype,
                                .teaches = op->op->teaches};
    return rows;
}

static const Variant *const *tables(void) {
    static const Variant *all[6];
    int n = 0;
    all[n++] = cpu_variants;
    all[n++] = shipped_variants();
    all[n++] = textbook_variants;
    if (cuda_variants) all[n++] = cuda_variants;
    if (ladder_variants) all[n++] = ladder_variants;
    return all;
}

int select_variants(const Variant **selected, int max, const char *op, const char *names) {
    int n = 0;
    for (const Variant *const *table = tables(); *table; table++)
        for (const Variant *v = *table; v->name; v++)
            if (strcmp(v->op, op) == 0 && list_matches(names, v->name) && n < max) selected[n++] = v;
    return n;
}

const Ops *lab_table(Needs needs, DType dtype) {
    const Ops *ops = needs == NEEDS_CPU ? &ops_cpu : dtype == DTYPE_BF16 ? ops_cuda_bf16 : ops_cuda_fp32;
    static const Ops *opened[3];
    Error err = {0};
    if (!ops || (needs != NEEDS_CPU && !cuda_available())) return NULL;
    for (int i = 0; i < 3; i++) {
        if (opened[i] == ops) return ops;
        if (opened[i]) continue;
        if (!ops->device->open(0, &err)) die(&err);
        return opened[i] = ops;
    }
    return ops;
}

const char *variant_lacks(const Variant *v) {
    if (v->needs == NEEDS_CPU) return NULL;
    const int capability = lab_compute_capability();
    if (!capability) return "no GPU";
    if (capability < 80) return "the GPU's compute capability is below 8.0";
    return v->needs == NEEDS_HOPPER && capability != 90 ? "the GPU is not a Hopper (compute capability 9.0)"
                                                        : NULL;
}

static bool takes_head_size(const Variant *v, int HD) {
    if (!v->head_sizes[0]) return HD % 8 == 0 && HD <= 256;
    for (int i = 0; i < 4; i++)
        if (v->head_sizes[i] == HD && HD) return true;
    return false;
}

const char *variant_refuses(const Variant *v, const Sizes *s) {
    if (s->HD && !takes_head_size(v, s->HD)) return "head size";
    if (v->max_T && s->T > v->max_T) return "length";
    if (v->flags & CAUSAL_ONLY && s->HD && !s->causal) return "not causal";
    if (v->flags & PACKED_ONLY && (s->T != s->Tk || s->HD != s->DV)) return "q, k and v are not packed";
    if (s->sparse && !(v->flags & TAKES_SPARSE)) return "sparse";
    if (s->blocks.window && !(v->flags & TAKES_BLOCKS)) return "blocks";
    if (v->flags & NEEDS_BLOCKS && !s->blocks.window) return "no blocks";
    if (s->dropout && !(v->flags & TAKES_DROPOUT)) return "dropout";
    if (s->window && !(v->flags & TAKES_WINDOW)) return "window";
    return NULL;
}

static void list_row(const Variant *v) {
    const char *lacks = variant_lacks(v);
    char heads[32] = "";
    for (int i = 0; i < 4 && v->head_sizes[i]; i++)
        snprintf(heads + strlen(heads), sizeof heads - strlen(heads), "%s%d", i ? "/" : "head size ",
                 v->head_sizes[i]);
    printf("  %-22s %s  %s%s%s%s%s%s%s%s\n", v->name, v->dtype == DTYPE_BF16 ? "bf16" : "fp32", v->teaches,
           *heads ? "; " : "", heads, v->flags & CAUSAL_ONLY ? "; causal only" : "",
           v->flags & INEXACT ? "; INEXACT by design" : "", lacks ? " [not here: " : "", lacks ? lacks : "",
           lacks ? "]" : "");
}

static const char *refused;

void lab_refuse(const char *why) {
    refused = why;
}

const char *lab_refused(void) {
    const char *why = refused;
    refused = NULL;
    return why;
}

int lab_ops(const LabOp **ops) {
    int n = 0;
    ops[n++] = &attention_forward_op;
    ops[n++] = &attention_backward_op;
    for (const LabOp *op = other_ops(); op->op; op++) ops[n++] = op;
    return n;
}

static bool is_op(const char *name) {
    const LabOp *ops[MAX_OPS];
    const int n_ops = lab_ops(ops);
    for (int i = 0; name && i < n_ops; i++)
        if (strcmp(ops[i]->op->name, name) == 0) return true;
    return false;
}

/* Rows of the same op and name, in all tables. */
static int namesakes(const Variant *row) {
    int n = 0;
    for (const Variant *const *table = tables(); *table; table++)
        for (const Variant *v = *table; v->name; v++)
            n += strcmp(v->op, row->op) == 0 && strcmp(v->name, row->name) == 0;
    return n;
}

bool rows_sound(Error *err) {
    for (const Variant *const *table = tables(); *table; table++)
        for (const Variant *v = *table; v->name; v++)
            if (!is_op(v->op))
                return fail(err, EXIT_INPUT, "row '%s': its op is '%s', which is none; hint: dev/lab --list",
                            v->name, v->op ? v->op : "");
    for (const Variant *const *table = tables(); *table; table++)
        for (const Variant *v = *table; v->name; v++) {
            const char *lacks = !v->run ? "a function (.run)" : !v->teaches ? "a text (.teaches)" : NULL;
            if (lacks) return fail(err, EXIT_INPUT, "row '%s' of %s: lacks %s", v->name, v->op, lacks);
            if (namesakes(v) > 1)
                return fail(err, EXIT_INPUT, "row '%s' of %s: the name is taken", v->name, v->op);
        }
    return true;
}

void lab_list(const char *names) {
    const LabOp *ops[MAX_OPS];
    const Variant *selected[MAX_VARIANTS];
    const int n_ops = lab_ops(ops);
    for (int i = 0; i < n_ops; i++) {
        if (!list_matches(names, ops[i]->op->name)) continue;
        const int n = select_variants(selected, MAX_VARIANTS, ops[i]->op->name, "");
        printf("%s\n", ops[i]->op->name);
        for (int v = 0; v < n; v++) list_row(selected[v]);
    }
}
