/* Text from the model: one token at a time with a cache of keys and values, temperature and top-k. */
#pragma once
#include "gpt2.h"
#include "llmc/tokenizer/tokenizer.h"

typedef struct SampleOptions {
    const char *prompt; /* NULL or "": starts from end-of-text, or a newline where the tokenizer has none */
    int n_tokens;
    float temperature; /* 0: greedy */
    int top_k;         /* 0: all */
    uint64_t seed;
} SampleOptions;

/* Called with each piece of decoded text as it is drawn. */
typedef void (*SampleSink)(const char *bytes, size_t n, void *user);

/* Draws one token from V logits. temperature 0 or top_k 1: the largest, the lowest id among equals, and *rng
 * is not touched. Else softmax(logits / temperature) over the top_k largest (0: all V; among equals the
 * lowest ids stay); *rng advances once. NaN and -inf are never drawn while there is a finite logit; +inf
 * always is. */
int sample_token(const float *logits, int V, float temperature, int top_k, uint64_t *rng);

/* Sends the prompt and the text drawn after it to the sink, n_tokens tokens, a piece each. A piece can be a
 * part of a UTF-8 character. Same seed, same weights, same text.
 * Uses the model's weights only (no activation of a training step is touched). Past max_seq_len the window
 * slides: the last half of the context is fed again. A NULL tokenizer gives token ids as text. Ends early, and true,
 * where model->stop says so. False on a NaN or infinite logit. */
bool sample(GPT2 *model, const Tokenizer *tokenizer, const SampleOptions *options, SampleSink sink,
            void *user, Error *err);
