#include "token.cuh"
#include <stdlib.h>
#include <string.h>
#include "llmc/cuda/cuda_ops.cuh"

/* ---- the list ---- */

enum { MAX_STEPS = 512 };
static struct {
    bool on;
    int n; /* more than MAX_STEPS: too many */
    Step all[MAX_STEPS];
} captured;

void steps_begin(void) {
    captured.on = true;
    captured.n = 0;
}

void step_captured(const Step &step) {
    if (!captured.on) return;
    if (captured.n < MAX_STEPS) captured.all[captured.n] = step;
    captured.n++;
}

/* ---- its form ---- */

struct TokenKernel {
    TokenArgs args;
    DrawArgs draw;
    void *memory;
};

/* What is known while the list is read: the stages so far, the residual stream, and what the last stage made. */
typedef struct Reading {
    const Step *next, *end;
    TokenStage stages[TOKEN_MAX_STAGES];
    int n_stages, n_messages;
    const void *stream, *made;
    int made_at;
    bool good;
    TokenArgs args;
} Reading;

static bool need(Reading *r, bool condition) {
    r->good = r->good && condition;
    return r->good;
}

static const Step *take(Reading *r, StepKind kind) {
    if (!need(r, r->next < r->end && r->next->kind == kind)) return NULL;
    need(r, r->next->rows == 1 && (kind == STEP_DRAW || r->next->dtype == DTYPE_BF16));
    return r->next++;
}

static TokenStage *add_stage(Reading *r, const void *made, int n_made) {
    if (!need(r, r->n_stages < TOKEN_MAX_STAGES)) return NULL;
    TokenStage *stage = &r->stages[r->n_stages++];
    *stage = (TokenStage){};
    stage->in = r->made_at;
    stage->out = r->made_at = r->n_messages;
    r->made = made;
    r->n_messages += messages_of(n_made);
    return stage;
}

/* A linear layer, of what was made or of the norm before it. */
static void read_linear(Reading *r, const Step *norm) {
    const Step *linear = take(r, STEP_LINEAR);
    if (!linear || !need(r, linear->in == (norm ? norm->out : r->made))) return;
    need(r, linear->IC <= TOKEN_MAX_IC && (!norm || (norm->IC == r->args.C && linear->IC == r->args.C)));
    TokenStage *stage = add_stage(r, linear->out, linear->OC);
    if (!stage) return;
    stage->weight = (const bf16 *)linear->weight;
    stage->bias = (const bf16 *)linear->bias;
    stage->OC = linear->OC;
    stage->IC = linear->IC;
    stage->flags = linear->gelu ? STAGE_GELU : 0;
    if (!norm) return;
    stage->flags |= STAGE_NORM | (norm->residual ? STAGE_ADD : 0);
    stage->norm_weight = (const bf16 *)norm->weight;
    stage->norm_bias = (const bf16 *)norm->bias;
}

static void read_norm(Reading *r) {
    const Step *norm = take(r, STEP_NORM);
    if (!norm || !need(r, norm->in == r->stream && (!norm->residual || norm->with == r->made))) return;
    if (norm->residual) r->stream = norm->residual;
    read_linear(r, norm);
}

static void read_attention(Reading *r) {
    const Step *a = take(r, STEP_ATTENTION);
    TokenArgs *args = &r->args;
    if (!a || !need(r, a->in == r->made && a->HD == 64 && a->NH * a->HD == args->C)) return;
    need(r, a->positions == args->positions && ceil_div(a->T, 128) <= TOKEN_MAX_PIECES);
    need(r, r->n_stages > 0 && r->stages[r->n_stages - 1].OC == 3 * args->C);
    need(r, args->NH == 0 || (a->T == args->T && a->begins == args->begins && a->window == args->window));
    args->NH = a->NH;
    args->T = a->T;
    args->begins = a->begins;
    args->window = a->window;
    TokenStage *stage = add_stage(r, a->out, args->C);
    if (!stage) return;
    stage[-1].flags |= STAGE_QKV;
    stage->flags = STAGE_ATTENTION;
    stage->weight = (const bf16 *)a->cache;
}

static void read_steps(Reading *r) {
    const Step *first = take(r, STEP_EMBEDDING);
    if (!first || !need(r, first->positions != NULL && first->IC <= TOKEN_MAX_C)) return;
    r->stream = first->out;
    r->args.C = first->IC;
    r->args.tokens = first->tokens;
    r->args.positions = first->positions;
    r->args.wte = (const bf16 *)first->weight;
    r->args.wpe = (const bf16 *)first->bias;
    while (r->good && r->next < r->end && r->next->kind != STEP_DRAW) {
        if (r->next->kind == STEP_NORM)
            read_norm(r);
        else if (r->next->kind == STEP_ATTENTION)
            read_attention(r);
        else
            read_linear(r, NULL);
    }
    const Step *draw = take(r, STEP_DRAW);
    if (!draw || !need(r, draw->in == r->made && r->n_stages > 0 && r->args.NH > 0)) return;
    TokenStage *last = &r->stages[r->n_stages - 1];
    need(r, !(last->flags & (STAGE_ATTENTION | STAGE_GELU)));
    last->flags |= STAGE_LOGITS;
    r->args.logits = (bf16 *)draw->in;
}

/* ---- the kernel's graph ---- */

static TokenKernel *make_kernel(const Reading *r, const DrawArgs *draw) {
    const size_t stages = align_256((size_t)r->n_stages * sizeof *r->stages);
    const size_t bytes = stages + (size_t)r->n_messages * sizeof(uint64_t);
    TokenKernel *kernel = (TokenKernel *)calloc(1, sizeof *kernel);
    if (!kernel) return NULL;
    kernel->memory = cuda_alloc(bytes);
    if (!kernel->memory) {
        free(kernel);
        return NULL;
    }
    cuda_zero(kernel->memory, bytes);
    cuda_upload(kernel->memory, r->stages, (size_t)r->n_stages * sizeof *r->stages);
    kernel->args = r->args;
    kernel->args.n_stages = r->n_stages;
    kernel->args.stages = (const TokenStage *)kernel->memory;
    kernel->args.messages = (uint64_t *)((char *)kernel->memory + stages);
    kernel->draw = *draw;
    return kernel;
}

TokenKernel *steps_end(size_t n_launches) {
    captured.on = false;
    if ((size_t)captured.n != n_launches || captured.n > MAX_STEPS) return NULL;
    Reading *r = (Reading *)calloc(1, sizeof *r);
    if (!r) return NULL;
    r->next = captured.all;
    r->end = captured.all + captured.n;
    r->good = true;
    read_steps(r);
    TokenKernel *kernel = r->good && r->next == r->end && token_fits(r->args.C, r->args.NH)
                              ? make_kernel(r, &captured.all[captured.n - 1].draw)
                              : NULL;
    free(r);
    return kernel;
}

/* Tags begin anew after 2^32 launches, years later. */
void token_kernel_launch(TokenKernel *kernel) {
    kernel->args.tag++;
    token_launch(kernel->args);
    draw_tokens<bf16>(&kernel->draw);
    cuda_kernel_ran = "token_kernel";
}

void token_kernel_free(TokenKernel *kernel) {
    if (!kernel) return;
    cuda_free(kernel->memory);
    free(kernel);
}
