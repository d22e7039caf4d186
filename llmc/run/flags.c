/* Parsing of the command line: strict values, exact names, one clear line for everything else. */
#include "flags_table.h"
#include <ctype.h>
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int flag_find(const char *name) {
    for (int i = 0; i < flags_count; i++)
        if (strcmp(flags_table[i].name, name) == 0) return i;
    return -1;
}

int flag_find_letter(char letter) {
    for (int i = 0; i < flags_count; i++)
        if (letter && flags_table[i].letter == letter) return i;
    return -1;
}

const RecipeRow *flag_recipe(const char *name) {
    for (int i = 0; i < recipe_rows_count; i++)
        if (strcmp(recipe_rows[i].flag, name) == 0) return &recipe_rows[i];
    return NULL;
}

bool flags_was_set(const Settings *s, const char *name) {
    int i = flag_find(name);
    return i >= 0 && s->was_set[i];
}

/* ---- values ---- */

enum { SHOWN = 64 };

/* A user's string for a message, of which fail() makes control codes '?': at most 60 bytes. Returns shown. */
static const char *shortened(const char *text, char shown[SHOWN]) {
    snprintf(shown, SHOWN, strlen(text) <= 60 ? "%s" : "%.57s...", text);
    return shown;
}

/* What flag_set_value accepts: "a whole number from 1 to 1048576". Returns buffer. */
static const char *flag_allowed(const Flag *flag, char *buffer, size_t size) {
    switch (flag->type) {
    case FLAG_SWITCH:
        snprintf(buffer, size, "no value, 0 or 1");
        break;
    case FLAG_INT:
        snprintf(buffer, size, "a whole number from %.0f to %.0f, in plain digits", flag->min, flag->max);
        break;
    case FLAG_REAL:
        snprintf(buffer, size, "a number from %g to %g", flag->min, flag->max);
        break;
    case FLAG_TEXT:
        snprintf(buffer, size, "%s", flag->value_name);
        break;
    case FLAG_CHOICE: {
        size_t used = (size_t)snprintf(buffer, size, "one of");
        for (int i = 0; flag->choices[i] && used < size; i++)
            used += (size_t)snprintf(buffer + used, size - used, "%s %s", i ? "," : "", flag->choices[i]);
        break;
    }
    }
    return buffer;
}

/* Decimal digits with an optional sign, nothing else: no spaces, no hexadecimal, no 1e6, no 1_000. */
static bool parse_int(const char *text, int64_t *value) {
    const char *digits = text + (*text == '-' || *text == '+');
    if (!*digits || digits[strspn(digits, "0123456789")]) return false;
    errno = 0;
    *value = strtoll(text, NULL, 10); /* past the range: the nearest end, which the range check refuses */
    return true;
}

/* Digits, one point, an exponent: what strtod reads, less its spaces, hexadecimal, inf and nan. */
static bool parse_real(const char *text, double *value) {
    char *end;
    if (text[strspn(text, "+-.0123456789eE")] || !strpbrk(text, "0123456789")) return false;
    *value = strtod(text, &end);
    return end != text && !*end;
}

/* Less than a float holds: what is off at 0, --clip for one, would be off. */
static bool reads_as_zero(const char *text, double value) {
    const size_t mantissa = strcspn(text, "eE");
    return fabs(value) < FLT_MIN && strcspn(text, "123456789") < mantissa;
}

static int find_choice(const Flag *flag, const char *value) {
    for (int i = 0; flag->choices[i]; i++)
        if (strcmp(flag->choices[i], value) == 0) return i;
    return -1;
}

bool flag_set_value(Settings *s, const Flag *flag, const char *shown, const char *value, Error *err) {
    void *field = (char *)s + flag->offset;
    int64_t whole = 0;
    double real = 0;
    char text[SHOWN];
    bool good = false;
    switch (flag->type) {
    case FLAG_SWITCH:
        good = strcmp(value, "0") == 0 || strcmp(value, "1") == 0;
        if (good) *(bool *)field = *value == '1';
        break;
    case FLAG_INT:
        good = parse_int(value, &whole) && (double)whole >= flag->min && (double)whole <= flag->max;
        if (good) *(int64_t *)field = whole;
        break;
    case FLAG_REAL:
        good = parse_real(value, &real) && real >= flag->min && real <= flag->max;
        if (good && reads_as_zero(value, real))
            return fail(err, EXIT_INPUT,
                        "%s: '%s' is too small to be told from 0; expected 0, or %g at least", shown,
                        shortened(value, text), FLT_MIN);
        if (good) *(double *)field = real;
        break;
    case FLAG_TEXT:
        good = *value || flag->may_be_empty;
        if (good) *(const char **)field = value;
        break;
    case FLAG_CHOICE:
        good = find_choice(flag, value) >= 0;
        if (good) *(int *)field = find_choice(flag, value);
        break;
    }
    if (good) return true;
    char allowed[160];
    return fail(err, EXIT_INPUT, "%s: '%s' is not %s%s", shown, shortened(value, text),
                flag->type == FLAG_TEXT     ? "a value; expected "
                : flag->type == FLAG_SWITCH ? "a switch; expected "
                                            : "",
                flag_allowed(flag, allowed, sizeof allowed));
}

/* The shortest of 15, 16, 17 digits that reads back to the same value. */
static const char *format_real(char number[FORMAT_NUMBER], double value) {
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(number, FORMAT_NUMBER, "%.*g", digits, value);
        if (strtod(number, NULL) == value) break;
    }
    return number;
}

const char *flag_get_text(const Settings *s, const Flag *flag, char number[FORMAT_NUMBER]) {
    const void *field = (const char *)s + flag->offset;
    switch (flag->type) {
    case FLAG_SWITCH:
        return *(const bool *)field ? "1" : "0";
    case FLAG_INT:
        snprintf(number, FORMAT_NUMBER, "%lld", (long long)*(const int64_t *)field);
        return number;
    case FLAG_REAL:
        return format_real(number, *(const double *)field);
    case FLAG_CHOICE:
        return flag->choices[*(const int *)field];
    case FLAG_TEXT:
        break;
    }
    const char *text = *(const char *const *)field;
    return text ? text : "";
}

const char *flags_choice(const Settings *s, const char *name) {
    return flag_get_text(s, &flags_table[flag_find(name)], NULL);
}

/* ---- names ---- */

/* Edits (insert, delete, replace, swap neighbours) from a to b: optimal string alignment. */
static int edit_distance(const char *a, const char *b) {
    enum { LONGEST = 32 };
    int rows[LONGEST + 1][LONGEST + 1];
    int n = (int)strlen(a), m = (int)strlen(b);
    if (n > LONGEST || m > LONGEST) return LONGEST;
    for (int i = 0; i <= n; i++) rows[i][0] = i;
    for (int j = 0; j <= m; j++) rows[0][j] = j;
    for (int i = 1; i <= n; i++)
        for (int j = 1; j <= m; j++) {
            bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            int ways[] = {rows[i - 1][j - 1] + (a[i - 1] != b[j - 1]), rows[i - 1][j] + 1, rows[i][j - 1] + 1,
                          swapped ? rows[i - 2][j - 2] + 1 : LONGEST};
            rows[i][j] = ways[0];
            for (int k = 1; k < 4; k++)
                if (ways[k] < rows[i][j]) rows[i][j] = ways[k];
        }
    return rows[n][m];
}

/* What other trainers call flags, and what says the same here. */
static const struct {
    const char *name, *meant;
} other_names[] = {
    {"batch-size",           "--batch"                                  },
    {"bf16",                 "--precision bf16"                         },
    {"block-size",           "--seq"                                    },
    {"checkpoint",           "--model"                                  },
    {"ckpt",                 "--model"                                  },
    {"context",              "--seq"                                    },
    {"cpu",                  "--device cpu"                             },
    {"cuda",                 "--device cuda"                            },
    {"d-model",              "--channels"                               },
    {"data",                 "--train"                                  },
    {"dataset",              "--train"                                  },
    {"dim",                  "--channels"                               },
    {"dtype",                "--precision"                              },
    {"epochs",               "--steps"                                  },
    {"eval-data",            "--val"                                    },
    {"eval-interval",        "--eval-every"                             },
    {"eval-steps",           "--eval-every"                             },
    {"fp16",                 "--precision bf16"                         },
    {"fp32",                 "--precision fp32"                         },
    {"generate",             "--prompt"                                 },
    {"grad-accum",           "--tokens-per-step"                        },
    {"grad-clip",            "--clip"                                   },
    {"hidden-size",          "--channels"                               },
    {"init-from",            "--model"                                  },
    {"input",                "--train"                                  },
    {"interactive",          "--chat"                                   },
    {"learning-rate",        "--lr"                                     },
    {"load",                 "--model"                                  },
    {"max-iters",            "--steps"                                  },
    {"max-length",           "--sample-tokens"                          },
    {"max-new-tokens",       "--sample-tokens"                          },
    {"max-seq-len",          "--seq"                                    },
    {"max-steps",            "--steps"                                  },
    {"max-tokens",           "--sample-tokens"                          },
    {"n-embd",               "--channels"                               },
    {"n-head",               "--heads"                                  },
    {"n-layer",              "--layers"                                 },
    {"num-gpus",             "--gpus"                                   },
    {"num-heads",            "--heads"                                  },
    {"num-layers",           "--layers"                                 },
    {"num-return-sequences", "--samples"                                },
    {"out-dir",              "--out"                                    },
    {"output",               "--out"                                    },
    {"output-dir",           "--out"                                    },
    {"sample",               "--prompt"                                 },
    {"save-interval",        "--save-every"                             },
    {"save-steps",           "--save-every"                             },
    {"seq-len",              "--seq"                                    },
    {"text",                 "--prompt"                                 },
    {"threads",              "OMP_NUM_THREADS=N before the program"     },
    {"val-data",             "--val"                                    },
    {"vocab-size",           "--tokenizer, whose tokens are the model's"},
    {"warmup-steps",         "--warmup"                                 },
    {"wd",                   "--weight-decay"                           },
};

/* The flag whose name is near to an unknown one; -1 if none is. A flag that begins with the name is
 * nearest: "--eval" means "--eval-every" rather than "--val". */
static int nearest_flag(const char *name) {
    int length = (int)strlen(name), best = -1, best_distance = 1 + (length + 1) / 3;
    for (int i = 0; i < flags_count; i++) {
        int distance = edit_distance(name, flags_table[i].name);
        if (length >= 2 && strncmp(name, flags_table[i].name, (size_t)length) == 0) distance = 0;
        if (!flags_table[i].hidden && distance < best_distance) {
            best = i;
            best_distance = distance;
        }
    }
    return best;
}

/* What the user most likely meant by an unknown name, "--batch"; NULL if nothing is near. */
static const char *meant_by(const char *name, char *text, size_t size) {
    for (size_t i = 0; i < sizeof other_names / sizeof *other_names; i++)
        if (strcmp(name, other_names[i].name) == 0) return other_names[i].meant;
    const int near = *name ? nearest_flag(name) : -1;
    if (near < 0) return NULL;
    snprintf(text, size, "--%s", flags_table[near].name);
    return text;
}

/* Bytes of the dashes that an argument begins with. A word processor makes one long dash of two hyphens. */
static size_t leading_dashes(const char *argument) {
    const bool is_long =
        strncmp(argument, "\xe2\x80\x93", 3) == 0 || strncmp(argument, "\xe2\x80\x94", 3) == 0;
    return is_long ? 3 : strspn(argument, "-");
}

/* What no flag stands before: `before` is the flag that took the last value, NULL for none. */
static bool fail_unexpected(const char *argument, const Flag *before, Error *err) {
    char text[SHOWN];
    const char *hint = "";
    if (before && before->type == FLAG_TEXT && strcmp(before->value_name, "TEXT") == 0)
        hint = "; hint: a text of several words stands in quotes: --prompt 'Once upon a time'";
    else if (access(argument, F_OK) == 0)
        hint = "; hint: a pattern of files stands in quotes: --train '*.txt'";
    return fail(err, EXIT_INPUT,
                "unexpected argument '%s': expected a flag, such as --train FILE (--help lists all)%s",
                shortened(argument, text), hint);
}

static bool fail_unknown(const char *argument, const Flag *before, Error *err) {
    const size_t dashes = leading_dashes(argument);
    if (!dashes) return fail_unexpected(argument, before, err);
    char name[64], shown[SHOWN], near[64];
    snprintf(name, sizeof name, "%s", argument + dashes);
    name[strcspn(name, "=")] = '\0';
    for (char *c = name; *c; c++)
        *c = *c == '_' ? '-' : (char)tolower((unsigned char)*c); /* as others write them */
    const char *meant = meant_by(name, near, sizeof near);
    shortened(argument, shown);
    if (meant)
        return fail(err, EXIT_INPUT, "unknown flag %s; did you mean %s? (--help lists all)", shown, meant);
    return fail(err, EXIT_INPUT, "unknown flag %s (--help lists all)", shown);
}

/* ---- argv ---- */

/* Row of the flag that argument names, -1 if none; *value is what follows '=', else NULL. */
static int match_flag(const char *argument, const char **value) {
    *value = NULL;
    if (argument[0] != '-') return -1;
    if (argument[1] != '-') return argument[1] && !argument[2] ? flag_find_letter(argument[1]) : -1;
    char name[32];
    size_t length = strcspn(argument + 2, "=");
    if (length >= sizeof name) return -1;
    memcpy(name, argument + 2, length);
    name[length] = '\0';
    if (argument[2 + length] == '=') *value = argument + 3 + length;
    return flag_find(name);
}

/* A value that is itself a flag means that the value was left out. --name=--text is the way around. */
static bool looks_like_flag(const char *argument) {
    const char *unused;
    return strncmp(argument, "--", 2) == 0 || match_flag(argument, &unused) >= 0;
}

/* The value for `flag`, from behind '=' or from the next argument, which it then consumes. */
static const char *take_value(const Flag *flag, const char *inline_value, int argc, char **argv, int *at) {
    if (inline_value) return inline_value;
    const char *next = *at + 1 < argc ? argv[*at + 1] : NULL;
    if (flag->type == FLAG_SWITCH) {
        bool given = next && (strcmp(next, "0") == 0 || strcmp(next, "1") == 0);
        return given ? argv[++*at] : "1";
    }
    return next && !looks_like_flag(next) ? argv[++*at] : NULL;
}

static void set_defaults(Settings *s) {
    Error err = {0};
    *s = (Settings){0};
    for (int i = 0; i < flags_count; i++)
        if (flags_table[i].default_text)
            flag_set_value(s, &flags_table[i], flags_table[i].name, flags_table[i].default_text, &err);
}

bool flags_parse(Settings *s, int argc, char **argv, Error *err) {
    const Flag *flag = NULL;
    set_defaults(s);
    for (int at = 1; at < argc; at++) {
        const char *inline_value;
        int row = match_flag(argv[at], &inline_value);
        if (row < 0) return fail_unknown(argv[at], flag, err);
        flag = &flags_table[row];
        char shown[40], allowed[160];
        if (argv[at][1] == '-')
            snprintf(shown, sizeof shown, "--%s", flag->name);
        else
            snprintf(shown, sizeof shown, "-%c (--%s)", flag->letter, flag->name);
        if (s->was_set[row]) return fail(err, EXIT_INPUT, "%s: given twice", shown);
        const char *value = take_value(flag, inline_value, argc, argv, &at);
        if (!value)
            return fail(err, EXIT_INPUT, "%s: value missing; expected %s", shown,
                        flag_allowed(flag, allowed, sizeof allowed));
        if (!flag_set_value(s, flag, shown, value, err)) return false;
        s->was_set[row] = true;
        if (flag->answers && strcmp(value, "0") != 0) return true;
    }
    return true;
}
