/* Hugging Face's tokenizer.json: vocabulary, merges and the way from text to tokens in one file. What is served
 * is GPT-2's way, byte-level BPE; every other setting that would change a token is refused by its name. */
#include <stdio.h>
#include <string.h>
#include "vocabulary.h"

typedef struct Reader {
    const char *path;
    const JsonValue *root, *model;
    Error *err;
} Reader;

/* Fails with "PATH: WHERE.FIELD: expected X, found Y". */
static bool refuse(const Reader *r, const char *where, const char *field, const char *expected,
                   const JsonValue *found) {
    char name[80];
    snprintf(name, sizeof name, "%s%s%s", where, *field ? "." : "", field);
    return json_refuse(r->path, name, expected, found, r->err);
}

static bool is_type(const JsonValue *value, const char *name) {
    return json_equals(json_get(value, "type"), name);
}

/* The type of a part, for messages, or what stands in its place. */
static const JsonValue *type_of(const JsonValue *part) {
    const JsonValue *type = json_get(part, "type");
    return type ? type : part;
}

/* ---- how text is cut ---- */

/* The ByteLevel step; its own regex is GPT-2's, which another step before it may have done already. */
static bool check_byte_level(const Reader *r, const JsonValue *step, bool is_split) {
    const JsonValue *prefix = json_get(step, "add_prefix_space"), *regex = json_get(step, "use_regex");
    const bool uses_regex = !regex || json_is(regex, JSON_TRUE);
    if (prefix && prefix->type != JSON_FALSE)
        return refuse(r, "pre_tokenizer", "add_prefix_space", "false", prefix);
    if (uses_regex || is_split) return true;
    return refuse(r, "pre_tokenizer", "use_regex", "true", regex);
}

/* A Split step that cuts by GPT-2's pattern, in either of the forms it is written in. */
static bool check_split(const Reader *r, const JsonValue *step) {
    static const char *const patterns[] = {
        "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
        "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
    };
    const JsonValue *regex = json_get(json_get(step, "pattern"), "Regex"), *invert = json_get(step, "invert");
    if (!json_equals(regex, patterns[0]) && !json_equals(regex, patterns[1]))
        return refuse(r, "pre_tokenizer", "pattern", "GPT-2's", regex);
    if (!json_equals(json_get(step, "behavior"), "Isolated"))
        return refuse(r, "pre_tokenizer", "behavior", "Isolated", json_get(step, "behavior"));
    return !invert || invert->type == JSON_FALSE || refuse(r, "pre_tokenizer", "invert", "false", invert);
}

/* ByteLevel, or a Sequence of it, or of GPT-2's Split and it. */
static bool check_pre_tokenizer(const Reader *r) {
    const JsonValue *pre = json_get(r->root, "pre_tokenizer"), *steps = json_get(pre, "pretokenizers");
    if (is_type(pre, "ByteLevel")) return check_byte_level(r, pre, false);
    if (!is_type(pre, "Sequence") || !json_is(steps, JSON_ARRAY))
        return refuse(r, "pre_tokenizer", "type", "ByteLevel", type_of(pre));
    const JsonValue *step = steps->first;
    const bool is_split = is_type(step, "Split");
    if (is_split) {
        if (!check_split(r, step)) return false;
        step = step->next;
    }
    if (!is_type(step, "ByteLevel") || step->next)
        return refuse(r, "pre_tokenizer", "type", "ByteLevel, or Split by GPT-2's pattern and ByteLevel",
                      type_of(step));
    return check_byte_level(r, step, is_split);
}

/* None, or a Sequence of none. */
static bool check_normalizer(const Reader *r) {
    const JsonValue *normalizer = json_get(r->root, "normalizer"),
                    *steps = json_get(normalizer, "normalizers");
    if (json_is_absent(normalizer)) return true;
    if (is_type(normalizer, "Sequence") && json_is(steps, JSON_ARRAY) && steps->n == 0) return true;
    return refuse(r, "normalizer", "type", "null", type_of(normalizer));
}

/* One that adds no token of its own. */
static bool check_post_processor(const Reader *r) {
    const JsonValue *post = json_get(r->root, "post_processor"), *single = json_get(post, "single");
    if (json_is_absent(post) || is_type(post, "ByteLevel")) return true;
    if (!is_type(post, "TemplateProcessing"))
        return refuse(r, "post_processor", "type", "null, ByteLevel or TemplateProcessing", type_of(post));
    if (json_is(single, JSON_ARRAY) && single->n == 1 && json_get(single->first, "Sequence")) return true;
    return refuse(r, "post_processor", "single", "the text alone, without special tokens", single);
}

/* ---- the model ---- */

static bool check_model(const Reader *r) {
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const JsonValue *type = json_get(r->model, "type"), *dropout = json_get(r->model, "dropout"),
                    *fallback = json_get(r->model, "byte_fallback");
    double p = 0;
    if (!r->model)
        return fail(r->err, EXIT_INPUT,
                    "%s: expected a tokenizer.json, found no `model` in it; hint: the directory stands for "
                    "vocab.json and merges.txt",
                    r->path);
    if (r->model->type != JSON_OBJECT) return refuse(r, "model", "", "an object", r->model);
    if (type && !json_equals(type, "BPE")) return refuse(r, "model", "type", "BPE", type);
    if (!json_is_absent(dropout) && (!json_double(dropout, &p) || p != 0))
        return refuse(r, "model", "dropout", "null", dropout);
    if (fallback && fallback->type != JSON_FALSE)
        return refuse(r, "model", "byte_fallback", "false", fallback);
    for (int i = 0; i < 2; i++) {
        const JsonValue *affix = json_get(r->model, affixes[i]);
        if (!json_is_absent(affix) && !json_equals(affix, ""))
            return refuse(r, "model", affixes[i], "null", affix);
    }
    return true;
}

static bool read_tokens(const Reader *r, Vocabulary *vocabulary) {
    const JsonValue *vocab = json_get(r->model, "vocab"), *added = json_get(r->root, "added_tokens");
    if (!json_is(vocab, JSON_OBJECT) || vocab->n < 1)
        return refuse(r, "model", "vocab", "an object {token: id}", vocab);
    if (!json_is_absent(added) && added->type != JSON_ARRAY)
        return refuse(r, "added_tokens", "", "an array", added);
    return vocabulary_read_tokens(vocabulary, vocab, added, r->path, r->err);
}

/* A merge is "a b" or ["a", "b"]; both become a line of merges.txt. */
static bool append_merge(Buffer *lines, const JsonValue *merge) {
    const JsonValue *left = merge->first;
    if (merge->type == JSON_STRING) {
        buffer_append(lines, merge->text, merge->length);
    } else if (merge->type == JSON_ARRAY && merge->n == 2 && left->type == JSON_STRING &&
               left->next->type == JSON_STRING) {
        buffer_append(lines, left->text, left->length);
        buffer_append(lines, " ", 1);
        buffer_append(lines, left->next->text, left->next->length);
    } else {
        return false;
    }
    buffer_append(lines, "\n", 1);
    return true;
}

static bool read_merges(const Reader *r, Vocabulary *vocabulary) {
    const JsonValue *merges = json_get(r->model, "merges");
    Buffer lines = {0};
    bool ok = json_is(merges, JSON_ARRAY);
    buffer_append(&lines, "", 0); /* no merges: no lines, which is not NULL */
    for (const JsonValue *merge = ok ? merges->first : NULL; ok && merge; merge = merge->next)
        ok = append_merge(&lines, merge);
    if (!ok) refuse(r, "model", "merges", "an array of \"a b\" or [\"a\", \"b\"]", merges);
    vocabulary->merges = lines.data;
    vocabulary->file = strdup(r->path);
    if (ok && (lines.failed || !vocabulary->file)) ok = fail(r->err, EXIT_RUN, "%s: out of memory", r->path);
    return ok;
}

/* With ignore_merges a piece of text that is in the vocabulary is a token, whether merges make it or not. */
static bool check_ignored_merges(const Reader *r) {
    const JsonValue *ignores = json_get(r->model, "ignore_merges"), *vocab = json_get(r->model, "vocab"),
                    *added = json_get(r->root, "added_tokens");
    int64_t n = vocab->n;
    if (!json_is(ignores, JSON_TRUE)) return true;
    for (const JsonValue *token = added ? added->first : NULL; token; token = token->next)
        n -= json_get(vocab, json_get(token, "content")->text) != NULL;
    return n == 256 + json_get(r->model, "merges")->n ||
           refuse(r, "model", "ignore_merges", "false, as not each token is a byte or has a merge", ignores);
}

bool vocabulary_read_json(Vocabulary *vocabulary, const char *path, Error *err) {
    Json *json = json_read(path, err);
    if (!json) return false;
    const Reader r = {path, json_root(json), json_get(json_root(json), "model"), err};
    const bool ok = check_model(&r) && check_normalizer(&r) && check_pre_tokenizer(&r) &&
                    check_post_processor(&r) && read_tokens(&r, vocabulary) && read_merges(&r, vocabulary) &&
                    check_ignored_merges(&r);
    json_free(json);
    return ok;
}
