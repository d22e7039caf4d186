/* The model's shape: descriptors and checks. Host arithmetic only. */
#include "gpt2.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "llmc/base/integers.h"
#include "llmc/tokenizer/tokenizer.h"

/* To add a named size, add a row. GPT-2's and GPT-3's sizes, and two small ones that train in a minute. */
static const struct Descriptor {
    const char *name;
    int n_layer, n_head, n_embd;
} descriptors[] = {
    {"nano",        4,  4,  128  },
    {"baby",        6,  6,  384  },
    {"d6",          6,  6,  384  },
    {"d12",         12, 12, 768  },
    {"d24",         24, 16, 1024 },
    {"d36",         36, 20, 1280 },
    {"d48",         48, 25, 1600 },
    {"d60",         60, 30, 1920 },
    {"d72",         72, 30, 2880 },
    {"d84",         84, 36, 3456 },
    {"gpt3:c384",   6,  6,  384  },
    {"gpt3:c768",   12, 12, 768  },
    {"gpt3:c1024",  24, 16, 1024 },
    {"gpt3:c1536",  24, 16, 1536 },
    {"gpt3:c2048",  24, 16, 2048 },
    {"gpt3:c2560",  32, 32, 2560 },
    {"gpt3:c4096",  32, 32, 4096 },
    {"gpt3:c5120",  40, 40, 5120 },
    {"gpt3:c12288", 96, 96, 12288},
};

const char *gpt2_descriptor(int i) {
    return (size_t)i < sizeof descriptors / sizeof *descriptors ? descriptors[i].name : NULL;
}

/* What others call these models, and the size that is theirs. A name of OpenAI's weights is a folder here. */
static const struct {
    const char *name, *size;
    bool has_weights;
} other_names[] = {
    {"gpt2",        "d12", true },
    {"gpt2-medium", "d24", true },
    {"gpt2-large",  "d36", true },
    {"gpt2-xl",     "d48", true },
    {"124M",        "d12", false},
    {"350M",        "d24", false},
    {"355M",        "d24", false},
    {"774M",        "d36", false},
    {"1558M",       "d48", false},
    {"1.5B",        "d48", false},
};

static bool fail_unknown(const char *name, Error *err) {
    static const char owner[] = "openai-community/";
    const bool is_owned = strncmp(name, owner, sizeof owner - 1) == 0;
    const char *bare = is_owned ? name + sizeof owner - 1 : name;
    for (size_t i = 0; i < sizeof other_names / sizeof *other_names; i++) {
        if (strcasecmp(bare, other_names[i].name)) continue;
        if (!other_names[i].has_weights)
            return fail(err, EXIT_INPUT,
                        "--model '%s': no such file or directory; hint: --model %s is of that size", name,
                        other_names[i].size);
        return fail(
            err, EXIT_INPUT,
            "--model '%s': no such file or directory; hint: hf download openai-community/%s --local-dir %s "
            "brings OpenAI's weights there; --model %s is a new one of its size",
            name, other_names[i].name, other_names[i].name, other_names[i].size);
    }
    for (size_t i = 0; i < sizeof descriptors / sizeof *descriptors; i++)
        if (strcasecmp(name, descriptors[i].name) == 0)
            return fail(err, EXIT_INPUT, "--model '%s': no such file or directory; hint: --model %s", name,
                        descriptors[i].name);
    if (strchr(name, '/')) return fail(err, EXIT_INPUT, "--model '%s': no such file or directory", name);
    char known[400];
    for (size_t i = 0, used = 0; i < sizeof descriptors / sizeof *descriptors; i++)
        used +=
            (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", descriptors[i].name);
    return fail(err, EXIT_INPUT, "--model '%s': no such file or directory, and no known size; sizes: %s",
                name, known);
}

bool gpt2_config_from_descriptor(GPT2Config *config, const char *descriptor, Error *err) {
    for (size_t i = 0; i < sizeof descriptors / sizeof *descriptors; i++) {
        const struct Descriptor *d = &descriptors[i];
        if (strcmp(descriptor, d->name) != 0) continue;
        config->n_layer = d->n_layer;
        config->n_head = d->n_head;
        config->n_embd = d->n_embd;
        return true;
    }
    return fail_unknown(descriptor, err);
}

int gpt2_pad_vocab(int vocab_size) {
    return (int)round_up(vocab_size, VOCAB_PADDING);
}

static bool heads_fit(int n_embd, int n_head) {
    return n_embd % n_head == 0 && n_embd / n_head % 8 == 0 && n_embd / n_head <= 256;
}

/* The number of heads that fits n_embd channels and is nearest to n_head; 0: none does. */
static int nearest_heads(int n_embd, int n_head) {
    int nearest = 0;
    for (int n = 1; n <= n_embd / 8; n++)
        if (heads_fit(n_embd, n) && (!nearest || abs(n - n_head) < abs(nearest - n_head))) nearest = n;
    return nearest;
}

static bool check_heads(const GPT2Config *config, const char *what, Error *err) {
    const int C = config->n_embd, heads = config->n_head;
    char hint[64] = "hint: channels in multiples of 8";
    if (heads_fit(C, heads)) return true;
    const int nearest = nearest_heads(C, heads);
    if (nearest) snprintf(hint, sizeof hint, "nearest: %d heads of %d", nearest, C / nearest);
    if (C % heads)
        return fail(err, EXIT_INPUT, "%s: %d channels do not divide into %d heads; %s", what, C, heads, hint);
    return fail(err, EXIT_INPUT,
                "%s: head size is %d (%d channels / %d heads), expected a multiple of 8 up to 256; %s", what,
                C / heads, C, heads, hint);
}

static bool check_sparse(const GPT2Config *config, const char *what, Error *err) {
    const SparsePattern p = config->sparse;
    return p.window == 0 || (config->window == 0 && !config->documents) ||
           fail(err, EXIT_INPUT,
                "%s: sparse attention and %s: each says alone what attention sees; hint: leave one of them "
                "out",
                what, config->window ? "a window" : "documents");
}

bool gpt2_config_check(const GPT2Config *config, const char *what, Error *err) {
    const struct {
        const char *name;
        int value, low, high;
    } fields[] = {
        {"max_seq_len", config->max_seq_len, 1, MAX_CONTEXT },
        {"vocab_size",  config->vocab_size,  1, 1 << 24     },
        {"n_layer",     config->n_layer,     1, MAX_LAYERS  },
        {"n_head",      config->n_head,      1, MAX_HEADS   },
        {"n_embd",      config->n_embd,      8, MAX_CHANNELS},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].value < fields[i].low || fields[i].value > fields[i].high)
            return fail(err, EXIT_INPUT, "%s: %s is %d, expected %d to %d", what, fields[i].name,
                        fields[i].value, fields[i].low, fields[i].high);
    if (config->window < 0 || config->window > MAX_CONTEXT || !(config->dropout >= 0 && config->dropout < 1))
        return fail(err, EXIT_INPUT, "%s: window %d, dropout %g; expected 0 to %d, 0 to below 1", what,
                    config->window, (double)config->dropout, MAX_CONTEXT);
    if (config->documents && (config->end_of_text < 0 || config->end_of_text >= config->vocab_size))
        return fail(err, EXIT_INPUT, "%s: documents end at token %d, expected one of %d tokens", what,
                    config->end_of_text, config->vocab_size);
    if (!check_heads(config, what, err) || !check_sparse(config, what, err)) return false;
    if (config->padded_vocab_size != gpt2_pad_vocab(config->vocab_size))
        return fail(err, EXIT_INPUT, "%s: padded vocabulary is %d, expected %d for %d tokens", what,
                    config->padded_vocab_size, gpt2_pad_vocab(config->vocab_size), config->vocab_size);
    return true;
}

static double flops_of_keys(const GPT2Config *config, double keys) {
    const double L = config->n_layer, C = config->n_embd, V = config->vocab_size;
    const double linear = L * (3 * C * C + C * C + 4 * C * C + 4 * C * C), head = V * C;
    return 6 * (linear + head) + 12 * L * C * keys;
}

double gpt2_flops_per_token(const GPT2Config *config, int T) {
    const AttentionMask mask = {.window = config->window};
    const double W = attention_window(&mask, T); /* a query sees W - W^2 / 2T keys in the mean */
    return flops_of_keys(config,
                         config->sparse.window ? sparse_pairs(config->sparse, T) / T : W - W * W / (2.0 * T));
}

double gpt2_step_flops_per_token(const GPT2 *model, int T) {
    if (model->seen_tokens == 0) return gpt2_flops_per_token(&model->config, T);
    return flops_of_keys(&model->config, model->seen_pairs / (double)model->seen_tokens);
}
