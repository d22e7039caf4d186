/* The run's folder: names of checkpoints in it, what a dead save left, what --keep removes. Shared by the saving and
 * the loading side. Everything that changes the folder goes through its descriptor. */
#pragma once
#include "checkpoint.h"
#include "llmc/base/files.h"

enum { CHECKPOINT_NAME = 64 };

/* "step_00000200"; with a prefix "PREFIXstep_00000200-PID". */
void checkpoint_name(char name[CHECKPOINT_NAME], const char *prefix, int64_t step);

typedef struct CheckpointEntry {
    int64_t step;
    char name[CHECKPOINT_NAME];
    bool aside; /* a .old- one */
    /* By its manifest, of the whole ones that --keep looks at. */
    double val_loss; /* NAN: none, or of other data */
    bool best_only, goes;
} CheckpointEntry;

/* All OUT/step_* and OUT/.old-step_*, the newest first, of one step that in its place first; malloc'ed. */
bool checkpoint_entries(const char *out, CheckpointEntry **entries, int *n, Error *err);
/* Reads OUT/NAME: sizes and checksums hold of its weights and, `with_optimizer`, of the optimizer's file, without which it is
 * not whole then. */
bool checkpoint_is_whole(const char *out, const char *name, bool with_optimizer, Error *err);
/* The same of a checkpoint of either kind: nothing that it says it has is damaged. */
bool checkpoint_is_undamaged(const char *out, const char *name);
/* True where --resume could go on with OUT/NAME, by its manifest and the sizes of its files. */
bool checkpoint_looks_resumable(const char *out, const char *name, Error *err);
/* True of the names that a save writes, by this program and by earlier ones. */
bool checkpoint_has_file(const char *name);
/* Removes OUT/NAME, a checkpoint or what is left of one; what stays is named on stderr. */
void checkpoint_remove(int folder, const char *out, const char *name);
/* Removes the leftovers of this process's saves, or (all) of every process's, and puts back what they had moved
 * aside. */
void checkpoint_remove_leftovers(int folder, const char *out, bool all);
/* True while a thread removes what the last save from a snapshot left no place for. */
bool checkpoint_is_removing(void);
/* Removes what --keep and --keep-best leave no place for, among the whole checkpoints up to `step`; all others where
 * `options` say so. */
void checkpoint_prune(int folder, const char *out, int64_t step, const SaveOptions *options);
/* The lowest validation loss of the whole checkpoints up to `step`, by their manifests; NAN: none was validated on
 * that data (NULL: any). */
double checkpoint_lowest_loss(const char *out, int64_t step, const char *validation);
/* True where the run that wrote `newest`, a checkpoint's path, had --keep-best, and OUT holds one of a lower validation
 * loss. */
bool checkpoint_kept_better(const char *out, const char *newest, CheckpointEntry *best);
/* What would go after the save of `step` goes before it, as long as a whole one stays; true where any did. */
bool checkpoint_prune_before(int folder, const char *out, int64_t step, const SaveOptions *options);
/* True where the disk has room for a checkpoint of so many bytes. To make room, those that would go after the save
 * go before it, as long as a whole one stays. */
bool checkpoint_make_room(int folder, const char *out, int64_t bytes, int64_t step,
                          const SaveOptions *options, Error *err);
