/* The ops other than attention's forward and backward: at which sizes they are checked and timed, and what their shipped
 * kernels teach. What they are: dev/ops/ops.c.
 *
 * Times are taken at the shapes of a d12 training step, 64 x 1024 tokens of 768 channels (4096 tokens on a CPU). */
#include <string.h>
#include "dev/gelu/ladder.h"
#include "dev/ops/operands.h"

enum {
    WIDTH = 768,
    HEAD_SIZE = 64,
    VOCABULARY = 50257,
    PADDED_VOCABULARY = 50304,
    HEAD_ROWS = 16384,
    GPT2_PARAMETERS = 124475904
};

/* ---- GELU by itself: only the lab has it ---- */

static int describe_gelu_forward(Operand *o, const Sizes *s) {
    OPERANDS(result("out", s->N * s->C, s->C), input("x", s->N * s->C, 1.5f, 0));
}
static double gelu_forward_bytes(const Sizes *s, int elem) {
    return 2.0 * elem * (double)s->N * s->C;
}
/* dx in place: read, then overwritten. */
static int describe_gelu_backward(Operand *o, const Sizes *s) {
    OPERANDS(with_role(result("dx", s->N * s->C, s->C), ADD), input("pre_gelu", s->N * s->C, 1.5f, 0),
             space());
}
static double gelu_backward_bytes(const Sizes *s, int elem) {
    return 3.0 * elem * (double)s->N * s->C;
}
static const Op gelu_forward = {.name = "gelu_forward", .id = N_OPS, .describe = describe_gelu_forward};
static const Op gelu_backward = {.name = "gelu_backward", .id = N_OPS, .describe = describe_gelu_backward};

/* ---- sizes ---- */

/* Odd sizes, and a size of the model's widths; the fields that an op does not know stay unread. */
static int check_sizes(Sizes *list, const Options *o) {
    static const Sizes sizes[] = {
        {.B = 1,   .T = 1,   .N = 1,  .C = 8,   .OC = 16, .IC = 8,   .V = 211,   .Vp = 216,         .fill = FILL_TEXT},
        {      .B = 3, .T = 65, .N = 195, .C = 40, .OC = 24, .IC = 72, .V = 1000, .Vp = 1024, .fill = FILL_TEXT                 },
        { .B = 2,
         .T = 127,
         .N = 254,
         .C = 768,
         .OC = 768,
         .IC = 3072,
         .V = 5003,
         .Vp = 5008,
         .flags = GELU,
         .fill = FILL_TEXT},
    };
    const int n = o->quick ? 2 : 3;
    memcpy(list, sizes, sizeof *sizes * (size_t)n);
    return n;
}
/* Each size twice: added to, and overwritten. */
static int check_sizes_weight(Sizes *list, const Options *o) {
    const int n = check_sizes(list, o);
    for (int i = 0; i < n; i++) {
        list[n + i] = list[i];
        list[n + i].flags |= FIRST;
    }
    return 2 * n;
}
static Sizes cache(int T, int NH, int HD) {
    return (Sizes){.B = 1, .T = T, .Tk = T, .NH = NH, .HD = HD, .DV = HD, .causal = true};
}
static int check_sizes_decode(Sizes *list, const Options *o) {
    list[0] = cache(1, 3, 24);
    list[1] = cache(130, 2, 64);
    list[2] = cache(1023, 2, 128);
    return o->quick ? 2 : 3;
}
/* A multiple of 1024 elements, so that rows of 1024 divide it. */
static int check_sizes_flat(Sizes *list, const Options *o) {
    list[0] = (Sizes){.N = 1024};
    list[1] = (Sizes){.N = 1024 * 1001};
    return o->quick ? 1 : 2;
}

static int64_t rows_of(const Options *o, Needs needs) {
    return o->batch_tokens ? o->batch_tokens : needs == NEEDS_CPU ? 4096 : 65536;
}
static int width_of(const Options *o) {
    return o->channels ? o->channels : WIDTH;
}
static int time_sizes(Sizes *list, const Options *o, Needs needs) {
    const int64_t N = rows_of(o, needs);
    const int T = N % 1024 ? 1 : 1024;
    list[0] = (Sizes){.B = (int)(N / T), .T = T, .N = N, .C = width_of(o), .V = VOCABULARY};
    return 1;
}
static int time_sizes_wide(Sizes *list, const Options *o, Needs needs) {
    list[0] = (Sizes){.N = rows_of(o, needs), .C = 4 * width_of(o)};
    return 1;
}
/* A sequence's last token, at the length of GPT-2's context. */
static int time_sizes_decode(Sizes *list, const Options *o, Needs needs) {
    const int C = width_of(o);
    (void)needs;
    list[0] =
        cache(o->n_T ? o->T[0] : 1024, C < HEAD_SIZE ? 1 : C / HEAD_SIZE, C < HEAD_SIZE ? C : HEAD_SIZE);
    return 1;
}
static int time_sizes_loss(Sizes *list, const Options *o, Needs needs) {
    (void)o;
    list[0] = (Sizes){.N = needs == NEEDS_CPU ? 256 : HEAD_ROWS,
                      .V = VOCABULARY,
                      .Vp = PADDED_VOCABULARY,
                      .fill = FILL_TEXT};
    return 1;
}
static int time_sizes_parameters(Sizes *list, const Options *o, Needs needs) {
    (void)o;
    list[0] =
        (Sizes){.N = needs == NEEDS_CPU ? GPT2_PARAMETERS / 8 / 1024 * 1024 : GPT2_PARAMETERS / 1024 * 1024};
    return 1;
}

/* The linear layers of a block, and the head in its chunk; GELU follows fc (forward) or precedes fcproj (backward). */
static int time_sizes_linear(Sizes *list, const Options *o, Needs needs, bool backward) {
    const int64_t N = rows_of(o, needs);
    const int C = width_of(o), before = backward ? GELU : 0, after = backward ? 0 : GELU;
    list[0] = (Sizes){.what = "qkv", .N = N, .OC = 3 * C, .IC = C};
    list[1] = (Sizes){.what = "proj", .N = N, .OC = C, .IC = C};
    list[2] = (Sizes){.what = "fc", .N = N, .OC = 4 * C, .IC = C, .flags = after};
    list[3] = (Sizes){.what = "fcproj", .N = N, .OC = C, .IC = 4 * C, .flags = before};
    list[4] = (Sizes){.what = "head", .N = HEAD_ROWS, .OC = PADDED_VOCABULARY, .IC = C};
    return needs == NEEDS_CPU ? 4 : 5;
}
static int time_sizes_linear_forward(Sizes *list, const Options *o, Needs needs) {
    return time_sizes_linear(list, o, needs, false);
}
static int time_sizes_linear_backward(Sizes *list, const Options *o, Needs needs) {
    return time_sizes_linear(list, o, needs, true);
}
static int time_sizes_proj(Sizes *list, const Options *o, Needs needs) {
    time_sizes_linear(list, o, needs, true);
    list[0] = list[1];
    return 1;
}
static int time_sizes_weight(Sizes *list, const Options *o, Needs needs) {
    const int n = time_sizes_linear(list, o, needs, true);
    list[n] = list[0];
    list[n].what = "qkv first";
    list[n].flags = FIRST;
    return n + 1;
}

/* Matrices of a model's blocks. */
static int check_sizes_matrices(Sizes *list, const Options *o) {
    list[0] = (Sizes){.N = 2, .OC = 24, .IC = 72};
    list[1] = (Sizes){.N = 1, .OC = 136, .IC = 136};
    return o->quick ? 1 : 2;
}
static int time_sizes_matrices(Sizes *list, const Options *o, Needs needs) {
    const int C = width_of(o), blocks = needs == NEEDS_CPU ? 1 : C > WIDTH ? 48 : 12;
    list[0] = (Sizes){.what = "qkv, proj", .N = blocks, .OC = C, .IC = C, .fill = FILL_TEXT};
    list[1] = (Sizes){.what = "fc, fcproj", .N = blocks, .OC = C, .IC = 4 * C, .fill = FILL_TEXT};
    return 2;
}

/* ---- the tables ---- */

static const Fill fills[] = {
    {"normal", NULL, false},
    {NULL,     NULL, false}
};

static const struct {
    int (*check)(Sizes *list, const Options *o);
    int (*time)(Sizes *list, const Options *o, Needs needs);
} shapes[] = {
    [BY_ROWS] = {check_sizes,          time_sizes                },
    [LINEAR_FORWARD] = {check_sizes,          time_sizes_linear_forward },
    [LINEAR_BACKWARD] = {check_sizes,          time_sizes_linear_backward},
    [LINEAR_PROJ] = {check_sizes,          time_sizes_proj           },
    [LINEAR_WEIGHT] = {check_sizes_weight,   time_sizes_weight         },
    [CACHE] = {check_sizes_decode,   time_sizes_decode         },
    [LOGITS] = {check_sizes,          time_sizes_loss           },
    [PARAMETERS] = {check_sizes_flat,     time_sizes_parameters     },
    [MATRICES] = {check_sizes_matrices, time_sizes_matrices       },
};

/* GELU by itself, then every op of dev/ops/ops.c. */
const LabOp *other_ops(void) {
    static LabOp ops[MAX_OPS] = {
        {.op = &gelu_forward,
         .reference = gelu_forward_reference,
         .bytes = gelu_forward_bytes,
         .check_sizes = check_sizes,
         .time_sizes = time_sizes_wide,
         .fills = fills},
        {.op = &gelu_backward,
         .reference = gelu_backward_reference,
         .bytes = gelu_backward_bytes,
         .check_sizes = check_sizes,
         .time_sizes = time_sizes_wide,
         .fills = fills},
    };
    LabOp *op = &ops[2];
    for (const Op *const *described = described_ops; *described; described++)
        *op++ = (LabOp){.op = *described,
                        .check_sizes = shapes[(*described)->shape].check,
                        .time_sizes = shapes[(*described)->shape].time,
                        .fills = fills};
    return ops;
}

const Variant textbook_variants[] = {
    {.op = "gelu_forward",
     .name = "textbook",
     .run = gelu_textbook_forward,
     .teaches = "plain C: a loop over tanhf"},
    {.op = "gelu_backward",
     .name = "textbook",
     .run = gelu_textbook_backward,
     .teaches = "plain C: the derivative of the tanh form"},
    {.name = NULL                           },
};
