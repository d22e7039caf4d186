/* The checker's own check: variants that are right but for one fault. Each must be refused. */
#include <math.h>
#include <stdio.h>
#include "dev/attention/attention.h"

enum { FAULT_T = 65, FAULT_HD = 64 };

static void right(const Call *c) {
    ops_cpu.attention_forward(c->p[FORWARD_OUT], c->p[FORWARD_LSE], c->p[FORWARD_QKV], &(AttentionMask){0},
                              c->s.B, c->s.T, c->s.NH, c->s.HD);
}
static float *out_of(const Call *c) {
    return c->p[FORWARD_OUT];
}

static void flipped_value(const Call *c) {
    right(c);
    out_of(c)[7 * FAULT_HD + 5] += 0.25f;
}
static void small_error_everywhere(const Call *c) {
    right(c);
    for (int i = 0; i < FAULT_T * FAULT_HD; i++) out_of(c)[i] *= 1.001f;
}
static void one_nan(const Call *c) {
    right(c);
    out_of(c)[FAULT_T * FAULT_HD - 1] = NAN;
}
static void unwritten_value(const Call *c) {
    const float before = out_of(c)[3]; /* the poison */
    right(c);
    out_of(c)[3] = before;
}
static void wrong_lse(const Call *c) {
    right(c);
    ((float *)c->p[FORWARD_LSE])[9] += 0.01f;
}
static void wrote_past_the_end(const Call *c) {
    right(c);
    out_of(c)[FAULT_T * FAULT_HD] = 0;
}
static void wrote_before_the_start(const Call *c) {
    right(c);
    out_of(c)[-1] = 0;
}
static void changed_input(const Call *c) {
    right(c);
    ((float *)c->p[FORWARD_QKV])[0] += 1;
}
/* The last bit of one value differs from run to run. */
static void unsteady(const Call *c) {
    static int n;
    right(c);
    out_of(c)[FAULT_HD] = nextafterf(out_of(c)[FAULT_HD], n++ % 2 ? 10.0f : -10.0f);
}

static const struct {
    const char *name;
    void (*run)(const Call *c);
    bool ok, ok_if_inexact;
} faults[] = {
    {"no fault at all",               right,                  true,  true },
    {"a flipped value",               flipped_value,          false, true },
    {"all values 0.1 % off",          small_error_everywhere, false, true },
    {"a NaN",                         one_nan,                false, false},
    {"a value that was not written",  unwritten_value,        false, false},
    {"a wrong logsumexp",             wrong_lse,              false, true },
    {"a write past the end",          wrote_past_the_end,     false, false},
    {"a write before the start",      wrote_before_the_start, false, false},
    {"a changed input",               changed_input,          false, false},
    {"bits that differ between runs", unsteady,               false, false},
};

bool checker_sees_faults(void) {
    const Sizes s = {
        .B = 1, .T = FAULT_T, .Tk = FAULT_T, .NH = 1, .HD = FAULT_HD, .DV = FAULT_HD, .causal = true};
    Case c;
    bool all = true;
    case_build(&c, &attention_forward_op, &s, DTYPE_F32, &attention_forward_op.fills[0]);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        for (int inexact = 0; inexact < 2; inexact++) {
            const Variant v = {.op = "attention_forward",
                               .name = faults[i].name,
                               .run = faults[i].run,
                               .flags = inexact ? INEXACT : 0};
            const Findings f = case_check(&c, &v, &ops_cpu, 2);
            if (f.ok == (inexact ? faults[i].ok_if_inexact : faults[i].ok)) continue;
            printf("FAIL the checker %s %s%s:%s\n", f.ok ? "lets pass" : "refuses", faults[i].name,
                   inexact ? " in a row that is inexact by design" : "", f.text);
            all = false;
        }
    }
    case_free(&c);
    return all;
}
