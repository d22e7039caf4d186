/* The lab's rows of attention on the CPU: the trainer's backend and the textbook; and the trainer's masks. */
#include <stdlib.h>
#include <string.h>
#include "ladder.h"

/* On the device, as the trainer has it: the key of dropout, and the table of the pattern that was asked for last. */
typedef struct MaskData {
    const Ops *ops;
    uint64_t *key;
    SparsePattern pattern;
    int T;
    int32_t *table;
} MaskData;

static void *mask_memory(const Ops *ops, size_t bytes, const void *from) {
    void *data = ops->device->alloc(bytes);
    if (!data) die(&(Error){EXIT_RUN, "too little memory for a mask"});
    ops->device->upload(data, from, bytes);
    return data;
}

static MaskData *mask_data(const Ops *ops) {
    static MaskData all[3];
    const uint64_t value = DROPOUT_KEY;
    int i = 0;
    while (all[i].ops && all[i].ops != ops) i++;
    if (!all[i].ops) all[i] = (MaskData){.ops = ops, .key = mask_memory(ops, sizeof value, &value)};
    return &all[i];
}

static BlockSparse sparse_mask(MaskData *data, SparsePattern p, int T) {
    if (p.window == 0) return (BlockSparse){0};
    if (memcmp(&data->pattern, &p, sizeof p) || data->T != T) {
        const size_t words = sparse_table_words(p, T, T);
        int32_t *table = calloc(words, sizeof *table);
        if (!table) abort();
        sparse_table(table, p, T, T, 0);
        data->ops->device->free(data->table);
        data->table = mask_memory(data->ops, words * sizeof *table, table);
        data->pattern = p;
        data->T = T;
        free(table);
    }
    return sparse_of(p, data->table, T, T);
}

AttentionMask attention_mask(const Call *c) {
    MaskData *data = mask_data(c->ops);
    return (AttentionMask){
        .window = c->s.window,
        .dropout = {data->key, DROPOUT_SITE, c->s.dropout ? DROPOUT_P : 0},
        .sparse = sparse_mask(data, c->s.blocks, c->s.T),
    };
}

static void cpu_forward(const Call *c) {
    const AttentionMask mask = attention_mask(c);
    ops_cpu.attention_forward(c->p[FORWARD_OUT], c->p[FORWARD_LSE], c->p[FORWARD_QKV], &mask, c->s.B, c->s.T,
                              c->s.NH, c->s.HD);
}
static void cpu_backward(const Call *c) {
    const AttentionMask mask = attention_mask(c);
    ops_cpu.attention_backward(c->p[BACKWARD_DQKV], c->p[BACKWARD_DOUT], c->p[BACKWARD_OUT],
                               c->p[BACKWARD_QKV], c->p[BACKWARD_LSE], NULL, &mask, c->p[BACKWARD_SCRATCH],
                               c->s.B, c->s.T, c->s.NH, c->s.HD);
}

const Variant cpu_variants[] = {
    {.op = "attention_forward",
     .name = "cpu",
     .run = cpu_forward,
     .flags = CAUSAL_ONLY | PACKED_ONLY | TAKES_DROPOUT | TAKES_WINDOW | TAKES_BLOCKS,
     .teaches = "the trainer's CPU backend: tiles of keys, vectors, threads over heads and queries"},
    {.op = "attention_forward",
     .name = "textbook",
     .run = textbook,
     .flags = TAKES_SPARSE | TAKES_DROPOUT | TAKES_WINDOW | TAKES_BLOCKS,
     .teaches = "F0: one query at a time in plain C, one thread"},
    {.op = "attention_backward",
     .name = "cpu",
     .run = cpu_backward,
     .flags = CAUSAL_ONLY | PACKED_ONLY | TAKES_DROPOUT | TAKES_WINDOW | TAKES_BLOCKS,
     .teaches = "the same for backward: P from the logsumexp, nothing of size T*T"},
    {.op = "attention_backward",
     .name = "autograd_graph",
     .run = autograd_graph,
     .max_T = 65,
     .flags = NO_NAN,
     .teaches = "F0: a graph of scalar nodes, forward and backward; no formula of a gradient"},
    {.name = NULL                                                                               },
};
