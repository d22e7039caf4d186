/* The command line. One table of flags (flags_table.c) drives parsing, --help, the table of FLAGS.md, the JSON kept in
 * checkpoints and logs, and the check of what changed when a run is resumed.
 *
 * The order in main(): flags_parse, settings_complete (by setup_backend: fills what the user left open, by recipe),
 * flags_check (contradictions). All of it before anything is allocated or opened. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/base/version.h"
#include "llmc/checkpoint/export.h"
#include "llmc/model/gpt2.h"

typedef enum { DEVICE_AUTO, DEVICE_CUDA, DEVICE_CPU } DeviceKind;
typedef enum { PRECISION_BF16, PRECISION_FP32 } Precision;
typedef enum { GRAPH_OFF, GRAPH_ON } GraphKind;
typedef enum { SCHEDULE_COSINE, SCHEDULE_LINEAR, SCHEDULE_CONSTANT, SCHEDULE_WSD } ScheduleKind;
typedef enum { SHELL_BASH, SHELL_ZSH, SHELL_FISH } ShellKind;

enum { FLAGS_MAX = 96 };

/* Strings point into argv or to constants; NULL where a flag has no value. Counts that a flag turns off are
 * 0. */
typedef struct Settings {
    /* data */
    const char *train, *val; /* globs of shards or text files; val NULL: last tenth of the text */
    const char *tokenizer;   /* "bytes", a file, a directory; NULL: bytes, or what the checkpoint brings */
    /* model */
    const char *model;               /* descriptor, directory or .bin */
    int64_t layers, heads, channels; /* override the descriptor; 0: as it says */
    int64_t window;                  /* of attention; 0: none, or as the model's files say */
    bool pack;                       /* training windows are made of whole documents */
    bool documents;                  /* attention sees its own document only, or as the model's files say */
    const char *sparse;              /* "W,G,R", "0": none; NULL: as the model's files say */
    int64_t batch, seq;              /* micro-batch of one rank, context */
    int64_t tokens_per_step; /* over all ranks and micro-steps; 0 before settings_complete: one micro-step */
    int64_t asked_tokens_per_step; /* before it was rounded to whole micro-steps of the ranks */
    bool one_micro_step;           /* --tokens-per-step 0: a step is the smallest that there is */
    /* optimisation */
    int64_t steps, warmup, seed;
    double lr, final_lr_fraction, weight_decay, beta1, beta2, eps;
    double clip; /* 0: no clipping */
    double dropout;
    OptimizerKind optimizer;
    double momentum; /* Muon's, and its polynomial */
    PolynomialId muon_polynomial;
    ScheduleKind schedule;
    /* evaluation and sampling */
    int64_t eval_every, eval_batches;
    bool eval_only;
    const char *hellaswag;
    int64_t sample_every, sample_tokens; /* sample_every 0: only at the end; sample_tokens 0: never */
    const char *prompt, *prompt_file;
    const char *stop; /* ends a sample; NULL: none */
    bool chat;
    int64_t samples;     /* at a time */
    double temperature;  /* 0: greedy */
    int64_t top_k;       /* 0: all */
    double top_p, min_p; /* 1, 0: all */
    /* checkpoints */
    const char *out;    /* NULL: nothing is written; not given: DEFAULT_OUT or NULL */
    int64_t save_every; /* 0: only at the end */
    int64_t keep;       /* newest checkpoints that stay; 0: all */
    bool keep_best, resume, model_only;
    const char *export_path; /* NULL: no export */
    ExportType export_type;
    /* system */
    DeviceKind device;
    Precision precision;
    int64_t reproducible; /* leaves of the tree of a step's sums; 0: no tree */
    AttentionKind attention;
    Recompute recompute;
    GraphKind graph;
    int64_t context_gpus; /* ranks that share a sequence's tokens out */
    int64_t verify_every; /* 0: never */
    int64_t gpus, restarts;
    /* tools */
    bool memory, profile, overfit, help, help_markdown, version;
    ShellKind completion;
    const char *profile_trace; /* NULL: no trace; else profile is set */

    bool data_of_run;         /* --train and --val are those of --model's run, or of the run that goes on */
    const char *model_of_run; /* --model of the run that goes on, when it began; NULL: model */
    bool as_in_checkpoint;    /* a run goes on: what the flags leave open is its checkpoint's, no recipe's */
    bool is_complete;         /* of --resume: no checkpoint will give anything any more */
    int recipe; /* RecipeId, of what fills the rest; settings_complete chooses where it is RECIPE_AUTO */
    bool was_set[FLAGS_MAX]; /* by row of the table; read through flags_was_set */
} Settings;

/* Reads argv into s, everything not given at its default. Forms: --name value, --name=value, -x value; a
 * switch takes no value, or 0 or 1. False with EXIT_INPUT on the first thing that is not exactly right: the
 * message names the flag, the value and what is allowed. argv must outlive s. */
bool flags_parse(Settings *s, int argc, char **argv, Error *err);

/* Fills every flag that the user left open from the recipe that --recipe names, or that suits model and device
 * (a CUDA device is used: on_gpu; device is then DEVICE_CUDA, else DEVICE_CPU),
 * and makes tokens_per_step a multiple of settings_least_step where the user did not choose it. */
void settings_complete(Settings *s, bool on_gpu, int n_ranks);

/* The optimizer that the recipe's --lr is for, where the run has the other one and no --lr of the user's; else NULL. */
const char *settings_lr_is_for(const Settings *s);

/* Once a checkpoint's context is known: a --seq that the user left open comes down to it, and tokens_per_step
 * follows. An explicit --seq stays. */
void settings_limit_seq(Settings *s, int max_seq_len, int n_ranks);

/* Tokens of a micro-step of all ranks. */
int64_t settings_micro_step(const Settings *s, int n_ranks);
/* A step has a multiple of so many tokens: of a micro-step, or of a micro-batch in each leaf of --reproducible. */
int64_t settings_least_step(const Settings *s, int n_ranks);
/* For --eval-only: data and micro-batches as in the checkpoint's flags, where the user left them open. */
void settings_evaluate_as(Settings *s, const JsonValue *saved, int n_ranks);

/* For --resume: flags of the run that are left open as the checkpoint's flags have them, also --train and --val; where --recipe
 * is given it fills its own. Tokens of a step are rounded to what these ranks can do. False where --train is neither given nor
 * there. */
bool settings_resume_as(Settings *s, const JsonValue *saved, int n_ranks, Error *err);

/* Contradictions between flags that need no device and no file; after settings_complete. Of --resume those that what is left
 * open may solve are looked at once is_complete. */
bool flags_check(const Settings *s, int n_ranks, Error *err);

/* True if the user gave the flag; name without dashes ("tokens-per-step"). */
bool flags_was_set(const Settings *s, const char *name);

/* True where the command line is about text from a checkpoint and no training: --model names files, --prompt,
 * --prompt-file or --chat is given, --train is not, nor is --memory, which plans such a run and draws nothing. */
bool settings_sample_only(const Settings *s);

/* True where a run, or --memory of it, is about --model alone: samples, or an export. It reads no data. */
bool settings_model_alone(const Settings *s);

/* A run of the default text and model, or --memory of it, keeps its model without being asked: sets out.
 * After flags_check. */
#define DEFAULT_OUT "out/default"
void settings_set_default_out(Settings *s);
/* True where that was done. */
bool settings_out_is_default(const Settings *s);

/* True where --eval-only has --hellaswag alone: no data are named to validate on. */
bool settings_scores_alone(const Settings *s);

/* True where there is something to validate on: --val, or a text whose last tenth validates. Token shards are
 * not split: without --val such a run trains and reports "val loss n/a". */
bool settings_has_validation(const Settings *s);
/* Whether a step ends with a validation, where the run has one. */
bool settings_validates_after(const Settings *s, int64_t step);

void flags_help(FILE *out, const char *program);
/* The table in FLAGS.md, between its two markers. */
void flags_help_markdown(FILE *out);
/* What the shell reads to complete flags and their values. */
void flags_completion(FILE *out, ShellKind shell);

/* One JSON object with every flag that shapes a run, malloc'ed; where the ranks changed --tokens-per-step, with what was asked, from
 * which a run that goes on with other ranks rounds. NULL if memory is out. */
char *flags_to_json(const Settings *s);

/* "--name VALUE", "--name" or "no --name", a line for each flag that shapes a run; what does not fit is cut. */
void flags_to_lines(const Settings *s, char *text, size_t size);

/* A flag's value in a checkpoint and now, as text; of a long one "..." and its end. */
typedef struct FlagDifference {
    const char *name;
    char saved[120], now[120];
} FlagDifference;

/* Flags that affect a resumed run and differ between saved_json, as flags_to_json wrote it, and now. A flag that
 * saved_json lacks is not counted. Returns how many differ; -1 where saved_json is no JSON object. */
int flags_differences(const char *saved_json, const Settings *now, FlagDifference found[FLAGS_MAX]);

/* The word that stands for a choice, as the user would write it: of "schedule" "cosine", say. */
const char *flags_choice(const Settings *s, const char *name);
