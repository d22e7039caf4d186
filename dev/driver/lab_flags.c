/* The lab's command line: names of ops, then flags from one table, which --help prints too. */
#include <errno.h>
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "lab.h"

typedef enum FlagType {
    FLAG_ON,
    FLAG_TEXT,
    FLAG_COUNT,
    FLAG_SECONDS,
    FLAG_LENGTHS,
    FLAG_HEADS,
    FLAG_MASK
} FlagType;

typedef struct Flag {
    const char *name, *letter, *value;
    FlagType type;
    size_t field; /* offset in Options */
    size_t size;  /* of a text field */
    const char *help;
} Flag;

#define FIELD(name) offsetof(Options, name), sizeof(((Options *)0)->name)

/* To add a flag: a row, and its field in Options. */
static const Flag flags[] = {
    {"--list",         NULL, NULL,      FLAG_ON,      FIELD(list),
     "every op and variant, whether it runs here, what it teaches"                                                               },
    {"--variant",      NULL, "NAMES",   FLAG_TEXT,    FIELD(variants),
     "comma-separated names, * matches any part, !NAME leaves out"                                                               },
    {"--check",        NULL, NULL,      FLAG_ON,      FIELD(check),        "only check; default: check, then time"               },
    {"--time",         NULL, NULL,      FLAG_ON,      FIELD(time),         "only time"                                           },
    {"--quick",        NULL, NULL,      FLAG_ON,      FIELD(quick),        "smaller checks, shorter timings"                     },
    {"--T",            "-T", "LENGTHS", FLAG_LENGTHS, FIELD(T),            "sequence lengths: 1024,4096 or 1024:131072, doubling"},
    {"--head-size",    NULL, "SIZES",   FLAG_HEADS,   FIELD(head_sizes),   "head sizes; default: 64,128"                         },
    {"--causal",       NULL, "0|1",     FLAG_MASK,    FIELD(causal),       "default: both"                                       },
    {"--queries",      NULL, "N",       FLAG_COUNT,   FIELD(queries),
     "timing: queries of each sequence, keys as -T says; 1: decoding"                                                            },
    {"--sparse",       NULL, NULL,      FLAG_ON,      FIELD(sparse),       "timing: block-sparse attention"                      },
    {"--blocks",       NULL, "W,G,R",   FLAG_TEXT,    FIELD(blocks),       "timing: the trainer's --sparse (causal)"             },
    {"--dropout",      NULL, NULL,      FLAG_ON,      FIELD(dropout),      "timing: attention with dropout"                      },
    {"--window",       NULL, "N",       FLAG_COUNT,   FIELD(window),       "timing: a query sees its last N positions (causal)"  },
    {"--batch-tokens", NULL, "N",       FLAG_COUNT,   FIELD(batch_tokens),
     "timing: B*T; default: 65536 (4096 on a CPU)"                                                                               },
    {"--channels",     NULL, "N",       FLAG_COUNT,   FIELD(channels),
     "timing: heads * head size; default: 1536 (768 on a CPU)"                                                                   },
    {"--fill",         NULL, "NAMES",   FLAG_TEXT,    FIELD(fill),         "checks: kinds of input, 'huge*'; default: all"       },
    {"--repeat",       NULL, "N",       FLAG_COUNT,   FIELD(repeat),
     "checks: runs that must agree bit for bit; default: 2"                                                                      },
    {"--sustained",    NULL, NULL,      FLAG_ON,      FIELD(sustained),
     "time under lasting load, as in training (the default)"                                                                     },
    {"--burst",        NULL, NULL,      FLAG_ON,      FIELD(burst),
     "time the first 50 ms after a pause: what a cool card can do"                                                               },
    {"--seconds",      NULL, "X",       FLAG_SECONDS, FIELD(seconds),
     "timing of one row; default: 0.3 (0.1 with --quick)"                                                                        },
    {"--longest",      NULL, "X",       FLAG_SECONDS, FIELD(longest),
     "timing: rows whose call takes longer are left out; default: 4"                                                             },
    {"--roofs",        NULL, "FILE",    FLAG_TEXT,    FIELD(roofs),
     "timing: roofs are read from FILE, and measured and added where it lacks them"                                              },
    {"--once",         NULL, NULL,      FLAG_ON,      FIELD(once),
     "call each row once, untimed, for a profiler: ncu --profile-from-start off"                                                 },
    {"--csv",          NULL, "FILE",    FLAG_TEXT,    FIELD(csv),          "also write every line as CSV"                        },
    {"--help",         "-h", NULL,      FLAG_ON,      FIELD(help),         "print this"                                          },
};
enum { N_FLAGS = sizeof flags / sizeof *flags };

/* As --help lists it. */
static const char *shown(const Flag *f) {
    return f->letter ? f->letter : f->name;
}

void lab_usage(void) {
    printf("usage: dev/lab [OP...] [flags]\n\nChecks and times every variant of the ops; all ops by "
           "default.\n\n");
    for (int i = 0; i < N_FLAGS; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s %s", shown(&flags[i]), flags[i].value ? flags[i].value : "");
        printf("  %-22s %s\n", name, flags[i].help);
    }
    printf("\nExit code: 0 all passed, 1 a check failed, 2 bad usage.\n");
}

/* ---- values ---- */

static bool parse_count(const char *text, long long max, long long *value) {
    char *end;
    errno = 0;
    *value = strtoll(text, &end, 10);
    return end != text && *end == 0 && errno == 0 && *value >= 1 && *value <= max;
}

enum { LIST_BYTES = 256 };

/* copy (LIST_BYTES) = text, for strsep. */
static bool copy_list(char *copy, const Flag *f, const char *text, Error *err) {
    if (strlen(text) >= LIST_BYTES)
        return fail(err, EXIT_INPUT, "%s: longer than %d characters", shown(f), LIST_BYTES - 1);
    strcpy(copy, text);
    return true;
}

static bool parse_lengths(const Flag *f, const char *text, Options *o, Error *err) {
    enum { MAX = sizeof o->T / sizeof *o->T };
    char copy[LIST_BYTES];
    if (!copy_list(copy, f, text, err)) return false;
    o->n_T = 0;
    for (char *rest = copy, *item; (item = strsep(&rest, ",")) != NULL;) {
        char *colon = strchr(item, ':');
        long long first, last = 0;
        if (colon) *colon = 0;
        if (!parse_count(item, 1 << 24, &first) || (colon && !parse_count(colon + 1, 1 << 24, &last)))
            return fail(err, EXIT_INPUT,
                        "%s: expected lengths of 1 to %d, as 1024,4096 or 1024:131072; found '%s'", shown(f),
                        1 << 24, text);
        for (long long T = first; T <= (colon ? last : first); T *= 2) {
            if (o->n_T == MAX) return fail(err, EXIT_INPUT, "%s: more than %d lengths", shown(f), MAX);
            o->T[o->n_T++] = (int)T;
        }
    }
    if (o->n_T == 0) return fail(err, EXIT_INPUT, "%s: '%s' is an empty range", shown(f), text);
    return true;
}

static bool parse_heads(const Flag *f, const char *text, Options *o, Error *err) {
    enum { MAX = sizeof o->head_sizes / sizeof *o->head_sizes };
    char copy[LIST_BYTES];
    if (!copy_list(copy, f, text, err)) return false;
    o->n_head_sizes = 0;
    for (char *rest = copy, *item; (item = strsep(&rest, ",")) != NULL;) {
        long long size;
        if (!parse_count(item, 256, &size) || size % 8 || o->n_head_sizes == MAX)
            return fail(err, EXIT_INPUT, "%s: expected at most %d multiples of 8 up to 256; found '%s'",
                        shown(f), MAX, text);
        o->head_sizes[o->n_head_sizes++] = (int)size;
    }
    return true;
}

static bool parse_text(const Flag *f, const char *text, Options *o, Error *err) {
    if (*text == 0) return fail(err, EXIT_INPUT, "%s: expected %s; found ''", shown(f), f->value);
    if (strlen(text) >= f->size)
        return fail(err, EXIT_INPUT, "%s: at most %zu characters; found %zu", shown(f), f->size - 1,
                    strlen(text));
    memcpy((char *)o + f->field, text, strlen(text) + 1);
    return true;
}

static bool parse_number(const Flag *f, const char *text, Options *o, Error *err) {
    char *field = (char *)o + f->field, *end;
    long long count;
    if (f->type == FLAG_SECONDS) {
        const double x = strtod(text, &end);
        if (end == text || *end || !(x > 0 && x <= 3600))
            return fail(err, EXIT_INPUT, "%s: expected seconds, above 0 and up to 3600; found '%s'", shown(f),
                        text);
        memcpy(field, &x, sizeof x);
        return true;
    }
    if (f->type == FLAG_MASK) {
        if (strcmp(text, "0") && strcmp(text, "1"))
            return fail(err, EXIT_INPUT, "%s: expected 0 or 1; found '%s'", shown(f), text);
        o->causal = *text - '0';
        return true;
    }
    if (!parse_count(text, 1 << 28, &count))
        return fail(err, EXIT_INPUT, "%s: expected a whole number from 1 to %d; found '%s'", shown(f),
                    1 << 28, text);
    const int value = (int)count;
    memcpy(field, &value, sizeof value);
    return true;
}

static bool parse_value(const Flag *f, const char *text, Options *o, Error *err) {
    switch (f->type) {
    case FLAG_ON:
        break;
    case FLAG_TEXT:
        return parse_text(f, text, o, err);
    case FLAG_LENGTHS:
        return parse_lengths(f, text, o, err);
    case FLAG_HEADS:
        return parse_heads(f, text, o, err);
    case FLAG_COUNT:
    case FLAG_SECONDS:
    case FLAG_MASK:
        return parse_number(f, text, o, err);
    }
    *((bool *)o + f->field) = true;
    return true;
}

/* ---- the command line ---- */

bool list_matches(const char *list, const char *name) {
    char copy[512];
    bool only_exclusions = true, found = false;
    snprintf(copy, sizeof copy, "%s", list);
    for (char *rest = copy, *item; (item = strsep(&rest, ",")) != NULL;) {
        if (*item == '!' && fnmatch(item + 1, name, 0) == 0) return false;
        if (*item == '!' || *item == 0) continue;
        only_exclusions = false;
        found = found || fnmatch(item, name, 0) == 0;
    }
    return found || only_exclusions;
}

static const Flag *find_flag(const char *name) {
    for (int i = 0; i < N_FLAGS; i++)
        if (strcmp(name, flags[i].name) == 0 || (flags[i].letter && strcmp(name, flags[i].letter) == 0))
            return &flags[i];
    return NULL;
}

static bool add_op(Options *o, const char *name, Error *err) {
    const size_t used = strlen(o->ops);
    if (*name == 0) return fail(err, EXIT_INPUT, "expected an op or a flag; found ''; hint: dev/lab --list");
    if (snprintf(o->ops + used, sizeof o->ops - used, "%s%s", used ? "," : "", name) >=
        (int)(sizeof o->ops - used))
        return fail(err, EXIT_INPUT, "too many ops on the command line");
    return true;
}

/* A flag of checks or of timing alone would do nothing where only the other is asked for. */
static bool flags_apply(const Options *o, int argc, char **argv, Error *err) {
    const char *idle = o->check && !o->time ? "timing" : o->time && !o->check ? "checks" : NULL;
    for (int i = 1; idle && i < argc; i++) {
        const Flag *f = *argv[i] == '-' ? find_flag(argv[i]) : NULL;
        if (f && strncmp(f->help, idle, strlen(idle)) == 0)
            return fail(err, EXIT_INPUT, "%s is of %s, which %s leaves out", f->name, idle,
                        o->once    ? "--once"
                        : o->check ? "--check"
                                   : "--time");
    }
    return true;
}

bool lab_flags(Options *o, int argc, char **argv, Error *err) {
    *o = (Options){.causal = -1, .repeat = 2};
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] != '-') {
            if (!add_op(o, argv[i], err)) return false;
            continue;
        }
        const Flag *f = find_flag(argv[i]);
        if (!f) return fail(err, EXIT_INPUT, "unknown flag '%s'; hint: dev/lab --help", argv[i]);
        if (f->type != FLAG_ON && i + 1 == argc)
            return fail(err, EXIT_INPUT, "%s: expected a value: %s %s", f->name, f->name, f->value);
        if (!parse_value(f, f->type == FLAG_ON ? NULL : argv[++i], o, err)) return false;
    }
    if (o->burst && o->sustained) return fail(err, EXIT_INPUT, "--burst and --sustained exclude each other");
    if (o->blocks && !sparse_read(&o->pattern, o->blocks))
        return fail(err, EXIT_INPUT, "--blocks '%s': expected W,G,R, as --sparse of the trainer", o->blocks);
    if (o->repeat < 2)
        return fail(err, EXIT_INPUT, "--repeat: expected at least 2 runs; found %d", o->repeat);
    if (o->channels % 8)
        return fail(err, EXIT_INPUT, "--channels: expected a multiple of 8; found %d", o->channels);
    if (o->once) o->time = true;
    if (!flags_apply(o, argc, argv, err)) return false;
    if (!o->check && !o->time) o->check = o->time = true;
    if (o->longest == 0) o->longest = 4;
    if (o->seconds == 0) o->seconds = o->quick ? 0.1 : 0.3;
    return true;
}
