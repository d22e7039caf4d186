/* What becomes of the flags after parsing: defaults by recipe, contradictions, JSON, changes on resume. */
#include "flags_table.h"
#include "llmc/base/integers.h"
#include "llmc/base/json.h"
#include "llmc/data/dataloader.h"
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* True where --model (value) is a descriptor (nano, baby, d12, gpt3:c768), not a path. */
static bool is_descriptor(const char *model) {
    GPT2Config config;
    Error unused = {0};
    return gpt2_config_from_descriptor(&config, model, &unused);
}

/* Or --memory plans it. */
static bool is_of_samples(const Settings *s) {
    const bool asked = flags_was_set(s, "prompt") || s->prompt_file || s->chat;
    return asked && !flags_was_set(s, "train") && flags_was_set(s, "model") && !is_descriptor(s->model) &&
           !s->eval_only;
}

bool settings_sample_only(const Settings *s) {
    return is_of_samples(s) && !s->memory;
}

bool settings_model_alone(const Settings *s) {
    return s->export_path || is_of_samples(s);
}

bool settings_scores_alone(const Settings *s) {
    return s->eval_only && s->hellaswag && !s->val && !flags_was_set(s, "train");
}

bool settings_has_validation(const Settings *s) {
    return s->val || (!dataloader_names_shards(s->train) && !settings_scores_alone(s));
}

bool settings_validates_after(const Settings *s, int64_t step) {
    return step == s->steps || (s->eval_every > 0 && step % s->eval_every == 0);
}

static bool keeps_by_default(const Settings *s) {
    const bool trains = !s->profile && !s->overfit && !s->eval_only && !s->export_path;
    return trains && !flags_was_set(s, "train") && !flags_was_set(s, "model") && !flags_was_set(s, "recipe");
}

void settings_set_default_out(Settings *s) {
    if (!s->out && keeps_by_default(s)) s->out = DEFAULT_OUT;
}

bool settings_out_is_default(const Settings *s) {
    return s->out && !flags_was_set(s, "out");
}

static RecipeId choose_recipe(const Settings *s, bool on_gpu) {
    bool small_model = s->model && (strcmp(s->model, "nano") == 0 || strcmp(s->model, "baby") == 0);
    bool gpt2 = s->model ? !small_model : on_gpu && dataloader_names_shards(s->train);
    if (gpt2) return on_gpu ? RECIPE_GPT2 : RECIPE_GPT2_CPU;
    return on_gpu ? RECIPE_GPU_SMALL : RECIPE_CPU_SMALL;
}

/* Of the flags of a checkpoint and a log, where the ranks changed --tokens-per-step. */
static const char *const asked_tokens = "tokens-per-step-asked";

/* The multiple of `of`, at least one, that is nearest to x. */
static int64_t nearest(int64_t x, int64_t of) {
    return clamp_i64((x + of / 2) / of, 1, INT64_MAX) * of;
}

static void set_from_recipe(Settings *s, const RecipeRow *row) {
    Error err = {0}; /* stays empty: test_flags reads every recipe */
    int flag = flag_find(row->flag);
    if (!s->was_set[flag]) flag_set_value(s, &flags_table[flag], row->flag, row->value[s->recipe - 1], &err);
}

int64_t settings_micro_step(const Settings *s, int n_ranks) {
    return s->batch * s->seq * clamp_i64(n_ranks / s->context_gpus, 1, n_ranks);
}

int64_t settings_least_step(const Settings *s, int n_ranks) {
    return s->reproducible ? s->batch * s->seq * s->reproducible : settings_micro_step(s, n_ranks);
}

/* The multiple of the smallest step that is nearest to what the recipe asks; an explicit value stays, for flags_check to
 * judge. */
static void round_tokens_per_step(Settings *s, int n_ranks) {
    const int64_t least = settings_least_step(s, n_ranks);
    s->asked_tokens_per_step = s->tokens_per_step;
    if (flags_was_set(s, "tokens-per-step") && s->tokens_per_step == 0) s->one_micro_step = true;
    if (s->one_micro_step)
        s->tokens_per_step = least;
    else if (!flags_was_set(s, "tokens-per-step"))
        s->tokens_per_step = nearest(s->tokens_per_step, least);
}

static void complete_tokens_per_step(Settings *s, int n_ranks) {
    set_from_recipe(s, flag_recipe("tokens-per-step"));
    round_tokens_per_step(s, n_ranks);
}

void settings_complete(Settings *s, bool on_gpu, int n_ranks) {
    if (s->recipe == RECIPE_AUTO) s->recipe = (int)choose_recipe(s, on_gpu);
    s->device = on_gpu ? DEVICE_CUDA : DEVICE_CPU;
    for (int i = 0; i < recipe_rows_count; i++) set_from_recipe(s, &recipe_rows[i]);
    if (!on_gpu && !flags_was_set(s, "precision")) s->precision = PRECISION_FP32;
    if (!flags_was_set(s, "warmup")) s->warmup = clamp_i64(s->warmup, 0, s->steps / 10);
    complete_tokens_per_step(s, n_ranks);
    if (s->profile_trace && !flags_was_set(s, "profile")) s->profile = true;
}

const char *settings_lr_is_for(const Settings *s) {
    const char *optimizer = flag_recipe("optimizer")->value[s->recipe - 1];
    return flags_was_set(s, "lr") || s->as_in_checkpoint ||
                   strcmp(optimizer, flags_choice(s, "optimizer")) == 0
               ? NULL
               : optimizer;
}

void settings_limit_seq(Settings *s, int max_seq_len, int n_ranks) {
    if (flags_was_set(s, "seq") || s->seq <= max_seq_len) return;
    s->seq = max_seq_len;
    complete_tokens_per_step(s, n_ranks);
}

/* A copy of a text; NULL where there is none, no room, or another text than it was: bytes that are no UTF-8 are U+FFFD. */
static const char *copy_text(char *copy, size_t size, const JsonValue *text) {
    if (!text || text->type != JSON_STRING || text->length >= size) return NULL;
    return strstr(text->text, "\xef\xbf\xbd") ? NULL : strcpy(copy, text->text);
}

/* As flag_get_text has it. */
static const char *saved_text(const JsonValue *saved) {
    return saved->text ? saved->text : saved->type == JSON_TRUE ? "1" : saved->type == JSON_FALSE ? "0" : "";
}

/* Where no flag names any: the data that the run validated on. */
static void evaluate_on(Settings *s, const JsonValue *saved) {
    static char train[PATH_MAX], val[PATH_MAX];
    if (flags_was_set(s, "train") || s->val || s->hellaswag) return;
    const char *data = copy_text(train, sizeof train, json_get(saved, "train"));
    if (!data) return;
    s->train = data;
    s->data_of_run = true;
    s->val = copy_text(val, sizeof val, json_get(saved, "val"));
}

void settings_evaluate_as(Settings *s, const JsonValue *saved, int n_ranks) {
    static const char *const names[] = {"batch", "seq", "eval-batches"};
    Error ignored = {0};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const JsonValue *value = json_get(saved, names[i]);
        const int flag = flag_find(names[i]);
        if (json_is(value, JSON_NUMBER) && !s->was_set[flag])
            flag_set_value(s, &flags_table[flag], names[i], value->text, &ignored);
    }
    evaluate_on(s, saved);
    complete_tokens_per_step(s, n_ranks);
}

/* Whether a run that goes on has this flag from its checkpoint: how it trains, validates, samples and saves. A CPU has no bf16. */
static bool is_of_run(const Flag *flag, const Settings *s) {
    if (flag->of_command) return false;
    if (strcmp(flag->name, "precision") == 0 && s->device == DEVICE_CPU) return false;
    if (flags_was_set(s, "recipe") && flag_recipe(flag->name)) return false;
    return flag->use != OF_ALL || flag->affects_training;
}

bool settings_resume_as(Settings *s, const JsonValue *saved, int n_ranks, Error *err) {
    enum { TEXTS = 8 };
    static char texts[TEXTS][PATH_MAX], model[PATH_MAX];
    int n_texts = 0;
    Error ignored = {0}; /* of another version of the program, say */
    const char *before = s->train;
    for (int i = 0; i < flags_count; i++) {
        const Flag *flag = &flags_table[i];
        const JsonValue *value = json_get(saved, flag->name);
        if (!value || value->type == JSON_NULL || s->was_set[i] || !is_of_run(flag, s)) continue;
        const char *text = saved_text(value);
        if (flag->type == FLAG_TEXT)
            text = n_texts < TEXTS ? copy_text(texts[n_texts++], sizeof *texts, value) : NULL;
        if (text) flag_set_value(s, flag, flag->name, text, &ignored);
    }
    s->model_of_run = copy_text(model, sizeof model, json_get(saved, "model"));
    s->as_in_checkpoint = !flags_was_set(s, "recipe");
    if (s->as_in_checkpoint && !flags_was_set(s, "tokens-per-step"))
        json_int64(json_get(saved, asked_tokens), &s->tokens_per_step);
    s->data_of_run = s->train != before;
    if (!flags_was_set(s, "warmup")) s->warmup = clamp_i64(s->warmup, 0, s->steps);
    round_tokens_per_step(s, n_ranks);
    return s->data_of_run || flags_was_set(s, "train") ||
           fail(err, EXIT_INPUT,
                "--train is missing, and cannot be read from the checkpoint: %s; hint: --train FILE",
                json_is(json_get(saved, "train"), JSON_STRING) ? "its name is no UTF-8, or too long"
                                                               : "it does not have it");
}

/* A step is whole micro-batches, as many on each rank and in each leaf of the tree. */
static bool check_step(const Settings *s, int n_ranks, Error *err) {
    const int64_t least = settings_least_step(s, n_ranks), micro_batch = s->batch * s->seq;
    if (s->reproducible % n_ranks)
        return fail(
            err, EXIT_INPUT,
            "--reproducible %lld is not a multiple of %d ranks, which have as many leaves each; hint: "
            "--reproducible %lld is nearest",
            (long long)s->reproducible, n_ranks, (long long)nearest(s->reproducible, n_ranks));
    if (s->tokens_per_step % least == 0) return true;
    return fail(
        err, EXIT_INPUT,
        "--tokens-per-step %lld is not a multiple of --batch %lld x --seq %lld x %lld %s = %lld; hint: "
        "--tokens-per-step %lld is nearest",
        (long long)s->tokens_per_step, (long long)s->batch, (long long)s->seq,
        (long long)(least / micro_batch),
        s->reproducible       ? "leaves (--reproducible)"
        : s->context_gpus > 1 ? "groups"
                              : "ranks",
        (long long)least, (long long)nearest(s->tokens_per_step, least));
}

static bool check_numbers(const Settings *s, int n_ranks, Error *err) {
    if (s->batch * s->seq > INT32_MAX) /* the embedding's sort numbers a micro-batch's tokens in 32 bits */
        return fail(
            err, EXIT_INPUT,
            "--batch %lld x --seq %lld = %lld tokens in a micro-batch: expected at most %d; hint: a smaller "
            "--batch, and --tokens-per-step for the rest",
            (long long)s->batch, (long long)s->seq, (long long)(s->batch * s->seq), INT32_MAX);
    if (!check_step(s, n_ranks, err)) return false;
    if (s->steps > INT64_MAX / s->tokens_per_step)
        return fail(err, EXIT_INPUT, "--steps %lld of %lld tokens: expected at most %lld tokens in a run",
                    (long long)s->steps, (long long)s->tokens_per_step, (long long)INT64_MAX);
    if (s->warmup > s->steps)
        return fail(err, EXIT_INPUT,
                    "--warmup %lld is longer than the run: --steps %lld; hint: --warmup %lld at most",
                    (long long)s->warmup, (long long)s->steps, (long long)s->steps);
    return true;
}

/* " --lr --steps": of the flags that were given, those that do nothing in a run for `use` alone. A switch that is off asks
 * for nothing. Returns text. */
static const char *idle_flags(const Settings *s, FlagUse use, char *text, size_t size) {
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < flags_count && used < size; i++) {
        const Flag *flag = &flags_table[i];
        const bool off = flag->type == FLAG_SWITCH && !*(const bool *)((const char *)s + flag->offset);
        if (s->was_set[i] && !off && flag->use != OF_ALL && flag->use != use)
            used += (size_t)snprintf(text + used, size - used, " --%s", flag->name);
    }
    return text;
}

/* What does not train takes no flag that would do nothing there: who gives one expects something of it. */
static bool check_uses(const Settings *s, Error *err) {
    const char *text = s->chat ? "chat" : s->prompt_file ? "prompt-file" : "prompt";
    const struct {
        bool asked;
        const char *flag;
        FlagUse use;
        const char *does, *or_else;
    } rows[] = {
        {s->export_path,          "export",    OF_ALL,        "an export reads --model and does nothing else", ""},
        {settings_sample_only(s), text,        OF_SAMPLES,    "sampling from --model does nothing else",
         ", or --train GLOB to train"                                                                            },
        {s->eval_only,            "eval-only", OF_EVALUATION, "an evaluation neither trains nor samples",      ""},
    };
    char idle[400];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].asked && *idle_flags(s, rows[i].use, idle, sizeof idle))
            return fail(err, EXIT_INPUT, "--%s and%s: %s; hint: leave%s out%s", rows[i].flag, idle,
                        rows[i].does, idle, rows[i].or_else);
    return true;
}

static bool check_groups(const Settings *s, int n_ranks, Error *err) {
    const int size = (int)s->context_gpus;
    int divisor = size; /* for who has no more GPUs */
    while (n_ranks % divisor) divisor--;
    return n_ranks % size == 0 ||
           fail(err, EXIT_INPUT,
                "--context-gpus %d does not divide the %d %s of the run; hint: --gpus %d on a machine with "
                "as many, else --context-gpus %d",
                size, n_ranks, n_ranks == 1 ? "rank" : "ranks", (int)round_up(n_ranks, size), divisor);
}

/* What contradicts itself, and the words for it. */
typedef struct Contradiction {
    bool wrong;
    const char *text;
} Contradiction;

static bool check_contradictions(const Contradiction *rows, size_t n, Error *err) {
    for (size_t i = 0; i < n; i++)
        if (rows[i].wrong) return fail(err, EXIT_INPUT, "%s", rows[i].text);
    return true;
}

static bool check_samples(const Settings *s, int n_ranks, Error *err) {
    const bool from_stdin = s->prompt_file && strcmp(s->prompt_file, "-") == 0;
    /* clang-format off */
    const Contradiction rows[] = {
        {s->chat && !s->sample_tokens,
         "--chat and --sample-tokens 0: an answer has a token or more; hint: leave one of them out"},
        {s->prompt_file && !s->sample_tokens,
         "--prompt-file and --sample-tokens 0: nothing would be sampled; hint: leave one of them out"},
        {s->prompt && !s->sample_tokens,
         "--prompt and --sample-tokens 0: nothing would be sampled; hint: leave one of them out"},
        {flags_was_set(s, "prompt") && s->prompt_file,
         "--prompt and --prompt-file: a sample begins in one way; hint: leave one of them out"},
        {s->chat && !s->memory && !settings_sample_only(s),
         "--chat needs a trained model, and trains none; hint: --model PATH, without --train"},
        {s->chat && s->samples > 1,
         "--chat and --samples: a chat has one answer; hint: leave --samples out"},
        {s->chat && from_stdin,
         "--chat and --prompt-file -: stdin is what you type; hint: --prompt-file FILE"},
        {n_ranks > 1 && from_stdin,
         "--prompt-file - on several ranks: stdin is read once; hint: --prompt-file FILE"},
        {s->restarts && from_stdin,
         "--prompt-file - and --restarts: stdin is read once; hint: --prompt-file FILE"},
        {n_ranks > 1 && s->chat,
         "--chat on several ranks: one answers; hint: leave --gpus or the launcher out"},
        {n_ranks > 1 && settings_sample_only(s) && s->prompt_file,
         "--prompt-file on several ranks: a sample takes one; hint: leave --gpus or the launcher out, or --train GLOB to train"},
        {n_ranks > 1 && settings_sample_only(s),
         "--prompt on several ranks: a sample takes one; hint: leave --gpus or the launcher out, or --train GLOB to train"},
    };
    /* clang-format on */
    return check_contradictions(rows, sizeof rows / sizeof *rows, err);
}

static bool check_saving(const Settings *s, bool is_known, bool no_validation, Error *err) {
    /* clang-format off */
    const Contradiction rows[] = {
        {s->resume && s->profile,
         "--profile and --resume: a profile trains for some seconds and keeps nothing; hint: leave --resume out"},
        {s->resume && !s->out && !keeps_by_default(s),
         "--resume needs to know the run to go on with; hint: --out DIR, its folder"},
        {s->resume && s->model_only,
         "--resume and --model-only: a checkpoint without the optimizer cannot be resumed; hint: leave --model-only out"},
        {s->export_path && strcmp(s->export_path, "-") == 0,
         "--export -: an export is a file or a folder, not stdout; hint: --export model.gguf, or ./- for that name"},
        {s->out && strcmp(s->out, "-") == 0,
         "--out -: a run has a folder, not stdout; hint: --out DIR, or ./- for that name"},
        {s->save_every && flags_was_set(s, "save-every") && !s->out,
         "--save-every: there is no folder to save in; hint: --out DIR"},
        {s->model_only && !s->out,
         "--model-only: there is no folder to save in; hint: --out DIR"},
        {s->keep && !s->out,
         "--keep: there is no folder to save in; hint: --out DIR"},
        {is_known && s->keep && !s->save_every && !s->keep_best,
         "--keep: only one checkpoint is saved, at the end; hint: --save-every N"},
        {s->keep_best && !s->out,
         "--keep-best: there is no folder to save in; hint: --out DIR"},
        {s->keep_best && no_validation,
         "--keep-best: --train names token shards, which are not split; hint: --val GLOB"},
    };
    /* clang-format on */
    return check_contradictions(rows, sizeof rows / sizeof *rows, err);
}

bool flags_check(const Settings *s, int n_ranks, Error *err) {
    const bool is_known = !s->resume || s->is_complete,
               no_validation = is_known && !settings_has_validation(s);
    /* clang-format off */
    const Contradiction rows[] = {
        {s->eval_only && no_validation && !s->hellaswag,
         "--eval-only: --train names token shards, which are not split; hint: --val GLOB"},
        {s->eval_every && flags_was_set(s, "eval-every") && no_validation && !s->hellaswag,
         "--eval-every: --train names token shards, which are not split; hint: --val GLOB"},
        {s->profile && s->out,
         "--profile and --out: a profile trains for some seconds and keeps nothing; hint: leave --out out"},
        {s->device == DEVICE_CPU && s->precision == PRECISION_BF16,
         "--precision bf16 needs a GPU, the CPU computes in fp32; hint: --precision fp32"},
        {s->reproducible && s->context_gpus > 1,
         "--reproducible and --context-gpus: a sum over the parts of a sequence has another order; hint: leave one of them out"},
        {s->hellaswag && s->context_gpus > 1,
         "--hellaswag and --context-gpus: its items are short; hint: leave one of them out"},
        {is_known && s->optimizer != OPTIMIZER_MUON && (flags_was_set(s, "momentum") || flags_was_set(s, "muon-polynomial")),
         "--momentum and --muon-polynomial are Muon's, and the optimizer is AdamW; hint: --optimizer muon, or --beta1 for AdamW's average"},
        {s->profile_trace && !s->profile,
         "--profile-trace and --profile 0: a trace is of profiled steps; hint: leave --profile 0 out"},
        {n_ranks > 1 && s->profile,
         "--profile on several ranks: a profile is of one; hint: leave --gpus or the launcher out"},
        {s->restarts && !s->out,
         "--restarts: there is nothing to go on from; hint: --out DIR"},
        {s->restarts && flags_was_set(s, "resume") && !s->resume,
         "--restarts and --resume 0: a restart resumes; hint: leave --resume 0 out"},
        {s->restarts && s->model_only,
         "--restarts and --model-only: a checkpoint without the optimizer cannot be resumed; hint: leave --model-only out"},
        {!s->export_path && flags_was_set(s, "export-type"),
         "--export-type: of what? hint: --export PATH"},
        {s->export_path && !flags_was_set(s, "model"),
         "--export: which model? hint: --model PATH"},
        {s->export_path && n_ranks > 1,
         "--export on several ranks: one writes; hint: leave --gpus or the launcher out"},
        {s->eval_only && is_descriptor(s->model),
         "--eval-only: new weights are random; hint: --model PATH"},
    };
    /* clang-format on */
    return check_uses(s, err) && check_saving(s, is_known, no_validation, err) &&
           check_contradictions(rows, sizeof rows / sizeof *rows, err) && check_samples(s, n_ranks, err) &&
           check_groups(s, n_ranks, err) && (!is_known || check_numbers(s, n_ranks, err));
}

/* ---- JSON ---- */

char *flags_to_json(const Settings *s) {
    JsonWriter w = {0};
    json_begin_object(&w, NULL);
    for (int i = 0; i < flags_count; i++) {
        const Flag *flag = &flags_table[i];
        const void *field = (const char *)s + flag->offset;
        if (flag->answers) continue;
        switch (flag->type) {
        case FLAG_SWITCH:
            json_write_bool(&w, flag->name, *(const bool *)field);
            break;
        case FLAG_INT:
            json_write_int(&w, flag->name, *(const int64_t *)field);
            break;
        case FLAG_REAL:
            json_write_double(&w, flag->name, *(const double *)field);
            break;
        case FLAG_TEXT:
            json_write_string(&w, flag->name,
                              flag->offset == offsetof(Settings, model) && s->model_of_run
                                  ? s->model_of_run
                                  : *(const char *const *)field);
            break;
        case FLAG_CHOICE:
            json_write_string(&w, flag->name, flag->choices[*(const int *)field]);
            break;
        }
    }
    if (s->asked_tokens_per_step > 0 && s->asked_tokens_per_step != s->tokens_per_step)
        json_write_int(&w, asked_tokens, s->asked_tokens_per_step);
    json_end_object(&w);
    if (!w.text.failed) return w.text.data;
    json_writer_free(&w);
    return NULL;
}

void flags_to_lines(const Settings *s, char *text, size_t size) {
    char number[FORMAT_NUMBER];
    for (int i = 0; i < flags_count; i++) {
        if (flags_table[i].answers) continue;
        const char *shown = flag_get_text(s, &flags_table[i], number);
        const bool is_switch = flags_table[i].type == FLAG_SWITCH,
                   absent = is_switch ? strcmp(shown, "0") == 0 : !*shown;
        const int n = snprintf(text, size, "%s--%s%s%s\n", absent ? "no " : "", flags_table[i].name,
                               is_switch || absent ? "" : " ", is_switch ? "" : shown);
        if (n < 0 || (size_t)n >= size) return;
        text += n;
        size -= (size_t)n;
    }
}

/* ---- what a resumed run does otherwise ---- */

static bool same_value(const JsonValue *saved, const char *now) {
    double number;
    if (saved->type == JSON_NUMBER) return json_double(saved, &number) && number == strtod(now, NULL);
    return strcmp(saved_text(saved), now) == 0;
}

/* For a message: the text, or "..." and its end, since paths differ there. */
static void describe(char *buffer, size_t size, const Flag *flag, const char *text) {
    if (flag->type == FLAG_SWITCH) text = strcmp(text, "1") == 0 ? "on" : "off";
    const char *shown = *text ? text : "nothing";
    const size_t length = strlen(shown);
    if (length < size)
        snprintf(buffer, size, "%s", shown);
    else
        snprintf(buffer, size, "...%s", shown + length - (size - 4));
}

/* With --reproducible the number of GPUs shows in no bit; a tokenizer that is not named is the checkpoint's. */
static bool affects_run(const Flag *flag, const Settings *s) {
    return flag->affects_training && !(s->reproducible && strcmp(flag->name, "gpus") == 0) &&
           !(strcmp(flag->name, "tokenizer") == 0 && !s->tokenizer);
}

int flags_differences(const char *saved_json, const Settings *now, FlagDifference found[FLAGS_MAX]) {
    Error unused = {0};
    char number[FORMAT_NUMBER];
    Json *saved = json_parse(saved_json, strlen(saved_json), "the saved flags", &unused);
    int n = saved && json_root(saved)->type == JSON_OBJECT ? 0 : -1;
    for (int i = 0; n >= 0 && i < flags_count; i++) {
        const Flag *flag = &flags_table[i];
        const JsonValue *before = json_get(json_root(saved), flag->name);
        const char *after = flag_get_text(now, flag, number);
        if (!affects_run(flag, now) || !before || same_value(before, after)) continue;
        FlagDifference *d = &found[n++];
        d->name = flag->name;
        describe(d->saved, sizeof d->saved, flag, saved_text(before));
        describe(d->now, sizeof d->now, flag, after);
    }
    json_free(saved);
    return n;
}
