#include "rows.cuh"
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

/* What is known while the list is read: the layers so far, the residual stream, and what the last step made. */
typedef struct Reading {
    const Step *next, *end;
    const Step *embedding, *last_norm, *head, *draw;
    DecodeLayer layers[DECODE_MAX_LAYERS];
    const void *stream, *made;
    bool good;
    TokenArgs args;
    int64_t rows;
    int T;
} Reading;

static bool need(Reading *r, bool condition) {
    r->good = r->good && condition;
    return r->good;
}

/* The next step, which makes what is made then. */
static const Step *take(Reading *r, StepKind kind) {
    if (!need(r, r->next < r->end && r->next->kind == kind)) return NULL;
    const Step *step = r->next++;
    need(r, step->rows == r->rows && (kind == STEP_DRAW || step->dtype == DTYPE_BF16));
    r->made = step->out;
    return step;
}

/* The same of one that takes what is made now. */
static const Step *take_made(Reading *r, StepKind kind) {
    const void *made = r->made;
    const Step *step = take(r, kind);
    return step && need(r, step->in == made) ? step : NULL;
}

static void take_linear(Reading *r, int OC, int IC, bool gelu, const bf16 **weight, const bf16 **bias) {
    const Step *linear = take_made(r, STEP_LINEAR);
    if (!linear ||
        !need(r, linear->OC == OC && linear->IC == IC && linear->gelu == gelu && linear->bias != NULL))
        return;
    *weight = (const bf16 *)linear->weight;
    *bias = (const bf16 *)linear->bias;
}

/* Of the residual stream, to which all norms but the first add what was made. */
static const Step *take_norm(Reading *r, const bf16 **weight, const bf16 **bias) {
    const void *made = r->made;
    const Step *norm = take(r, STEP_NORM);
    if (!norm || !need(r, norm->in == r->stream && norm->IC == r->args.C)) return NULL;
    const bool is_first = made == r->stream;
    if (!need(r, is_first ? !norm->residual : norm->residual && norm->with == made)) return NULL;
    if (norm->residual) r->stream = norm->residual;
    *weight = (const bf16 *)norm->weight;
    *bias = (const bf16 *)norm->bias;
    return norm;
}

static void take_attention(Reading *r, DecodeLayer *layer) {
    const Step *a = take_made(r, STEP_ATTENTION);
    TokenArgs *args = &r->args;
    if (!a || !need(r, a->HD == DECODE_HD && a->NH * a->HD == args->C)) return;
    need(r, a->positions == args->positions && a->T <= DECODE_MAX_T);
    need(r, args->n_layers == 0 || (a->begins == args->begins && a->window == args->window && a->T == r->T));
    r->T = a->T;
    args->NH = a->NH;
    args->begins = a->begins;
    args->window = a->window;
    layer->cache = (bf16 *)a->cache;
}

static void take_layer(Reading *r) {
    const int C = r->args.C;
    if (!need(r, r->args.n_layers < DECODE_MAX_LAYERS)) return;
    DecodeLayer *layer = &r->layers[r->args.n_layers];
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
    r->last_norm = take_norm(r, &args->ln_f_weight, &args->ln_f_bias);
    const Step *head = take_made(r, STEP_LINEAR);
    if (!head || !need(r, head->IC == args->C && !head->bias && !head->gelu)) return;
    args->head_weight = (const bf16 *)head->weight;
    args->logits = (bf16 *)head->out;
    r->head = head;
}

static void read_steps(Reading *r) {
    enum { HEAD_STEPS = 3 }; /* norm, linear layer, draw */
    const Step *first = r->embedding = take(r, STEP_EMBEDDING);
    if (!first || !need(r, first->positions != NULL)) return;
    r->stream = first->out;
    r->args.C = first->IC;
    r->args.tokens = first->tokens;
    r->args.positions = first->positions;
    r->args.wte = (const bf16 *)first->weight;
    r->args.wpe = (const bf16 *)first->bias;
    while (r->good && r->end - r->next > HEAD_STEPS) take_layer(r);
    if (!need(r, r->args.n_layers > 0)) return;
    take_head(r);
    r->draw = take_made(r, STEP_DRAW);
    if (!need(r, r->draw && r->next == r->end)) return;
    r->args.V = r->draw->draw.V;
    need(r, r->args.V <= r->head->OC);
}

/* ---- its kernels ---- */

struct DecodeStep {
    void *memory;
    DrawArgs draw;
    /* of one sequence */
    TokenArgs token;
    int n_clusters; /* token.cu's; 0: token_wide.cu */
    /* of more; else many.B is 0 */
    RowsArgs many;
    Step embedding, last_norm, head;
    int n_layers;
    DecodeLayer layers[DECODE_MAX_LAYERS];
};

/* Zeros on the device; false: there is no room. */
static bool take_memory(DecodeStep *step, size_t bytes) {
    step->memory = cuda_alloc(bytes);
    if (step->memory) cuda_zero(step->memory, bytes);
    return step->memory != NULL;
}

static bool make_token(DecodeStep *step, const Reading *r) {
    const size_t layers = (size_t)r->args.n_layers * sizeof *r->layers, sums_at = align_256(layers);
    const size_t n_sums = (size_t)token_sums(r->args.n_layers, r->args.C);
    if (!take_memory(step, sums_at + (n_sums + MAX_WORDS) * sizeof(uint64_t))) return false;
    cuda_upload(step->memory, r->layers, layers);
    step->token = r->args;
    step->token.layers = (const DecodeLayer *)step->memory;
    step->token.sums = (uint64_t *)((char *)step->memory + sums_at);
    step->token.largest = step->token.sums + n_sums;
    return true;
}

static bool make_rows(DecodeStep *step, const Reading *r) {
    const TokenArgs *a = &r->args;
    const size_t x = (size_t)ROWS_MAX * (size_t)a->C * sizeof(bf16),
                 parts = (size_t)a->NH * ROWS_MAX * (size_t)a->C * sizeof(HeadPart);
    if (!take_memory(step, x + parts)) return false;
    RowsArgs *many = &step->many;
    many->B = (int)r->rows;
    many->T = r->T;
    many->NH = a->NH;
    many->window = a->window;
    many->positions = a->positions;
    many->begins = a->begins;
    many->residual = (bf16 *)r->embedding->out;
    many->x = (bf16 *)step->memory;
    many->parts = (HeadPart *)((char *)step->memory + x);
    step->embedding = *r->embedding;
    step->last_norm = *r->last_norm;
    step->head = *r->head;
    step->n_layers = a->n_layers;
    memcpy(step->layers, r->layers, sizeof step->layers);
    return true;
}

static DecodeStep *make_step(const Reading *r) {
    const bool one = r->rows == 1;
    const int n_clusters = one ? token_clusters(r->args.NH) : 0;
    if (one ? !n_clusters && !token_wide_fits(r->args.NH) : !rows_fit(r->rows, r->args.NH)) return NULL;
    DecodeStep *step = (DecodeStep *)calloc(1, sizeof *step);
    if (!step) return NULL;
    step->n_clusters = n_clusters;
    step->draw = r->draw->draw;
    if (one ? make_token(step, r) : make_rows(step, r)) return step;
    free(step);
    return NULL;
}

DecodeStep *steps_end(size_t n_launches) {
    captured.on = false;
    if ((size_t)captured.n != n_launches || captured.n == 0 || captured.n > MAX_STEPS) return NULL;
    Reading *r = (Reading *)calloc(1, sizeof *r);
    if (!r) return NULL;
    r->next = captured.all;
    r->end = captured.all + captured.n;
    r->rows = captured.all[0].rows;
    r->good = true;
    read_steps(r);
    DecodeStep *step = r->good ? make_step(r) : NULL;
    free(r);
    return step;
}

static void launch_many(const DecodeStep *step) {
    const RowsArgs *a = &step->many;
    const Step *first = &step->embedding, *head = &step->head, *norm = &step->last_norm;
    const bf16 *branch_bias = NULL;
    embedding_forward<bf16>(first->out, first->tokens, first->positions, first->weight, first->bias, a->B, 1,
                            first->IC);
    for (int l = 0; l < step->n_layers; l++) {
        const DecodeLayer *layer = &step->layers[l];
        rows_norm(*a, branch_bias, layer->ln_1_weight, layer->ln_1_bias, NULL);
        rows_attention(*a, *layer);
        rows_norm(*a, layer->attn_proj_bias, layer->ln_2_weight, layer->ln_2_bias, NULL);
        rows_mlp(*a, *layer);
        branch_bias = layer->mlp_proj_bias;
    }
    rows_norm(*a, branch_bias, (const bf16 *)norm->weight, (const bf16 *)norm->bias, (bf16 *)norm->out);
    linear_forward<bf16>(matrix(head->out, DTYPE_BF16, a->B, head->OC), no_matrix(),
                         matrix(head->in, DTYPE_BF16, a->B, head->IC),
                         matrix(head->weight, DTYPE_BF16, head->OC, head->IC), NULL);
    draw_tokens<bf16>(&step->draw);
}

static void launch_one(DecodeStep *step) {
    step->token.launch++;
    if (!step->n_clusters) {
        token_wide_launch(step->token);
        draw_tokens<bf16>(&step->draw);
        return;
    }
    const LargestArgs largest = token_launch(step->token, step->n_clusters);
    if (draws_largest(&step->draw))
        draw_largest(&step->draw, &largest);
    else
        draw_tokens<bf16>(&step->draw);
}

bool decode_step_is_graph(const DecodeStep *step) {
    return step->many.B > 0;
}

void decode_step_launch(DecodeStep *step) {
    if (step->many.B) {
        launch_many(step);
    } else {
        launch_one(step);
    }
}

const char *decode_step_name(const DecodeStep *step) {
    return step->many.B ? "rows_attention" : step->n_clusters ? "token_kernel" : "token_wide_kernel";
}

void decode_step_free(DecodeStep *step) {
    if (!step) return;
    cuda_free(step->memory);
    free(step);
}
