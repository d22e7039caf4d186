/* The kinds of operands, for Op.describe: OPERANDS(result(...), input(...)). */
#pragma once
#include <stdlib.h>
#include <string.h>
#include "op.h"

#define OPERANDS(...)                                                                                        \
    const Operand operands[] = {__VA_ARGS__};                                                                \
    memcpy(o, operands, sizeof operands);                                                                    \
    return sizeof operands / sizeof *operands

static inline Operand input(const char *name, int64_t elems, float scale, float offset) {
    return (Operand){.name = name, .role = IN, .elems = elems, .scale = scale, .offset = offset};
}
static inline Operand input_f32(const char *name, int64_t elems, float scale, float offset) {
    return (Operand){name, IN, STORE_F32, elems, scale, offset, .row = 0};
}
static inline Operand tokens(const char *name, int64_t elems, int vocabulary) {
    return (Operand){name, IN, STORE_I32, elems, 0, (float)vocabulary, .row = 0};
}
/* Rows of `row` elements. */
static inline Operand result(const char *name, int64_t elems, int row) {
    return (Operand){.name = name, .role = OUT, .elems = elems, .row = row};
}
static inline Operand result_f32(const char *name, int64_t elems) {
    return (Operand){.name = name, .role = OUT, .store = STORE_F32, .elems = elems, .row = 1};
}
/* += in fp32 */
static inline Operand sum_f32(const char *name, int64_t elems, int row, double limit) {
    return (Operand){.name = name,
                     .role = ADD,
                     .store = STORE_F32,
                     .elems = elems,
                     .scale = 1,
                     .limit = limit,
                     .row = row};
}
static inline Operand with_role(Operand o, Role role) {
    o.role = role;
    o.scale = role == OUT ? 0 : 1;
    return o;
}
/* scratch of the size that Ops.scratch_bytes says */
static inline Operand space(void) {
    return (Operand){.name = "scratch", .role = SPACE, .elems = -1};
}

/* The table of attention's blocks. */
static inline int64_t seen_block_words(const Sizes *s) {
    return s->blocks.window ? (int64_t)sparse_table_words(s->blocks, s->T, s->T) : 0;
}
static inline Operand seen_blocks(const Sizes *s) {
    return (Operand){.name = "blocks", .role = IN, .store = STORE_I32, .elems = seen_block_words(s)};
}
static inline void fill_seen_blocks(float *table, const Sizes *s) {
    const size_t words = (size_t)seen_block_words(s);
    int32_t *ints = words ? calloc(words, sizeof *ints) : NULL;
    if (!ints) return;
    sparse_table(ints, s->blocks, s->T, s->T, 3);
    for (size_t i = 0; i < words; i++) table[i] = (float)ints[i];
    free(ints);
}

/* Standard deviation of the main input. */
static inline float scale_of(const Sizes *s) {
    return s->scale > 0 ? s->scale : 1;
}
