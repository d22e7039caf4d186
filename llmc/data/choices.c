#include "choices.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "llmc/base/files.h"
#include "llmc/base/integers.h"
#include "llmc/tokenizer/tokenizer.h"

enum {
    MAGIC = 20240522,
    VERSION = 1,
    HEADER_BYTES = 1024,
    BEGIN = 65535,
    MAX_BYTES = 1 << 30,
    MAX_ENDINGS = 64,
};

#define HINT "hint: data/hellaswag.py --source FILE makes it of lines of JSON"

/* ---- reading ---- */

typedef struct Reader {
    const char *path;
    const uint16_t *stream;
    size_t n, at;  /* of uint16 */
    bool odd_byte; /* one more, which is no uint16 */
    int vocab_size;
    Error *err;
} Reader;

/* A number that is none of those from `from` to `to`; -1: the file ends before it. */
static bool refuse(const Reader *r, int item, const char *what, int from, int to, int found) {
    char expected[32], number[24] = "the end of the file";
    snprintf(expected, sizeof expected, from < to ? "%d to %d" : "%d", from, to);
    if (found >= 0) snprintf(number, sizeof number, "%d", found);
    return fail(r->err, EXIT_INPUT,
                "%s: item %d: %s: expected %s, found %s; hint: data/hellaswag.py makes it again", r->path,
                item, what, expected, number);
}

/* The next number; -1 behind the end. */
static int next(Reader *r) {
    return r->at < r->n ? r->stream[r->at++] : -1;
}

/* n and n tokens, at least one. */
static bool read_tokens(Reader *r, int item, const char *what, const uint16_t **tokens, int *n) {
    *n = next(r);
    *tokens = r->stream + r->at;
    if (*n < 1) return refuse(r, item, what, 1, BEGIN - 1, *n);
    if ((size_t)*n > r->n - r->at)
        return fail(r->err, EXIT_INPUT,
                    "%s: item %d: %s: expected %d, found %zu and the end of the file; hint: copy it again",
                    r->path, item, what, *n, r->n - r->at);
    for (int i = 0; i < *n; i++)
        if ((*tokens)[i] >= r->vocab_size)
            return refuse(r, item, "token", 0, r->vocab_size - 1, (*tokens)[i]);
    r->at += (size_t)*n;
    return true;
}

/* rows: room for the endings of the item; NULL: they are counted alone. */
static bool read_item(Reader *r, int item, int *label, ChoiceRow *rows, int *n_endings) {
    const size_t begin = r->at;
    ChoiceRow row = {.item = item};
    const int mark = next(r), bytes = next(r);
    next(r); /* the index, which wraps around in large files */
    *label = next(r);
    *n_endings = next(r);
    if (mark != BEGIN) return refuse(r, item, "mark of its beginning", BEGIN, BEGIN, mark);
    if (*n_endings < 2 || *n_endings > MAX_ENDINGS)
        return refuse(r, item, "number of endings", 2, MAX_ENDINGS, *n_endings);
    if (*label >= *n_endings) return refuse(r, item, "label", 0, *n_endings - 1, *label);
    if (!read_tokens(r, item, "tokens of the context", &row.context_tokens, &row.n_context)) return false;
    for (row.ending = 0; row.ending < *n_endings; row.ending++) {
        if (!read_tokens(r, item, "tokens of an ending", &row.ending_tokens, &row.n_ending)) return false;
        if (rows) rows[row.ending] = row;
    }
    const int found = (int)((r->at - begin) * sizeof *r->stream);
    return found == bytes || refuse(r, item, "bytes of the item", found, found, bytes);
}

/* All items, twice: counted, then kept. */
static bool read_items(Choices *c, Reader *r) {
    const size_t begin = r->at;
    for (int pass = 0; pass < 2; pass++) {
        int n_rows = 0, n_endings, label;
        r->at = begin;
        for (int i = 0; i < c->n_items; i++) {
            if (!read_item(r, i, pass ? &c->labels[i] : &label, pass ? c->rows + n_rows : NULL, &n_endings))
                return false;
            n_rows += n_endings;
        }
        if (pass) break;
        if (r->at != r->n || r->odd_byte)
            return fail(r->err, EXIT_INPUT, "%s: expected %d items, found more behind them", r->path,
                        c->n_items);
        c->n_rows = n_rows;
        c->labels = malloc((size_t)c->n_items * sizeof *c->labels);
        c->rows = malloc((size_t)n_rows * sizeof *c->rows);
        if (!c->labels || !c->rows)
            return fail(r->err, EXIT_RUN, "%s: no memory for %d items", r->path, c->n_items);
    }
    return true;
}

/* Ids are the model's only where the vocabulary is: as large as its tokenizer, or its table, which may have been rounded up. */
static bool check_header(const int32_t *header, const char *path, int vocab_size, int n_tokens,
                         int *file_vocab, Error *err) {
    if (header[0] != MAGIC || header[1] != VERSION)
        return fail(err, EXIT_INPUT,
                    "%s: expected magic %d and version %d of a multiple-choice file, found %d and %d; " HINT,
                    path, MAGIC, VERSION, header[0], header[1]);
    const bool is_gpt2 = vocab_size >= GPT2_VOCAB && vocab_size < GPT2_VOCAB + VOCAB_PADDING;
    *file_vocab = header[4] ? header[4] : GPT2_VOCAB;
    const int most = n_tokens ? n_tokens : vocab_size,
              least = n_tokens ? n_tokens : vocab_size - VOCAB_PADDING + 1;
    if (*file_vocab > most || *file_vocab < least)
        return fail(err, EXIT_INPUT,
                    "%s: has tokens of a vocabulary of %d, the model's has %d; hint: data/hellaswag.py "
                    "--tokenizer %s",
                    path, *file_vocab, most,
                    vocab_size == 256 ? "bytes"
                    : is_gpt2         ? "gpt2"
                                      : "DIR, that of the model");
    return header[2] >= 1 || fail(err, EXIT_INPUT, "%s: expected items, found %d", path, header[2]);
}

static bool read_choices(Choices *c, const char *path, int vocab_size, int n_tokens, Error *err) {
    size_t size;
    Reader reader = {.path = path, .err = err};
    c->path = strdup(path);
    c->file = (uint16_t *)file_read(path, MAX_BYTES, &size, err);
    if (!c->file) return false;
    if (size < HEADER_BYTES)
        return fail(err, EXIT_INPUT, "%s: expected a header of %d bytes, the file has %zu; " HINT, path,
                    HEADER_BYTES, size);
    const int32_t *header = (const int32_t *)c->file;
    if (!check_header(header, path, vocab_size, n_tokens, &reader.vocab_size, err)) return false;
    c->n_items = header[2];
    reader.stream = c->file;
    reader.n = size / sizeof *c->file;
    reader.odd_byte = size % sizeof *c->file;
    reader.at = HEADER_BYTES / sizeof *c->file;
    return read_items(c, &reader);
}

Choices *choices_open(const char *path, int vocab_size, int n_tokens, Error *err) {
    Choices *choices = must_allocate(sizeof *choices, "multiple choice");
    *choices = (Choices){0};
    if (read_choices(choices, path, vocab_size, n_tokens, err)) return choices;
    choices_close(choices);
    return NULL;
}

void choices_close(Choices *choices) {
    if (!choices) return;
    free(choices->path);
    free(choices->labels);
    free(choices->rows);
    free(choices->file);
    free(choices);
}

/* ---- batches ---- */

/* Positions that a row takes: its last token is a target alone. */
static int positions(const ChoiceRow *row) {
    return row->n_context + row->n_ending - 1;
}

static int shorter(int positions, int T) {
    return positions < T ? positions : T;
}

/* Shortest first, as they stand in the file among equals: a counting sort. */
static bool sort_rows(ChoicePlan *plan, const Choices *c, int T, Error *err) {
    int *begin = calloc((size_t)T + 2, sizeof *begin);
    plan->order = malloc((size_t)c->n_rows * sizeof *plan->order);
    const bool ok =
        (begin && plan->order) || fail(err, EXIT_RUN, "%s: no memory for %d rows", c->path, c->n_rows);
    for (int i = 0; ok && i < c->n_rows; i++) begin[shorter(positions(&c->rows[i]), T) + 1]++;
    for (int i = 0; ok && i <= T; i++) begin[i + 1] += begin[i];
    for (int i = 0; ok && i < c->n_rows; i++) plan->order[begin[shorter(positions(&c->rows[i]), T)]++] = i;
    free(begin);
    return ok;
}

/* 3840 = 2^8 * 15 has many divisors: most lengths that are a multiple of 8 have one a little longer. */
static int64_t tokens_of_batch(int B, int T) {
    const int64_t most = (int64_t)B * T, even = most - most % 3840;
    return even >= T ? even : most;
}

/* The shortest T that `longest` fits in and that divides n; where there is none up to `most`, longest itself. */
static int fitting_length(int64_t n, int longest, int most) {
    for (int T = (int)round_up(longest, 8); T <= most; T += 8)
        if (n % T == 0) return T;
    return longest;
}

static bool check_endings(ChoicePlan *plan, const Choices *c, int T, Error *err) {
    int last_cut = -1;
    for (int i = 0; i < c->n_rows; i++) {
        const ChoiceRow *row = &c->rows[i];
        if (row->n_ending > T)
            return fail(err, EXIT_INPUT,
                        "%s: item %d has an ending of %d tokens; hint: --seq %d or more, where the "
                        "model's context is that long",
                        c->path, row->item, row->n_ending, row->n_ending);
        if (positions(row) > T && row->item != last_cut) {
            last_cut = row->item;
            plan->n_cut++;
        }
    }
    return true;
}

/* From the longest row of a batch backwards, so that all batches but one are full. */
static void make_batches(ChoicePlan *plan, const Choices *c, int B, int T) {
    const int64_t n = tokens_of_batch(B, T);
    for (int left = c->n_rows; left > 0;) {
        const int longest = shorter(positions(&c->rows[plan->order[left - 1]]), T);
        ChoiceBatch *batch = &plan->batches[plan->n_batches++];
        batch->T = fitting_length(n, longest, T);
        batch->B = (int)(n / batch->T);
        batch->n_rows = left < batch->B ? left : batch->B;
        if (plan->n_batches == 1) batch->B = batch->n_rows; /* the only one, or full */
        batch->first = left -= batch->n_rows;
    }
}

bool choices_plan(ChoicePlan *plan, const Choices *c, int B, int T, Error *err) {
    *plan = (ChoicePlan){0};
    plan->batches = malloc((size_t)c->n_rows * sizeof *plan->batches);
    const bool ok = (plan->batches || fail(err, EXIT_RUN, "%s: no memory for its batches", c->path)) &&
                    check_endings(plan, c, T, err) && sort_rows(plan, c, T, err);
    if (ok) make_batches(plan, c, B, T);
    if (!ok) choices_plan_free(plan);
    return ok;
}

void choices_plan_free(ChoicePlan *plan) {
    free(plan->order);
    free(plan->batches);
    *plan = (ChoicePlan){0};
}

/* ---- a batch, and what comes of it ---- */

static int token_at(const ChoiceRow *row, int i) {
    return i < row->n_context ? row->context_tokens[i] : row->ending_tokens[i - row->n_context];
}

void choices_fill(const Choices *c, const ChoicePlan *plan, const ChoiceBatch *batch, int32_t *tokens,
                  int32_t *targets) {
    const int T = batch->T;
    memset(tokens, 0, (size_t)batch->B * (size_t)T * sizeof *tokens);
    memset(targets, 0, (size_t)batch->B * (size_t)T * sizeof *targets);
    for (int b = 0; b < batch->n_rows; b++) {
        const ChoiceRow *row = &c->rows[plan->order[batch->first + b]];
        const int n = shorter(positions(row), T), cut = positions(row) - n;
        for (int t = 0; t < n; t++) {
            tokens[(size_t)b * (size_t)T + (size_t)t] = token_at(row, cut + t);
            targets[(size_t)b * (size_t)T + (size_t)t] = token_at(row, cut + t + 1);
        }
    }
}

double choices_mean_loss(const ChoiceRow *row, const float *losses, int T) {
    const int end = shorter(positions(row), T);
    double sum = 0;
    for (int t = end - row->n_ending; t < end; t++) sum += losses[t];
    return sum / row->n_ending;
}

ChoiceScore choices_score(const Choices *c, const double *means, unsigned char *chosen) {
    ChoiceScore score = {.n_items = c->n_items};
    for (int i = 0; i < c->n_rows;) {
        const int item = c->rows[i].item;
        int by_mean = -1, by_sum = -1;
        bool is_lost = false;
        double least_mean = INFINITY, least_sum = INFINITY;
        for (; i < c->n_rows && c->rows[i].item == item; i++) {
            const double sum = means[i] * c->rows[i].n_ending;
            is_lost = is_lost || !isfinite(means[i]);
            if (means[i] < least_mean) least_mean = means[i], by_mean = c->rows[i].ending;
            if (sum < least_sum) least_sum = sum, by_sum = c->rows[i].ending;
        }
        score.n_lost += is_lost;
        score.n_right_mean += by_mean == c->labels[item];
        score.n_right += by_sum == c->labels[item];
        if (chosen) chosen[item] = by_mean < 0 ? 255 : (unsigned char)by_mean;
    }
    return score;
}
