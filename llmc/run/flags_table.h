/* The table of flags and the table of recipes, for the files that loop over them: flags.c (parsing),
 * flags_help.c and flags_completion.c (texts), settings.c (checks, JSON). */
#pragma once
#include <stddef.h>
#include "flags.h"
#include "llmc/base/format.h"

typedef enum {
    FLAG_SWITCH, /* bool: no value, or 0 or 1 */
    FLAG_INT,    /* int64_t */
    FLAG_REAL,   /* double */
    FLAG_TEXT,   /* const char * */
    FLAG_CHOICE, /* an enum that counts up from 0 in the order of `choices` */
} FlagType;

typedef enum {
    GROUP_DATA,
    GROUP_OPTIMISATION,
    GROUP_EVALUATION,
    GROUP_CHECKPOINTS,
    GROUP_SYSTEM,
    GROUP_TOOLS,
    N_GROUPS
} FlagGroup;

/* The runs that a flag does something in; training is one of them. */
typedef enum { OF_ALL, OF_EVALUATION, OF_SAMPLES, OF_TRAINING } FlagUse;

enum { FLAG_CHOICES = 7 };

typedef struct Flag {
    FlagGroup group;
    const char *name; /* without dashes */
    char letter;      /* llm.c's, where it has one; 0: none */
    FlagType type;
    size_t offset;                         /* of the field in Settings */
    const char *default_text;              /* read by flag_set_value; NULL: no value, or by recipe */
    double min, max;                       /* inclusive, FLAG_INT and FLAG_REAL; at most 2^53 */
    const char *choices[FLAG_CHOICES + 1]; /* FLAG_CHOICE, ended by NULL */
    bool may_be_empty;                     /* FLAG_TEXT: "" is a value */
    FlagUse use;
    bool affects_training;  /* a resumed run takes another course, or rounds differently, if this changes */
    bool of_command;        /* this start's alone, or in the model's files: not of a checkpoint's run */
    bool answers;           /* prints something and exits: no part of a run, nor of its JSON */
    bool hidden;            /* left out of the help texts */
    const char *value_name; /* in the help: "N", "GLOB" */
    const char *help;
} Flag;

extern const Flag flags_table[];
extern const int flags_count;
extern const char *const flag_group_names[N_GROUPS];

/* Defaults that depend on model and device, or that --recipe names; in the order of its choices. */
typedef enum {
    RECIPE_AUTO,
    RECIPE_CPU_SMALL,
    RECIPE_GPU_SMALL,
    RECIPE_GPT2,
    RECIPE_GPT2_CPU,
    RECIPE_LLM_C,
    RECIPE_NANOGPT,
    RECIPES_END
} RecipeId;
enum { N_RECIPES = RECIPES_END - 1 }; /* columns of the table; that of a RecipeId is one less */
typedef struct RecipeRow {
    const char *flag;
    const char *value[N_RECIPES];
} RecipeRow;

extern const RecipeRow recipe_rows[];
extern const int recipe_rows_count;

/* Row of the flag with this name or letter; -1 if there is none. */
int flag_find(const char *name);
int flag_find_letter(char letter);
/* The recipe row of a flag, NULL where its default is the same everywhere. */
const RecipeRow *flag_recipe(const char *name);

/* Reads a value strictly and stores it in its field. `shown` is the flag as the user wrote it. */
bool flag_set_value(Settings *s, const Flag *flag, const char *shown, const char *value, Error *err);
/* The field as text that flag_set_value reads back to the same value; "" for none. Of a number it lies in `number`. */
const char *flag_get_text(const Settings *s, const Flag *flag, char number[FORMAT_NUMBER]);
