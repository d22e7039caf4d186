/* Text from the model: one token at a time with a cache of keys and values, temperature and top-k. */
#pragma once
#include "gpt2.h"
#include "tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct SampleOptions {
    const char *prompt; /* NULL or "": starts from end-of-text, or a newline where the tokenizer has none */
    int n_tokens;
    float temperature; /* 0: greedy */
    int top_k;         /* 0: all */
    uint64_t seed;
} SampleOptions;

/* Called with each piece of decoded text as it is drawn. */
typedef void (*SampleSink)(const char *bytes, size_t n, void *user);

/* Uses the model's weights only (no activation of a training step is touched). Past max_seq_len the window
 * slides: the last half of the context is fed again. A NULL tokenizer gives token ids as text. */
bool sample(GPT2 *model, const Tokenizer *tokenizer, const SampleOptions *options, SampleSink sink,
            void *user, Error *err);

#ifdef __cplusplus
}
#endif
