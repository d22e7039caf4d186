/* Text from the model: sequences decoded together, one token each at a time, with a cache of keys and values. Which token
 * comes is chosen on the device (ops.h, draw_tokens); the host reads some tokens later, and does not make it wait. */
#pragma once
#include "gpt2.h"
#include "llmc/tokenizer/tokenizer.h"

typedef struct SampleOptions {
    const char *prompt; /* NULL or "": starts from end-of-text, or a newline where the tokenizer has none */
    bool text_alone;    /* the prompt is not sent to the sink */
    int n_samples, n_tokens;
    float temperature;  /* 0: greedy */
    int top_k;          /* 0: all */
    float top_p, min_p; /* 1, 0: all; ops.h has the order of the three */
    const char *stop;   /* a sample ends before this text; NULL: none */
    uint64_t seed;
    bool graph; /* a token is one graph, where the device can */
} SampleOptions;

/* What sampling took. The prompt's numbers are there before the first piece of text. */
typedef struct SampleRates {
    int64_t n_prompt;     /* tokens of the prompt */
    int64_t n_read;       /* of those: its end, where the context does not hold all */
    int64_t n_tokens;     /* in the texts */
    double first_seconds; /* from the call to the first token */
    int64_t n_steps;      /* of decoding, a token of each sample that is decoded together */
    double step_seconds;  /* all of them */
    double step_bytes;    /* weights and cache that they read */
} SampleRates;

/* What samples take on the device while they are drawn, beside the model: the cache of keys and values, and activations. */
size_t sample_bytes(const Ops *ops, const GPT2Config *config, const SampleOptions *options, size_t n_prompt);

/* Called with each piece of decoded text of sample `sample` as it comes; n_bytes 0 once: this sample has ended. */
typedef void SampleSink(int sample, const char *bytes, size_t n_bytes, void *user);

/* Sends the prompt and the text drawn after it to the sink, for each sample, n_tokens tokens at most: a sample ends before
 * end-of-text and before the stop text. A piece can be a part of a UTF-8 character. Same seed, same weights, same text;
 * sample i is the same whatever n_samples is.
 * Uses the model's weights only (no activation of a training step is touched). Past max_seq_len the window
 * slides: the last half of the context is fed again. A NULL tokenizer gives token ids as text. Ends early, and true,
 * where model->stop says so. False on a NaN or infinite logit. rates: NULL, or what it took. */
bool sample(GPT2 *model, const Tokenizer *tokenizer, const SampleOptions *options, SampleSink *sink,
            void *user, SampleRates *rates, Error *err);
