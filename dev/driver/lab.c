/* The lab: checks and times every variant of every op. dev/lab --help; dev/README.md is its course.
 *
 * Ends with "lab: N timed, N left out" where rows were to be timed, and "lab: N passed, N failed, N skipped" over the
 * checks; a variant that this machine cannot run counts as one skipped, and so does a CPU's op that is the reference
 * of its kind. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "lab.h"

struct Counts counts;

/* ---- checks ---- */

static void check_variant(const Case *c, const Variant *v, const Options *o) {
    watch_begin(v, &c->o.s);
    const Findings f = case_check(c, v, lab_table(v->needs, v->dtype), o->repeat);
    watch_end();
    const char *refused = lab_refused();
    if (refused) {
        printf("skip %-22s %-22s %-34s %s\n", v->op, v->name, sizes_text(&c->o.s), refused);
        counts.skipped++;
        return;
    }
    const char *result = !f.ok ? "FAIL" : v->flags & INEXACT ? "inexact" : "ok";
    counts.passed += f.ok;
    counts.failed += !f.ok;
    printf("%-4s %-22s %-22s %-34s %-10s%s\n", result, v->op, v->name, sizes_text(&c->o.s), c->fill->name,
           f.text);
    fflush(stdout);
    CsvRow row = csv_row("check", result);
    row.fill = c->fill->name;
    row.error = f.error;
    row.limit = f.limit;
    row.largest = f.largest;
    report_csv(v, &c->o.s, &row);
}

/* Where the CPU's op is the reference, it is not held against itself. */
static bool is_reference(const LabOp *op, const Variant *v) {
    return !op->reference && !op->op->reference && v->needs == NEEDS_CPU && v->run == op->op->run;
}

/* Every variant of one storage type on one case; the reference is made only if one of them takes the sizes. */
static void check_case(const LabOp *op, const Sizes *s, const Fill *fill, DType dtype,
                       const Variant *const *variants, int n, const Options *o) {
    Case c;
    bool built = false;
    for (int i = 0; i < n; i++) {
        const Variant *v = variants[i];
        if (v->dtype != dtype || variant_refuses(v, s) || is_reference(op, v) ||
            (fill->not_finite && v->flags & NO_NAN))
            continue;
        if (!built) case_build(&c, op, s, dtype, fill);
        built = true;
        check_variant(&c, v, o);
    }
    if (built) case_free(&c);
}

static void check_op(const LabOp *op, const Variant *const *variants, int n, const Options *o) {
    static Sizes sizes[MAX_SIZES];
    const int n_sizes = op->check_sizes(sizes, o);
    for (int i = 0; i < n; i++) {
        if (!is_reference(op, variants[i])) continue;
        printf("skip %-22s %-22s the reference itself; make test holds it\n", op->op->name,
               variants[i]->name);
        counts.skipped++;
    }
    for (int i = 0; i < n_sizes; i++)
        for (const Fill *fill = op->fills; fill->name; fill++) {
            if ((fill != op->fills && !sizes[i].adversarial) || !list_matches(o->fill, fill->name)) continue;
            for (int dtype = 0; dtype < 2; dtype++)
                check_case(op, &sizes[i], fill, dtype ? DTYPE_BF16 : DTYPE_F32, variants, n, o);
        }
}

/* ---- timing ---- */

/* True if the variant takes the sizes; says why not where it was asked for by name. */
static bool takes(const LabOp *op, const Variant *v, const Sizes *s, const Options *o) {
    const char *refuses = variant_refuses(v, s);
    if (!refuses) return true;
    if (!*o->variants) return false;
    printf("skip %-22s %-22s %-34s it does not take this: %s\n", op->op->name, v->name, sizes_text(s),
           refuses);
    counts.left_out++;
    return false;
}

/* Variants of one device and storage type share their buffers. */
static void time_op(const LabOp *op, const Variant *const *variants, int n, const Options *o) {
    static Sizes sizes[MAX_SIZES];
    static const struct {
        bool gpu;
        DType dtype;
    } groups[] = {
        {false, DTYPE_F32 },
        {true,  DTYPE_F32 },
        {true,  DTYPE_BF16}
    };
    for (int g = 0; g < 3; g++) {
        const Needs needs = groups[g].gpu ? NEEDS_GPU : NEEDS_CPU;
        const int n_sizes = op->time_sizes(sizes, o, needs);
        for (int i = 0; i < n_sizes; i++) {
            const Variant *group[MAX_VARIANTS];
            int n_group = 0;
            for (int v = 0; v < n; v++)
                if ((variants[v]->needs != NEEDS_CPU) == groups[g].gpu &&
                    variants[v]->dtype == groups[g].dtype && takes(op, variants[v], &sizes[i], o))
                    group[n_group++] = variants[v];
            if (n_group) time_variants(op, &sizes[i], group, n_group, o);
        }
    }
}

/* ---- ops ---- */

/* The selected variants that this machine runs; the others are counted as skipped. */
static int runnable(const Variant **variants, const LabOp *op, const Options *o) {
    const Variant *selected[MAX_VARIANTS];
    const int n = select_variants(selected, MAX_VARIANTS, op->op->name, o->variants);
    int n_runnable = 0;
    for (int i = 0; i < n; i++) {
        const char *lacks = variant_lacks(selected[i]);
        if (!lacks) {
            variants[n_runnable++] = selected[i];
            continue;
        }
        printf("skip %-22s %-22s %s\n", op->op->name, selected[i]->name, lacks);
        counts.skipped++;
    }
    return n_runnable;
}

static bool is_op(const LabOp *op, const char *name) {
    return list_matches(name, op->op->name);
}

static bool has_variant(const LabOp *op, const char *names) {
    const Variant *selected[1];
    return select_variants(selected, 1, op->op->name, names) > 0;
}

static bool has_fill(const LabOp *op, const char *name) {
    for (const Fill *fill = op->fills; fill->name; fill++)
        if (list_matches(name, fill->name)) return true;
    return false;
}

/* True if a name of the list belongs to none of the ops that `among`, a list too, names; it is copied. */
static bool unknown_name(char name[512], const char *list, const char *among, const LabOp *const *ops, int n,
                         bool (*has)(const LabOp *op, const char *name)) {
    char copy[512];
    snprintf(copy, sizeof copy, "%s", list);
    for (char *rest = copy, *item; (item = strsep(&rest, ",")) != NULL;) {
        bool found = false;
        for (int i = 0; i < n; i++)
            found = found || (list_matches(among, ops[i]->op->name) && has(ops[i], item));
        if (found) continue;
        snprintf(name, 512, "%s", item);
        return true;
    }
    return false;
}

/* Every name on the command line must be an op's, or a variant's or a kind of input of those ops. */
static bool names_known(const LabOp *const *ops, int n, const Options *o, Error *err) {
    char name[512], known[1024] = "";
    for (int i = 0; i < n; i++)
        snprintf(known + strlen(known), sizeof known - strlen(known), " %s", ops[i]->op->name);
    if (unknown_name(name, o->ops, "", ops, n, is_op))
        return fail(err, EXIT_INPUT, "unknown op '%s'; known:%s", name, known);
    if (unknown_name(name, o->variants, o->ops, ops, n, has_variant))
        return fail(err, EXIT_INPUT,
                    "--variant: no variant of these ops is named '%s'; hint: dev/lab --list%s", name,
                    ops_cuda_bf16 ? "" : "; built without nvcc it has the CPU's rows alone");
    if (unknown_name(name, o->fill, o->ops, ops, n, has_fill))
        return fail(err, EXIT_INPUT, "--fill: no check of these ops has an input of the kind '%s'", name);
    return true;
}

/* --channels is the width of every size that is timed: heads of another size would round it. */
static bool channels_divide(const LabOp *const *ops, int n, const Options *o, Error *err) {
    static Sizes sizes[MAX_SIZES];
    if (!o->channels) return true;
    for (int i = 0; i < n; i++) {
        if (!list_matches(o->ops, ops[i]->op->name)) continue;
        const int n_sizes = ops[i]->time_sizes(sizes, o, NEEDS_CPU);
        for (int k = 0; k < n_sizes; k++)
            if (sizes[k].HD && o->channels % sizes[k].HD)
                return fail(
                    err, EXIT_INPUT,
                    "--channels: expected a multiple of the head size %d, which %s takes; found %d; hint: "
                    "--head-size",
                    sizes[k].HD, ops[i]->op->name, o->channels);
    }
    return true;
}

static void run_op(const LabOp *op, const Options *o) {
    const Variant *variants[MAX_VARIANTS];
    const int n = runnable(variants, op, o);
    if (n == 0) return;
    if (o->check) check_op(op, variants, n, o);
    if (o->time) time_op(op, variants, n, o);
}

/* `status`, or EXIT_RUN with one line where a full disk or a closed pipe took the output. */
static int finish_output(int status) {
    if (fflush(stdout) == 0 && !ferror(stdout)) return status;
    die(&(Error){EXIT_RUN, "the output could not be written"});
}

int main(int argc, char **argv) {
    Options o;
    Error err = {0};
    const LabOp *ops[MAX_OPS];
    const int n_ops = lab_ops(ops);
    if (!rows_sound(&err) || !lab_flags(&o, argc, argv, &err) || !names_known(ops, n_ops, &o, &err) ||
        !channels_divide(ops, n_ops, &o, &err))
        die(&err);
    if (o.help) return lab_usage(), finish_output(0);
    if (o.list) return lab_list(o.ops), finish_output(0);
    lab_table(NEEDS_CPU, DTYPE_F32);
    if (!roofs_open(&o, &err) || !report_open(&o, argc, argv, &err)) die(&err);
    if (o.check && !checker_sees_faults()) counts.failed++;
    for (int i = 0; i < n_ops; i++)
        if (list_matches(o.ops, ops[i]->op->name)) run_op(ops[i], &o);
    if (!report_close(&err)) die(&err);
    if (o.time) printf("lab: %d timed, %d left out\n", counts.timed, counts.left_out);
    if (o.check || counts.skipped)
        printf("lab: %d passed, %d failed, %d skipped\n", counts.passed, counts.failed, counts.skipped);
    if (!o.time && counts.passed + counts.failed + counts.skipped == 0)
        die(&(Error){EXIT_INPUT, "nothing was checked: no selected variant takes these sizes and inputs"});
    return finish_output(counts.failed ? EXIT_RUN : 0);
}
