/* The lab's rows of attention on the CPU: the trainer's backend and the textbook; and the trainer's masks. */
#include "ladder.h"

AttentionMask attention_mask(const Call *c) {
    static struct {
        const Ops *ops;
        uint64_t *key; /* in the device's memory, as the trainer has it */
    } keys[3];
    const uint64_t value = DROPOUT_KEY;
    int i = 0;
    while (keys[i].ops && keys[i].ops != c->ops) i++;
    if (!keys[i].ops) {
        keys[i].ops = c->ops;
        keys[i].key = c->ops->device->alloc(sizeof value);
        if (!keys[i].key) die(&(Error){EXIT_RUN, "too little memory for the key of a mask"});
        c->ops->device->upload(keys[i].key, &value, sizeof value);
    }
    return (AttentionMask){
        .window = c->s.window, .dropout = {keys[i].key, DROPOUT_SITE, c->s.dropout ? DROPOUT_P : 0}
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
     .flags = CAUSAL_ONLY | PACKED_ONLY | TAKES_DROPOUT | TAKES_WINDOW,
     .teaches = "the trainer's CPU backend: tiles of keys, vectors, threads over heads and queries"},
    {.op = "attention_forward",
     .name = "textbook",
     .run = textbook,
     .flags = TAKES_SPARSE | TAKES_DROPOUT | TAKES_WINDOW,
     .teaches = "F0: one query at a time in plain C, one thread"},
    {.op = "attention_backward",
     .name = "cpu",
     .run = cpu_backward,
     .flags = CAUSAL_ONLY | PACKED_ONLY | TAKES_DROPOUT | TAKES_WINDOW,
     .teaches = "the same for backward: P from the logsumexp, nothing of size T*T"},
    {.op = "attention_backward",
     .name = "autograd_graph",
     .run = autograd_graph,
     .max_T = 65,
     .flags = NO_NAN,
     .teaches = "F0: a graph of scalar nodes, forward and backward; no formula of a gradient"},
    {.name = NULL                                                                               },
};
