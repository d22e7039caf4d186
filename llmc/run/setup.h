/* From settings to everything that a run needs, in the order in which mistakes are cheapest to find: backend,
 * output folder, tokenizer, model size, device and memory plan, data, weights. */
#pragma once
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/comm/rendezvous.h"
#include "console.h"
#include "llmc/data/choices.h"
#include "llmc/data/dataloader.h"
#include "flags.h"
#include "llmc/model/gpt2.h"
#include "llmc/tokenizer/tokenizer.h"

/* --out, held open and locked while the run lasts. */
typedef struct Output {
    int folder, lock; /* descriptors */
    bool alone;       /* false where the file system has no locks */
} Output;

enum { SIGNATURE = 64 };

typedef struct Run {
    Settings settings;
    const Ops *ops;
    Tokenizer *tokenizer;         /* NULL: samples are token ids, and text is refused */
    const char *tokenizer_origin; /* how it was chosen, for the header */
    char no_tokenizer[1000];      /* where there is none: which file is missing */
    char *prompt;                 /* --prompt-file's text; NULL: none */
    int end_of_text;              /* with --pack: the token that ends a document */
    char sparse[48];              /* what settings.sparse points at where the model's files say it */
    GPT2Config config;
    GPT2 model;
    Snapshot snapshot;       /* for saves beside training; open on rank 0 where there are such, and room */
    DataLoader *train, *val; /* NULL where the run needs none */
    Choices *choices;        /* of --hellaswag; NULL: none */
    ChoicePlan choice_plan;
    char checkpoint[1024];    /* what --resume found; "" for a new run */
    int64_t checkpoint_step;  /* of that */
    bool lacks_validation;    /* that was saved without a validation loss of its step */
    const char *unread_model; /* --model, where another model's run is resumed; NULL: none */
    char model_path[1024];    /* files of the model: --model's, or checkpoint; "" for a new model */
    TrainerState resumed;     /* where the run goes on; zero for a new run */
    size_t planned_bytes;     /* total of the memory plan */
    size_t free_at_start;     /* bytes free on the device before the model was opened */
    size_t exchange_bytes;    /* that the exchange with other ranks took when it was opened */
    size_t resident_at_start; /* on the CPU: of the process, then */
    bool output_locked;       /* run.lock in --out is ours: output is open */
    Output output;
    char signature[SIGNATURE]; /* what run.lock holds of this run, and of no other; "": nothing yet */
    bool cpu_instead;          /* --device auto found no card, though the program could use one */
    Comm *context; /* with those of comm's ranks that share its sequences out; NULL: whole sequences */
    Comm planned;  /* stands for context in a memory plan */
    Place place;   /* of this process, as the launcher says */
    Rendezvous rendezvous;
    Comm planned_ranks; /* comm, before the others are there */
    Comm *comm; /* with the ranks that train together; rank 0 prints, samples, logs, locks and saves */
} Run;

/* Which reader of data this rank is, of how many: those that share sequences out are one. */
static inline Ranks setup_data_ranks(const Run *run) {
    return ranks_of_data(run->comm->ranks, (int)run->settings.context_gpus);
}

/* Where the lines before the run go: not to stdout where that is for text alone. */
static inline FILE *setup_header(const Run *run) {
    return settings_sample_only(&run->settings) ? stderr : stdout;
}

/* Which of several ranks this process is: run->comm is planned. Refuses --gpus under another launcher. */
bool setup_place(Run *run, Error *err);
/* The planned Comm takes the bytes that the device's will take. */
void setup_plan_exchange(const Run *run, Comm *planned);
/* True where this process is to be the parent of --gpus or --restarts, and does nothing else. */
bool setup_launches(const Run *run);
/* Fewer cards than --gpus asks for are refused. */
bool setup_check_devices(const Run *run, Error *err);
/* Closes everything, starts the ranks and waits for them; the exit code. */
int setup_launch(Run *run, char **argv);
/* Several ranks: finds the others, opens device and comm; from here on die() on any rank ends all with one line. Exits
 * where that fails: the line is rank 0's. */
void setup_join(Run *run);
/* Exits, with a line of rank 0's, where a rank is not well. All ranks call it together. */
void setup_agree(const Run *run, bool ok, Error *err);
/* The run is over, and the model closed: leaves the other ranks. Returns the exit code; where the process ends_at_once, here. */
int setup_leave(Run *run, int status);
/* One row for the ranks and what they exchange with; nothing for a process alone. */
void setup_print_ranks(const Run *run);

/* Backend of --device, on auto the GPU where there is one; its recipe completes the settings, which say the precision. */
bool setup_backend(Run *run, Error *err);
/* Refuses an --out that another run has, or had without --resume, and --resume alone where DEFAULT_OUT is not
 * that of a run without --out; makes nothing. */
bool setup_check_output(Run *run, Error *err);
/* --resume finds the newest whole checkpoint under --out; then tokenizer and model size, from flags or
 * checkpoint. */
bool setup_model_size(Run *run, Error *err);
/* What --resume goes on with, the same on all ranks: rank 0's. */
bool setup_find_checkpoint(Run *run, Error *err);
/* A run beside may remove the checkpoint that stands for its folder while this one reads it: true where there is
 * another now. */
bool setup_model_moved(Run *run);
/* Reads --prompt-file; of --chat, sees whether stdin can be read. */
bool setup_prompt(Run *run, Error *err);
/* How a sample begins; NULL: no flag says. A file's text is no part of the settings, which each checkpoint holds. */
static inline const char *setup_prompt_text(const Run *run) {
    return run->prompt ? run->prompt : run->settings.prompt;
}
/* Chooses and opens the tokenizer, and holds it to the model's vocabulary. */
bool setup_tokenizer(Run *run, Error *err);
/* Opens the device; a memory plan that does not fit it is refused before anything is read or allocated. */
bool setup_device(Run *run, Error *err);
/* Opens and checks the files of --train and --val; nothing for sampling. */
bool setup_data(Run *run, Error *err);
/* Whether all ranks, which call it together, have opened as much data. */
bool setup_same_data(const Run *run, Error *err);
/* What can be seen of the files before they are read: they are there, of one kind, and shards' headers hold. */
bool setup_check_data(const Run *run, Error *err);
/* Puts the flag that validation data come from before the failure's words; returns false. */
bool setup_fail_val(const Run *run, Error *err);
/* Of the whole run: those before a resume had the --tokens-per-step of then. */
int64_t setup_run_tokens(const Run *run);
/* One row for --train and for --val; of a mixture one for each source. */
void setup_print_data(const Run *run);
/* One row for --hellaswag, if there is one. */
void setup_print_choices(const Run *run);
/* Makes --out, shows that it can be written and has room for a checkpoint, before any time is spent on training;
 * removes what dead saves left there. Without --resume DEFAULT_OUT that cannot be had, or is a folder of the
 * user's, is let go with a note: settings.out is NULL then, on all ranks once they have called
 * setup_share_output. */
bool setup_output(Run *run, Error *err);
void setup_share_output(Run *run);
/* Before each save: the folder may have been moved, removed or unmounted meanwhile. It is then made anew, said on
 * stderr, *moved. */
bool setup_follow_output(Run *run, bool *moved, Error *err);
/* The folder is open for others. */
void setup_release_output(Run *run);
/* What the flags say of saving. */
SaveOptions setup_save_options(const Run *run);
/* True where --resume found a checkpoint that has all of --steps. */
bool setup_is_finished(const Run *run);
/* The checkpoint's step was to be validated, and a signal came before: the run begins with that. */
bool setup_owes_validation(const Run *run);
/* Opens the model, loads or initialises the weights, restores the run's place. */
bool setup_model(Run *run, Error *err);
/* The files that the model comes from, or the name of its size. */
const char *setup_model_name(const Run *run);
/* Optimizer steps that the files of --model have behind them, as they say; 0 where they do not. */
int64_t setup_model_step(const Run *run);
/* One row for device and precision; a note where the CPU stands in for a card. */
void setup_print_device(const Run *run);
/* One row for the model's size, one for its tokenizer. */
void setup_print_model(const Run *run);
void setup_print_tokenizer(const Run *run);
/* Prints the memory plan by kind, with --memory tensor by tensor; allocates nothing. */
void setup_print_memory(const Run *run);
/* Bytes that the run takes on the device, measured, to compare with the plan: on a card all that it has less free than
 * before, whoever took it. 0: not known. */
size_t setup_memory_in_use(const Run *run);
/* Closes what is open; fine after any of the steps above. */
void setup_close(Run *run);
