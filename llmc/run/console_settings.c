/* What the console says before the run: the settings, the memory plan. */
#include "console.h"
#include <stdarg.h>
#include <string.h>
#include "llmc/base/terminal.h"

void console_row(FILE *out, const char *label, const char *format, ...) {
    enum { INDENT = 12 };
    char text[2048 + 4096]; /* a path and the words around it */
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    print(out, "%-11s ", label);
    print_wrapped(out, INDENT, INDENT, terminal_columns(out), "%s", text);
}

void console_waiting(FILE *out, const char *what) {
    if (terminal_redraws(out)) status_show(out, terminal_columns(out) - 1, true, "%s", what);
}

static void print_interval(FILE *out, const char *label, const char *what, int64_t every, const char *more) {
    if (every > 0)
        console_row(out, label, "%s every %lld steps and at the end%s", what, (long long)every, more);
    else
        console_row(out, label, "%s at the end%s", what, more);
}

static void print_schedule(FILE *out, const Settings *s) {
    const char *kind = flags_choice(s, "schedule");
    if (s->schedule == SCHEDULE_CONSTANT)
        console_row(out, "schedule", "%s lr %.2e after %lld warm-up steps", kind, s->lr,
                    (long long)s->warmup);
    else
        console_row(out, "schedule", "%s, lr %.2e to %.2e, %lld warm-up steps of %lld", kind, s->lr,
                    s->lr * s->final_lr_fraction, (long long)s->warmup, (long long)s->steps);
}

static void print_batch(FILE *out, const Settings *s, int n_ranks) {
    char tokens[FORMAT_NUMBER], micro[48] = "", ranks[64] = "";
    const int64_t micro_steps = s->tokens_per_step / settings_micro_step(s, n_ranks), size = s->context_gpus;
    if (micro_steps > 1) snprintf(micro, sizeof micro, " x %lld micro-steps", (long long)micro_steps);
    if (n_ranks > size)
        snprintf(ranks, sizeof ranks, size > 1 ? " x %d groups of ranks" : " x %d ranks",
                 n_ranks / (int)size);
    console_row(out, "batch", "%lld x %lld tokens%s%s = %s tokens a step", (long long)s->batch,
                (long long)s->seq, micro, ranks, format_integer(tokens, s->tokens_per_step));
    if (size > 1)
        console_row(out, "context", "%lld tokens shared out over %lld ranks: %lld each, of every sequence",
                    (long long)s->seq, (long long)size, (long long)(s->seq / size));
}

static void print_sparse(FILE *out, const Settings *s) {
    const double T = (double)s->seq;
    SparsePattern p = {0};
    if (s->sparse && sparse_read(&p, s->sparse) && p.window > 0)
        console_row(
            out, "sparse",
            "attention sees blocks of %d: of the last %d positions, of the first %d, %d at random; %.3g %% "
            "of all pairs",
            (int)MASK_BLOCK, p.window * MASK_BLOCK, p.first * MASK_BLOCK, p.random,
            100 * sparse_pairs(p, (int)s->seq) / (T * T / 2));
}

static void print_window(FILE *out, const Settings *s) {
    if (s->window >= s->seq)
        console_row(out, "window", "%lld, the context or more: attention sees all of it",
                    (long long)s->window);
    else if (s->window > 0)
        console_row(out, "window", "attention sees %lld of %lld positions", (long long)s->window,
                    (long long)s->seq);
    if (s->documents) console_row(out, "documents", "attention sees its own document only");
    print_sparse(out, s);
}

void console_eval_settings(FILE *out, const Settings *s) {
    char tokens[FORMAT_NUMBER];
    console_row(out, "numerics", "%s, %s attention", flags_choice(s, "precision"),
                flags_choice(s, "attention"));
    print_window(out, s);
    if (settings_scores_alone(s)) return;
    console_row(out, "evaluation", "%lld batches of %lld x %lld tokens = %s tokens",
                (long long)s->eval_batches, (long long)s->batch, (long long)s->seq,
                format_integer(tokens, s->eval_batches * s->batch * s->seq));
}

enum { STOP_SHOWN = 1000, STOP_WORDS = STOP_SHOWN + 20 };
_Static_assert(STOP_WORDS + 400 < SAMPLING_WORDS, "the longest words are whole");

/* ", until \"TEXT\"", of a long one its beginning, up to a whole character; "" without --stop. */
static const char *stop_words(char buffer[STOP_WORDS], const char *stop) {
    if (!stop) return "";
    size_t n = strlen(stop);
    const bool is_long = n > STOP_SHOWN;
    if (is_long) n = STOP_SHOWN - incomplete_character(stop, STOP_SHOWN);
    snprintf(buffer, STOP_WORDS, ", until \"%.*s%s\"", (int)n, stop, is_long ? "..." : "");
    return buffer;
}

const char *console_sampling(char buffer[SAMPLING_WORDS], const Settings *s) {
    char kept[160] = "", stop[STOP_WORDS];
    int n = 0;
    if (s->top_k) n += snprintf(kept + n, sizeof kept - (size_t)n, ", top-k %lld", (long long)s->top_k);
    if (s->top_p < 1) n += snprintf(kept + n, sizeof kept - (size_t)n, ", top-p %g", s->top_p);
    if (s->min_p > 0) n += snprintf(kept + n, sizeof kept - (size_t)n, ", min-p %g", s->min_p);
    snprintf(buffer, SAMPLING_WORDS, "%lld x %lld tokens at most%s, temperature %g%s", (long long)s->samples,
             (long long)s->sample_tokens, stop_words(stop, s->stop), s->temperature,
             s->temperature > 0 ? kept : "");
    return buffer;
}

static void print_samples(FILE *out, const Settings *s) {
    char words[SAMPLING_WORDS], what[SAMPLING_WORDS + 1];
    if (s->sample_tokens == 0) return;
    snprintf(what, sizeof what, "%s,", console_sampling(words, s));
    print_interval(out, "samples", what, s->sample_every, "");
}

static void print_optimizer(FILE *out, const Settings *s) {
    char muon[80] = "";
    if (s->optimizer == OPTIMIZER_MUON)
        snprintf(muon, sizeof muon, "Muon on matrices, momentum %g, %s; ", s->momentum,
                 newton_schulz[s->muon_polynomial].name);
    console_row(out, "optimizer", "%sAdamW, betas %g %g, eps %g, weight decay %g, clip %g", muon, s->beta1,
                s->beta2, s->eps, s->weight_decay, s->clip);
}

/* What comes between the steps, and where they lead. */
static void print_course(FILE *out, const Settings *s) {
    char what[96];
    print_schedule(out, s);
    snprintf(what, sizeof what, "%lld batches", (long long)s->eval_batches);
    if (settings_has_validation(s))
        print_interval(out, "evaluation", what, s->eval_every, "");
    else
        console_row(out, "evaluation", "none: --train names token shards and there is no --val");
    print_samples(out, s);
    if (settings_out_is_default(s))
        console_row(out, "output", "%s at the end; the next run without --out replaces it", s->out);
    else if (s->out)
        print_interval(out, "output", s->out, s->save_every,
                       s->keep_best ? ", and at each new lowest validation loss" : "");
    else
        console_row(out, "output", "none (--out DIR keeps checkpoints and a log)");
}

void console_settings(FILE *out, const Settings *s, int n_ranks, int64_t n_tokens) {
    char total[FORMAT_NUMBER], tree[48] = "";
    const char *batch = s->overfit ? ", all on the first batch (--overfit)" : "";
    if (s->reproducible)
        snprintf(tree, sizeof tree, ", sums in a tree of %lld leaves", (long long)s->reproducible);
    if (s->as_in_checkpoint)
        console_row(out, "recipe", "the checkpoint's, for what the flags leave open");
    else
        console_row(out, "recipe", "%s (defaults for what the flags leave open)", flags_choice(s, "recipe"));
    console_row(out, "numerics", "%s, %s attention, recompute %s, seed %lld%s", flags_choice(s, "precision"),
                flags_choice(s, "attention"), flags_choice(s, "recompute"), (long long)s->seed, tree);
    print_batch(out, s, n_ranks);
    if (s->profile)
        console_row(out, "run", "some seconds%s, for --profile; nothing is kept", batch);
    else
        console_row(out, "run", "%lld steps, %s tokens%s", (long long)s->steps,
                    format_count(total, (double)n_tokens), batch);
    print_optimizer(out, s);
    print_window(out, s);
    if (s->dropout > 0)
        console_row(out, "dropout", "%g (%u of 256)", s->dropout, dropout_threshold((float)s->dropout));
    if (!s->profile) print_course(out, s);
}

/* ---- memory ---- */

/* A terminal that has no room for the categories. */
static bool is_narrow(FILE *out) {
    const int columns = terminal_columns(out);
    return columns && columns < 64;
}

enum { MEMORY_NAME = 28 }; /* "master weights (fp32) (1/16)": a row has 64 columns */

static int memory_name_width(FILE *out) {
    return is_narrow(out) ? 10 : MEMORY_NAME;
}

static void print_memory_row(FILE *out, const char *name, const char *category, size_t bytes, size_t total) {
    char size[FORMAT_NUMBER];
    const double percent = total ? 100.0 * (double)bytes / (double)total : 0.0;
    format_bytes(size, (double)bytes);
    if (is_narrow(out))
        print_line(out, " %-17s %10s %5.1f %%", name, size, percent);
    else
        print_line(out, "  %-*s %-11s %12s %6.1f %%", MEMORY_NAME, name, category, size, percent);
}

/* Sum of the rows of row i's category, or -1 if an earlier row already stood for it. */
static int64_t category_bytes(const MemoryPlan *plan, int i) {
    int64_t sum = 0;
    for (int j = 0; j < plan->n_rows; j++) {
        if (strcmp(plan->rows[j].category, plan->rows[i].category) != 0) continue;
        if (j < i) return -1;
        sum += (int64_t)plan->rows[j].bytes;
    }
    return sum;
}

void console_memory(FILE *out, const MemoryPlan *plan, bool by_tensor, size_t free_bytes, size_t total_bytes,
                    int largest_batch) {
    char first[FORMAT_NUMBER], second[FORMAT_NUMBER];
    const int name_width = memory_name_width(out);
    print_line(out, "memory plan");
    for (int i = 0; by_tensor && i < plan->n_rows; i++)
        print_memory_row(out, plan->rows[i].name, plan->rows[i].category, plan->rows[i].bytes,
                         plan->total_bytes);
    if (by_tensor) print_line(out, "by category");
    for (int i = 0; i < plan->n_rows; i++) {
        int64_t bytes = category_bytes(plan, i);
        if (bytes >= 0) print_memory_row(out, plan->rows[i].category, "", (size_t)bytes, plan->total_bytes);
    }
    print_memory_row(out, "total", "", plan->total_bytes, plan->total_bytes);
    if (total_bytes)
        print_line(out, "  %-*s %s of %s free", name_width, "device", format_bytes(first, (double)free_bytes),
                   format_bytes(second, (double)total_bytes));
    if (largest_batch > 0)
        print_line(out, "  %-*s --batch %d", name_width, "largest that fits", largest_batch);
    else if (largest_batch == 0)
        print_line(out, "  %-*s none, not even --batch 1", name_width, "largest that fits");
}

void console_more_memory(FILE *out, const char *name, size_t bytes, const char *where) {
    char text[FORMAT_NUMBER];
    if (bytes)
        print_line(out, "  %-*s %s%s", memory_name_width(out), name, format_bytes(text, (double)bytes),
                   is_narrow(out) ? "" : where);
}
