/* F0, attention as a textbook has it, on the CPU: one query at a time in plain C; and over a graph of scalar
 * autograd nodes, where backward is not written at all.
 *
 * Teaches: what everything else computes, and what it costs to keep every intermediate number as an object of its
 * own: a node takes 32 bytes and a visit each way for one multiplication.
 *
 *   FLOP   2 (HD + DV) for each pair (the graph: 8 bytes of value and gradient, twice, for each of them) */
#include <math.h>
#include <stdlib.h>
#include "attention.h"

/* ---- one query at a time ---- */

typedef struct Head {
    const float *q, *k, *v; /* row 0 */
    int64_t row;            /* of query 0 in (B,NH,T) */
    int64_t out;            /* offset of query 0 in out */
} Head;

static Head head_of(const Sizes *s, const float *qkv, int b, int h) {
    const AttentionLayout l = attention_layout(s);
    return (Head){.q = qkv + l.q + (int64_t)b * s->T * l.q_stride + h * s->HD,
                  .k = qkv + l.k + (int64_t)b * s->Tk * l.k_stride + h * s->HD,
                  .v = qkv + l.v + (int64_t)b * s->Tk * l.v_stride + h * s->DV,
                  .row = ((int64_t)b * s->NH + h) * s->T,
                  .out = (int64_t)b * s->T * l.out_stride + h * s->DV};
}

static bool sees(const Sizes *s, int i, int j) {
    return j < attention_visible(s, i) && j >= attention_first(s, i) &&
           attention_block_set(s, i / SPARSE_BLOCK, j / SPARSE_BLOCK);
}

static float dot(const float *a, const float *b, int n) {
    float sum = 0;
    for (int i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* O_i and L_i; p (Tk) is space. */
static void one_query(const Sizes *s, const Head *head, int i, float *out, float *lse, float *p) {
    const AttentionLayout l = attention_layout(s);
    const float *q = head->q + i * l.q_stride;
    float max = -INFINITY, sum = 0;
    for (int j = 0; j < s->Tk; j++) {
        p[j] = sees(s, i, j) ? dot(q, head->k + j * l.k_stride, s->HD) / sqrtf((float)s->HD) : -INFINITY;
        if (!(p[j] <= max)) max = p[j];
    }
    for (int d = 0; d < s->DV; d++) out[d] = 0;
    for (int j = 0; j < s->Tk; j++) {
        if (!sees(s, i, j)) continue;
        p[j] = expf(p[j] - max);
        sum += p[j];
        const float weight = p[j] * attention_dropout(s, head->row + i, j);
        for (int d = 0; d < s->DV; d++) out[d] += weight * head->v[j * l.v_stride + d];
    }
    for (int d = 0; d < s->DV && sum != 0; d++) out[d] /= sum;
    *lse = max + logf(sum);
}

void textbook(const Call *c) {
    const Sizes *s = &c->s;
    const AttentionLayout l = attention_layout(s);
    float *p = lab_malloc(sizeof *p * (size_t)s->Tk);
    for (int b = 0; b < s->B; b++)
        for (int h = 0; h < s->NH; h++) {
            const Head head = head_of(s, c->p[FORWARD_QKV], b, h);
            for (int i = 0; i < s->T; i++)
                one_query(s, &head, i, (float *)c->p[FORWARD_OUT] + head.out + i * l.out_stride,
                          (float *)c->p[FORWARD_LSE] + head.row + i, p);
        }
    free(p);
}

/* ---- a graph of scalar nodes ---- */

typedef enum NodeOp { LEAF, ADD_NODES, MULTIPLY, EXP, DIVIDE } NodeOp;

typedef struct Node {
    NodeOp op;
    float value, gradient;
    int a, b; /* operands: earlier nodes */
} Node;

typedef struct Graph {
    Node *nodes;
    int n, capacity;
} Graph;

static int node(Graph *g, NodeOp op, float value, int a, int b) {
    if (g->n == g->capacity) {
        g->capacity = g->capacity ? 2 * g->capacity : 1 << 16;
        g->nodes = realloc(g->nodes, sizeof(Node) * (size_t)g->capacity);
        if (!g->nodes) abort();
    }
    g->nodes[g->n] = (Node){op, value, 0, a, b};
    return g->n++;
}
static int add(Graph *g, int a, int b) {
    return node(g, ADD_NODES, g->nodes[a].value + g->nodes[b].value, a, b);
}
static int multiply(Graph *g, int a, int b) {
    return node(g, MULTIPLY, g->nodes[a].value * g->nodes[b].value, a, b);
}
static int divide(Graph *g, int a, int b) {
    return node(g, DIVIDE, g->nodes[a].value / g->nodes[b].value, a, b);
}
/* The nodes first, first+1, ... of a row of values. */
static int leaves(Graph *g, const float *x, int64_t stride, int rows, int columns) {
    const int first = g->n;
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < columns; i++) node(g, LEAF, x[r * stride + i], 0, 0);
    return first;
}

/* From the last node to the first, every node hands its gradient to its operands. */
static void backward(Graph *g) {
    for (int i = g->n - 1; i >= 0; i--) {
        const Node *x = &g->nodes[i];
        Node *a = &g->nodes[x->a], *b = &g->nodes[x->b];
        switch (x->op) {
        case LEAF:
            break;
        case ADD_NODES:
            a->gradient += x->gradient, b->gradient += x->gradient;
            break;
        case MULTIPLY: {
            const float to_a = x->gradient * b->value, to_b = x->gradient * a->value;
            a->gradient += to_a, b->gradient += to_b;
            break;
        }
        case EXP:
            a->gradient += x->gradient * x->value;
            break;
        case DIVIDE:
            a->gradient += x->gradient / b->value;
            b->gradient -= x->gradient * x->value / b->value;
            break;
        }
    }
}

/* The nodes of query i's output, from those of q, k and v of the head; each takes its gradient from dout. The
 * maximum is a constant: the softmax does not depend on it. */
static void query_nodes(Graph *g, const Sizes *s, int i, int q, int k, int v, const float *dout, float max) {
    const int n = attention_visible(s, i) < s->Tk ? attention_visible(s, i) : s->Tk;
    const int scale = node(g, LEAF, 1 / sqrtf((float)s->HD), 0, 0), minus_max = node(g, LEAF, -max, 0, 0);
    int *p = lab_malloc(sizeof *p * (size_t)s->Tk), sum = -1;
    for (int j = 0; j < n; j++) {
        int score = multiply(g, q + i * s->HD, k + j * s->HD);
        for (int d = 1; d < s->HD; d++)
            score = add(g, score, multiply(g, q + i * s->HD + d, k + j * s->HD + d));
        const int shifted = add(g, multiply(g, score, scale), minus_max);
        p[j] = node(g, EXP, expf(g->nodes[shifted].value), shifted, 0);
        sum = sum < 0 ? p[j] : add(g, sum, p[j]);
    }
    for (int d = 0; d < s->DV && n > 0; d++) {
        int o = multiply(g, p[0], v + d);
        for (int j = 1; j < n; j++) o = add(g, o, multiply(g, p[j], v + j * s->DV + d));
        o = divide(g, o, sum);
        g->nodes[o].gradient = dout[d];
    }
    free(p);
}

/* Takes lse in the place of the maximum: any constant near it does. */
void autograd_graph(const Call *c) {
    const Sizes *s = &c->s;
    const AttentionLayout l = attention_layout(s);
    float *dqkv = c->p[BACKWARD_DQKV];
    const float *qkv = c->p[BACKWARD_QKV], *lse = c->p[BACKWARD_LSE], *dout = c->p[BACKWARD_DOUT];
    Graph g = {0};
    for (int b = 0; b < s->B; b++)
        for (int h = 0; h < s->NH; h++) {
            const Head head = head_of(s, qkv, b, h);
            g.n = 0;
            const int q = leaves(&g, head.q, l.q_stride, s->T, s->HD);
            const int k = leaves(&g, head.k, l.k_stride, s->Tk, s->HD);
            const int v = leaves(&g, head.v, l.v_stride, s->Tk, s->DV);
            for (int i = 0; i < s->T; i++)
                query_nodes(&g, s, i, q, k, v, dout + head.out + i * l.out_stride, lse[head.row + i]);
            backward(&g);
            for (int i = 0; i < s->T * s->HD; i++)
                dqkv[head.q - qkv + i / s->HD * l.q_stride + i % s->HD] = g.nodes[q + i].gradient;
            for (int j = 0; j < s->Tk * s->HD; j++)
                dqkv[head.k - qkv + j / s->HD * l.k_stride + j % s->HD] = g.nodes[k + j].gradient;
            for (int j = 0; j < s->Tk * s->DV; j++)
                dqkv[head.v - qkv + j / s->DV * l.v_stride + j % s->DV] = g.nodes[v + j].gradient;
        }
    free(g.nodes);
}
