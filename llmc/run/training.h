/* A training step, from data to report, and what a run knows of itself. The loop over steps is in train_gpt2.cu. */
#pragma once
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include "llmc/checkpoint/checkpoint.h"
#include "console.h"
#include "log.h"
#include "setup.h"

enum {
    MAX_BAD_STEPS = 3,  /* skipped updates in a row after which the run stops */
    PROBE_TOKENS = 256, /* that a state must give a loss of before it is saved, at most */
};

/* A step whose ops are all queued on the device. Its loss and norm are read once a part of the next step is queued as
 * well, so the device never waits for the host: the first micro-step, or all where there is one. */
typedef struct QueuedStep {
    int64_t step; /* 0: none */
    double begun; /* seconds: when the host began to queue it */
    double lr;
    double flops_per_token;
    bool none_in_flight; /* when it was queued, so it may have loaded kernels and grown the memory */
    bool hashed;         /* its statistics have the weights' hash */
} QueuedStep;

/* The beginning of a step's data. */
typedef struct Probe {
    int n;
    int32_t tokens[PROBE_TOKENS], targets[PROBE_TOKENS];
} Probe;

/* Rank 0 decides, and tells the others. */
typedef enum { SAVE_REFUSED, SAVE_AT_ONCE, SAVE_FROM_SNAPSHOT, SAVE_IN_BACKGROUND } SaveWay;

/* A checkpoint that a thread of rank 0 writes from the snapshot, as a rule while training goes on. */
typedef struct BackgroundSave {
    Run *run;
    pthread_t thread;
    bool running;      /* the main thread has not seen its end */
    bool overlaps;     /* training goes on meanwhile */
    atomic_bool ended; /* what follows is final */
    TrainerState state;
    SaveOptions options;
    double begun, seconds; /* when the snapshot was begun; from then on */
    bool ok;
    Error err;
} BackgroundSave;

typedef struct Saving {
    int64_t last_saved;    /* step of the newest that is on the disk, as rank 0 last told; -1: none */
    int64_t last_begun;    /* the same, whether it is there yet or not */
    int64_t last_verified; /* last_begun when ranks last found their weights equal */
    int64_t retry_step;    /* a save failed: the step after which the next is tried; 0: none failed */
    int64_t retry_gap;     /* steps from the failed one to that: 1, then twice as many each time */
    bool asked;            /* the one that a thread writes was asked for by SIGUSR1 */
    bool said_wait;        /* that saves take longer than the steps between them */
    BackgroundSave background;
} Saving;

typedef struct Training {
    Run *run;
    Console console;
    RunLog log;
    double peak_flops;       /* of one rank */
    double seconds_training; /* wall clock of the steps alone: no evaluation, sampling, saving */
    double step_seconds;     /* of the last step; INFINITY before the first */
    double train_loss, val_loss;
    int64_t val_step;   /* of val_loss; -1: none */
    double val_bytes;   /* with --eval-only: of text that the tokens validated on stand for; 0: not known */
    TrainerState state; /* of the last step queued: what a checkpoint says beside the model */
    QueuedStep queued;  /* the one whose result is still to be read */
    double result_read; /* seconds: when the last result was there, which is when its step ended */
    bool stop_agreed;   /* a step's statistics said that a rank was asked to end the run */
    bool save_agreed;   /* the same of SIGUSR1: a rank was asked to save */
    int n_lost;         /* items of the last --hellaswag with losses that are NaN or infinite */
    bool is_best;       /* the last evaluation found the run's lowest loss */
    Saving saving;
    int bad_in_a_row; /* steps up to now */
    bool untrusted;   /* MAX_BAD_STEPS in a row, or verify.h found a fault: nothing is saved any more */
    Probe fed[2];     /* of the steps on their way, by step % 2 */
    Probe good;       /* of the last step that was not bad: weights that diverged show on it */
    size_t memory_bytes, peak_memory_bytes; /* measured on the device */
} Training;

/* Queues a step, and reports the one before it; where nothing runs ahead, this step is done, too. Steps count from
 * 1: `step` is the number of steps done once its ops are. False on bad data, before anything of the update is
 * queued, and where MAX_BAD_STEPS in a row were bad. A step that is left out for a stop changes neither weights,
 * moments nor t->state. */
bool training_step(Training *t, int64_t step, Error *err);
/* The run ends here. Ranks end behind the same step: the one whose statistics say that any of them is to stop; a process
 * alone need not wait for them. */
bool training_stops(const Training *t);
/* The same within an evaluation, where all ranks call it at once: they have no step to agree in. */
bool training_agrees_to_stop(Training *t);
/* True once where a checkpoint was asked for: on all ranks behind the same step. */
bool training_take_save_request(Training *t);
/* *mean = the mean loss over the first --eval-batches batches of the validation stream, the same ones every time. Ranks
 * take them in turn; added one by one in their order, they give the same bits on any number of ranks. Where
 * training_stops() comes true meanwhile, it ends without a mean. */
bool training_validate(Training *t, double *mean, Error *err);
/* Reports the step that is still queued, if there is one: before all that needs the model at rest. */
bool training_settle(Training *t, Error *err);
/* Queues the next step, and no more: for profile_run. */
bool training_queue(Training *t, Error *err);
/* Of the peak, what `flops` a second of all ranks are. A measured peak that was passed was measured badly, beside
 * another program, say: it is measured again, and is at least what was done. */
double training_mfu(Training *t, double flops);
/* From here and from each save on the watchdog knows which checkpoint stands. */
void training_tell_watchdog(const Training *t);
/* What of the run is on the disk, for a message about what is not. Returns text. */
const char *training_what_stands(const Training *t, char *text, size_t size);

/* ---- training_save.c ---- */
/* Saves the run at t->state in --out; all ranks. A failure is written to the log, too, and sets the time of the next try.
 * `overlap`, where there is room for a snapshot: rank 0's thread writes it while training goes on, and true says only
 * that it has begun. One at a time: the one before it has been collected. */
bool training_save(Training *t, const SaveOptions *options, bool overlap, Error *err);
/* Reports the save that a thread has ended: failures on stderr and in the log. `wait`: waits for its end. */
void training_collect_save(Training *t, bool wait);
/* Waits for rank 0's thread; then all ranks know the newest checkpoint. */
void training_await_save(Training *t);
/* True once where a save that failed is to be tried again behind `step`. */
bool training_take_retry(Training *t, int64_t step);

/* printf would show the sign that a NaN may have; those of StepStats have none. */
static inline double unsigned_nan(double x) {
    return isnan(x) ? NAN : x;
}
