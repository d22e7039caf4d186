/* Initial weights (Radford et al. 2019, section 2.3; the 1/sqrt(2 n_layer) scale on the residual
 * projections).
 *
 * A counter-based generator: each value depends on (seed, tensor, element) alone, so any thread, any rank and
 * any staging size give the same weights. */
#include "gpt2.h"
#include <math.h>
#include <stdlib.h>
#include "llmc/base/integers.h"
#include "llmc/base/parallel.h"
#include "llmc/base/random.h"

/* One standard normal from 64 random bits: Box & Muller 1958, cosine branch. */
static float normal_from_bits(uint64_t bits) {
    double u1 = ((double)(bits >> 40) + 0.5) / 16777216.0; /* (0,1), 24 bits */
    double u2 = (double)(bits & 0xFFFFFFFFu) / 4294967296.0;
    return (float)(sqrt(-2.0 * log(u1)) * cos(6.283185307179586 * u2));
}

static float initial_std(TensorInit init, const GPT2Config *config) {
    return init == INIT_RESIDUAL ? 0.02f / sqrtf(2.0f * (float)config->n_layer) : 0.02f;
}

typedef struct Normals {
    float *out; /* (n) */
    int64_t begin, n;
    uint64_t key;
    float std;
} Normals;

enum { NORMALS = 4096 }; /* of a task */

static void draw_normals(const void *args, int64_t task) {
    const Normals *a = args;
    for (int64_t i = task * NORMALS, end = min_i64(i + NORMALS, a->n); i < end; i++)
        a->out[i] =
            a->std * normal_from_bits(random_mix(a->key + (uint64_t)(a->begin + i) * 0x9E3779B97F4A7C15u));
}

static void fill(float *out, int64_t begin, int64_t n, TensorId id, const Tensor *tensor,
                 const GPT2Config *config, uint64_t seed) {
    const float std = initial_std(tensor->init, config);
    const uint64_t key = random_mix(seed * 0x9E3779B97F4A7C15u + (uint64_t)id + 1);
    const int64_t real = id == WTE ? (int64_t)config->vocab_size * tensor->cols : begin + n;
    const int64_t n_real = clamp_i64(real - begin, 0, n); /* the rest: padding rows */
    for (int64_t i = n_real; i < n; i++) out[i] = 0.0f;
    if (tensor->init == INIT_ZERO || tensor->init == INIT_ONE) {
        for (int64_t i = 0; i < n; i++) out[i] = tensor->init == INIT_ONE ? 1.0f : 0.0f;
        return;
    }
    const Normals normals = {out, begin, n_real, key, std};
    cpu_parallel_for(ceil_div(n_real, NORMALS), draw_normals, &normals);
}

enum { STAGE = 1 << 22 }; /* 16 MiB of host memory, whatever the model */

/* Elements are counted through the layers. */
static void init_tensor(GPT2 *model, TensorId id, int layer, uint64_t seed, float host[STAGE]) {
    const Tensor *t = &model->tensors[id];
    for (int64_t begin = 0; begin < t->layer_elems; begin += STAGE) {
        const int64_t n = min_i64(t->layer_elems - begin, STAGE);
        fill(host, layer * t->layer_elems + begin, n, id, t, &model->config, seed);
        gpt2_set_weights(model, host, tensor_at(t, layer) + begin, n);
    }
}

void gpt2_init(GPT2 *model, uint64_t seed) {
    float *host = must_allocate(STAGE * sizeof *host, "new weights on the host");
    for (int id = 0; id < N_TENSORS; id++) {
        const Tensor *tensor = &model->tensors[id];
        for (int layer = 0; layer < tensor->n_layers; layer++)
            init_tensor(model, (TensorId)id, layer, seed, host);
    }
    free(host);
}
