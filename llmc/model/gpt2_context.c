/* Context parallel by heads (DeepSpeed-Ulysses: Jacobs et al. 2023). Each of K ranks has a K-th of every sequence's tokens.
 * All but attention works token by token. Around attention ranks exchange tokens for heads: each then has all tokens of
 * a K-th of the heads, and the kernels of whole sequences serve. */
#include "gpt2_pass.h"
#include "llmc/base/integers.h"

bool gpt2_check_context(const GPT2Config *config, int T, int n_ranks, Error *err) {
    if (config->n_head % n_ranks)
        return fail(
            err, EXIT_INPUT,
            "--context-gpus %d does not divide the model's %d heads; hint: each rank takes some of them",
            n_ranks, config->n_head);
    return T % n_ranks == 0 ||
           fail(err, EXIT_INPUT, "--context-gpus %d does not divide --seq %d; hint: --seq %d", n_ranks, T,
                (int)round_up(T, n_ranks));
}

/* What a rank has of one token and one part: the heads of a rank. */
static int64_t width_of(const Batch *b) {
    return (int64_t)heads_of(b) * b->HD;
}

static void exchange(GPT2 *model, const Batch *b, floatX *out, const floatX *in, int parts) {
    Comm *comm = model->options.context;
    const int64_t n = b->N * parts * width_of(b);
    comm->all_to_all(comm, STREAM_MAIN, out, in, n * (int64_t)dtype_bytes(model->ops->dtype));
}

/* For one sequence what comes from the ranks, one behind the other, is in its place. */
void heads_from_tokens(GPT2 *model, const Batch *b, floatX *x, int parts, floatX *packed, floatX *received) {
    const int K = b->context.n_ranks;
    if (K == 1) return;
    model->ops->transpose_rows(packed, x, b->N * parts, K, width_of(b));
    exchange(model, b, b->B == 1 ? x : received, packed, parts);
    if (b->B > 1) model->ops->transpose_rows(x, received, K, b->B, b->T * parts * width_of(b));
}

void tokens_from_heads(GPT2 *model, const Batch *b, floatX *out, const floatX *x, int parts, floatX *packed,
                       floatX *received) {
    const int K = b->context.n_ranks;
    if (K == 1) return;
    if (b->B > 1) model->ops->transpose_rows(packed, x, b->B, K, b->T * parts * width_of(b));
    exchange(model, b, received, b->B == 1 ? x : packed, parts);
    model->ops->transpose_rows(out, received, K, b->N * parts, width_of(b));
}
