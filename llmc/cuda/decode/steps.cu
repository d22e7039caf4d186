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

/* What is known while the list is read: the layers so far, the residual stream, and what the last step made. */
typedef struct Reading {
    const Step *next, *end;
    TokenLayer layers[TOKEN_MAX_LAYERS];
    const void *stream, *made;
    bool good;
    TokenArgs args;
} Reading;

static bool need(Reading *r, bool condition) {
    r->good = r->good && condition;
    return r->good;
}

/* The next step, which makes what is made then; the caller looks at what it takes. */
static const Step *take(Reading *r, StepKind kind) {
    if (!need(r, r->next < r->end && r->next->kind == kind)) return NULL;
    const Step *step = r->next++;
    need(r, step->rows == 1 && (kind == STEP_DRAW || step->dtype == DTYPE_BF16));
    r->made = step->out;
    return step;
}

static void take_linear(Reading *r, int OC, int IC, bool gelu, const bf16 **weight, const bf16 **bias) {
    const void *in = r->made;
    const Step *linear = take(r, STEP_LINEAR);
    if (!linear || !need(r, linear->in == in && linear->OC == OC && linear->IC == IC &&
                                linear->gelu == gelu && linear->bias))
        return;
    *weight = (const bf16 *)linear->weight;
    *bias = (const bf16 *)linear->bias;
}

/* Of the residual stream, to which all norms but the first add what was made. */
static void take_norm(Reading *r, const bf16 **weight, const bf16 **bias) {
    const void *made = r->made;
    const Step *norm = take(r, STEP_NORM);
    if (!norm || !need(r, norm->in == r->stream && norm->IC == r->args.C)) return;
    const bool is_first = made == r->stream;
    if (!need(r, is_first ? !norm->residual : norm->residual && norm->with == made)) return;
    if (norm->residual) r->stream = norm->residual;
    *weight = (const bf16 *)norm->weight;
    *bias = (const bf16 *)norm->bias;
}

static void take_attention(Reading *r, TokenLayer *layer) {
    const void *in = r->made;
    const Step *a = take(r, STEP_ATTENTION);
    TokenArgs *args = &r->args;
    if (!a || !need(r, a->in == in && a->HD == TOKEN_HD && a->NH * a->HD == args->C)) return;
    need(r, a->positions == args->positions && a->T <= TOKEN_MAX_T);
    need(r, args->n_layers == 0 || (a->begins == args->begins && a->window == args->window));
    args->NH = a->NH;
    args->begins = a->begins;
    args->window = a->window;
    layer->cache = (bf16 *)a->cache;
}

static void take_layer(Reading *r) {
    const int C = r->args.C;
    if (!need(r, r->args.n_layers < TOKEN_MAX_LAYERS)) return;
    TokenLayer *layer = &r->layers[r->args.n_layers];
    take_norm(r, &layer->ln_1_weight, &layer->ln_1_bias);
    take_linear(r, 3 * C, C, false, &layer->qkv_weight, &layer->qkv_bias);
    take_attention(r, layer);
    take_linear(r, C, C, false, &layer->attn_proj_weight, &layer->attn_proj_bias);
    take_norm(r, &layer->ln_2_weight, &layer->ln_2_bias);
    take_linear(r, 4 * C, C, true, &layer->fc_weight, &layer->fc_bias);
    take_linear(r, C, 4 * C, false, &layer->mlp_proj_weight, &layer->mlp_proj_bias);
    r->args.n_layers++;
}

/* The last norm, and the head. */
static void take_head(Reading *r) {
    TokenArgs *args = &r->args;
    take_norm(r, &args->ln_f_weight, &args->ln_f_bias);
    const void *in = r->made;
    const Step *head = take(r, STEP_LINEAR);
    if (!head || !need(r, head->in == in && head->IC == args->C && !head->bias && !head->gelu)) return;
    args->head_weight = (const bf16 *)head->weight;
    args->logits = (bf16 *)head->out;
    args->V = head->OC;
}

static void read_steps(Reading *r) {
    enum { HEAD_STEPS = 3 }; /* norm, linear layer, draw */
    const Step *first = take(r, STEP_EMBEDDING);
    if (!first || !need(r, first->positions != NULL)) return;
    r->stream = first->out;
    r->args.C = first->IC;
    r->args.tokens = first->tokens;
    r->args.positions = first->positions;
    r->args.wte = (const bf16 *)first->weight;
    r->args.wpe = (const bf16 *)first->bias;
    while (r->good && r->end - r->next > HEAD_STEPS) take_layer(r);
    if (!need(r, r->args.n_layers > 0 && r->args.NH <= TOKEN_MAX_NH)) return;
    take_head(r);
    const void *in = r->made;
    const Step *draw = take(r, STEP_DRAW);
    need(r, draw && draw->in == in);
}

/* ---- the kernel's graph ---- */

static TokenKernel *make_kernel(const Reading *r, const DrawArgs *draw) {
    const size_t layers = (size_t)r->args.n_layers * sizeof *r->layers, sums_at = align_256(layers);
    const size_t bytes = sums_at + (size_t)token_sums(r->args.n_layers, r->args.C) * sizeof(uint64_t);
    TokenKernel *kernel = (TokenKernel *)calloc(1, sizeof *kernel);
    if (!kernel) return NULL;
    kernel->memory = cuda_alloc(bytes);
    if (!kernel->memory) {
        free(kernel);
        return NULL;
    }
    cuda_zero(kernel->memory, bytes);
    cuda_upload(kernel->memory, r->layers, layers);
    kernel->args = r->args;
    kernel->args.layers = (const TokenLayer *)kernel->memory;
    kernel->args.sums = (uint64_t *)((char *)kernel->memory + sums_at);
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
    TokenKernel *kernel = r->good && r->next == r->end && token_fits(r->args.NH)
                              ? make_kernel(r, &captured.all[captured.n - 1].draw)
                              : NULL;
    free(r);
    return kernel;
}

void token_kernel_launch(TokenKernel *kernel) {
    kernel->args.launch++;
    token_launch(kernel->args);
    draw_tokens<bf16>(&kernel->draw);
    cuda_kernel_ran = "token_kernel";
}

void token_kernel_free(TokenKernel *kernel) {
    if (!kernel) return;
    cuda_free(kernel->memory);
    free(kernel);
}
