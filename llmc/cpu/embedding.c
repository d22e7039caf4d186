/* Token + position embedding. */
#include "cpu.h"
#include "llmc/base/parallel.h"
#include "vec.h"

enum { ROWS = 16, STRIP = 32 }; /* rows of a forward task; columns of a backward task, two cache lines */

typedef struct Forward {
    float *out;
    const int32_t *tokens, *positions;
    const float *wte, *wpe;
    int64_t N, T, C;
} Forward;

/* Task: ROWS rows. */
static void forward_rows(const void *args, int64_t task) {
    const Forward *f = args;
    for (int64_t n = task * ROWS; n < min_i64(f->N, (task + 1) * ROWS); n++) {
        const int64_t first = f->positions ? f->positions[n / f->T] : 0;
        const float *token = f->wte + f->tokens[n] * f->C, *position = f->wpe + (first + n % f->T) * f->C;
        for (int64_t c = 0; c < f->C; c += VEC)
            vec_store_n(f->out + n * f->C + c,
                        vec_load_n(token + c, f->C - c) + vec_load_n(position + c, f->C - c), f->C - c);
    }
}

void cpu_embedding_forward(floatX *out, const int32_t *tokens, const int32_t *positions, const floatX *wte,
                           const floatX *wpe, int B, int T, int C) {
    Forward f = {out, tokens, positions, wte, wpe, (int64_t)B * T, T, C};
    cpu_parallel_for(ceil_div(f.N, ROWS), forward_rows, &f);
}

typedef struct Backward {
    float *dwte, *dwpe;
    const float *dout;
    const int32_t *tokens;
    int64_t N, T, C;
} Backward;

/* Task: STRIP columns of both gradients, so that no two threads meet in a row and the rows of a token are
 * added in the order of the text, whatever the number of threads. */
static void backward_columns(const void *args, int64_t task) {
    const Backward *f = args;
    int64_t begin = task * STRIP, end = min_i64(f->C, begin + STRIP);
    for (int64_t n = 0; n < f->N; n++) {
        float *token = f->dwte + f->tokens[n] * f->C, *position = f->dwpe + n % f->T * f->C;
        for (int64_t c = begin; c < end; c += VEC) {
            vec d = vec_load_n(f->dout + n * f->C + c, end - c);
            vec_add_n(token + c, d, end - c);
            vec_add_n(position + c, d, end - c);
        }
    }
}

void cpu_embedding_backward(float *dwte, float *dwpe, const floatX *dout, const int32_t *tokens,
                            void *scratch, int B, int T, int C, int V) {
    Backward f = {dwte, dwpe, dout, tokens, (int64_t)B * T, T, C};
    cpu_parallel_for(ceil_div(C, STRIP), backward_columns, &f);
}
