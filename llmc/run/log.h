/* DIR/log.jsonl: one strict JSON object a line, every step, for plots and for machines.
 *
 *   {"run": {..., "train_fingerprint": ..., "val_fingerprint": ...}}   first line of each run: the header; the two tell data from
 *                                                                      others of the same names, 0: none
 *   {"step": 1, "loss": ..., "lr": ..., "norm": ..., "ms": ..., "tok_s": ..., "mfu": ..., "memory": bytes, "skipped": 0}
 *   {"step": 250, "val_loss": ...}   of --eval-only also "evaluated": on what
 *   {"step": 250, "acc_norm": ..., "acc": ..., "items": 10042}   of --hellaswag; of --eval-only also "chosen", "evaluated"
 *   {"step": 250, "sources": [{"glob": "a_*.bin", "tokens": 573440, "epochs": 0.57}, ...]}   of a mixture, with each validation
 *   {"step": 500, "sample": "text"}
 *   {"step": 1000, "checkpoint": "step_00001000", "seconds": ...}   once it is on the disk, which may be some steps later
 *   {"step": 1000, "save_failed": "why"}
 * NaN, inf and what was not measured are null. A line is written whole as soon as it is known. A resumed run first drops
 * the lines past the step that it resumes from, so no step stands there twice; those of evaluations stay. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "llmc/base/error.h"
#include "llmc/data/choices.h"
#include "llmc/data/dataloader.h"
#include "llmc/tokenizer/tokenizer.h"

/* What is known of one optimizer step, for the console and the log. NAN: unknown. */
typedef struct StepReport {
    int64_t step; /* from 1: steps done */
    double loss;  /* mean over the step's tokens, nats */
    double lr;
    double norm; /* of the gradients, before clipping */
    double ms;
    double tokens_per_second; /* over all ranks */
    double mfu;               /* model FLOP/s over the peak: 0.41 is 41 % */
    size_t memory_bytes;      /* in use on the device of rank 0; 0: not known */
    int64_t n_skipped;        /* updates skipped so far (NaN or inf), over the whole run */
} StepReport;

typedef struct LogHeader {
    int argc;
    char **argv;
    const char *flags;  /* JSON object: flags_to_json */
    const char *device; /* ops->device->name() */
    const char *model;  /* "d12", or the path of its files */
    int64_t n_parameters;
    const Tokenizer *tokenizer;                  /* NULL: none */
    const char *train_data, *val_data;           /* dataloader_description; NULL: none */
    uint32_t train_fingerprint, val_fingerprint; /* dataloader_fingerprint; 0: none */
    int n_ranks;
} LogHeader;

typedef struct RunLog {
    bool is_open;    /* false: no log; every call is then a no-op */
    int fd, folder;  /* DIR/log.jsonl, and DIR: open */
    char path[1024]; /* of it */
    char *header;    /* its line, with which a new file begins; NULL: none */
    int64_t n_lost;  /* lines since writes began to fail; the user was told, once */
    bool is_asked;   /* the lines are what the user asked for: a failed write ends the program */
} RunLog;

/* False where one of the log's names in DIR stands for no file: nothing is written through a link, a FIFO, ... */
bool log_check(const char *dir, bool resumed, Error *err);
/* Where the checkpoint of that step has its log in DIR/log.1.jsonl, because a later run was killed before its save, the
 * two logs change places. log_open does it for a resumed run. */
#define LOG_ASIDE "log.1.jsonl"
void log_take_back(const char *dir, int64_t step);
/* Opens DIR/log.jsonl (dir exists; NULL: no log) and writes the header; refuses what log_check does. resumed_step >= 0:
 * keeps the lines up to that step (rewritten to a temporary file, fsync'ed, renamed) and appends. resumed_step < 0: a new
 * run; a log that is already there is moved to log.1.jsonl, log.2.jsonl, ... */
bool log_open(RunLog *run, const char *dir, int64_t resumed_step, const LogHeader *header, Error *err);
/* Opens DIR/log.jsonl (NULL: no log) for lines behind those that are there; no header. A file that is no log is moved as log_open does. */
bool log_append(RunLog *run, const char *dir, Error *err);
/* A full disk is a warning, once, on stderr, and another when lines are written again; the run goes on, and no torn line
 * stays in the file. Behind log_append it ends the program: an evaluation leaves nothing else.
 * Where the file was rotated or removed a new one of its name begins, with the header. */
void log_step(RunLog *run, const StepReport *report);
/* evaluated, here and in log_score: the data of an --eval-only, which may not be the run's; else NULL. */
void log_val(RunLog *run, int64_t step, double val_loss, const char *evaluated);
/* chosen (n_items): the ending that acc_norm chooses of each, a digit an item, '?' from the eleventh ending on; NULL:
 * they are left out. */
void log_score(RunLog *run, int64_t step, const ChoiceScore *score, const unsigned char *chosen,
               const char *evaluated);
/* What of each source of `data` was trained on before a position; nothing where there is one, or none. */
void log_sources(RunLog *run, int64_t step, const DataLoader *data, int64_t position);
void log_sample(RunLog *run, int64_t step, const char *text, size_t length);
void log_checkpoint(RunLog *run, int64_t step, double seconds);
void log_failed_save(RunLog *run, int64_t step, const char *why);
/* The folder is another one now (its path is the same): the lines to come go there, behind those that its log lacks. */
void log_follow(RunLog *run, const char *dir);
void log_close(RunLog *run);
