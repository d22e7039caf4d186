/* An op of ops.h cannot be left out of the descriptions (dev/ops/ops.c), nor of the tests that hold a card's results
 * against the CPU's (test_ops*.c). */
#include <ctype.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include "dev/ops/op.h"
#include "dev/test/check.h"

static const char *const names[] = {
#define NAME(Type, name) #name,
    EACH_OP(NAME)
#undef NAME
};

static bool described_elsewhere(OpId id) {
    switch (id) {
    case OP_attention_forward: /* dev/attention/ */
    case OP_attention_backward:
    case OP_attention_standard_forward: /* test_ops_attention.c: it is for comparison only */
    case OP_attention_standard_backward:
    case OP_draw_tokens:  /* test_ops_draw.c: tokens, not values within a limit */
    case OP_hash_bytes:   /* test_ops_update.c: a whole number, not values within a limit */
    case OP_finish_stats: /* with sum_squares, whose id op_grad_norm has */
        return true;
    default:
        return false;
    }
}

static bool is_described(OpId id) {
    for (int i = 0; described_ops[i]; i++)
        if (described_ops[i]->id == id) return true;
    return described_elsewhere(id);
}

/* All of the files that match, one behind the other. */
static char *text_of(const char *pattern) {
    size_t size = 0, n = 0;
    char *text = calloc(1, 1);
    glob_t files;
    REQUIRE(glob(pattern, 0, NULL, &files) == 0, "no %s; the test runs at the top of the repository",
            pattern);
    for (size_t i = 0; text && i < files.gl_pathc; i++) {
        FILE *file = fopen(files.gl_pathv[i], "r");
        do {
            size = n + 65536;
            text = realloc(text, size + 1);
            if (!file || !text) abort();
            n += fread(text + n, 1, size - n, file);
            text[n] = 0;
        } while (n == size);
        fclose(file);
    }
    globfree(&files);
    return text;
}

/* Whether `text` has `before` and name, and the name ends there. */
static bool has_name(const char *text, const char *before, const char *name) {
    char word[96];
    const int n = snprintf(word, sizeof word, "%s%s", before, name);
    for (const char *at = text; (at = strstr(at, word)); at += n)
        if (!isalnum((unsigned char)at[n]) && at[n] != '_') return true;
    return false;
}

/* The CPU's op is the reference of every card's, so a test holds it by itself: test_cpu_*.c, or of these a file of their own. */
static bool is_held_on_cpu(const char *name) {
    static const char *const elsewhere[][2] = {
        {"draw_tokens",                    "dev/test/ops/test_ops_draw.c"                },
        {"dropout",                        "dev/test/ops/test_dropout.c"                 },
        {"linear_backward_input_row_dots", "dev/test/ops/test_ops_attention_projection.c"},
        {"weights_from_master",            "dev/test/model/test_comm.c"                  },
    };
    const char *file = "dev/test/ops/test_cpu_*.c";
    for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++)
        if (strcmp(elsewhere[i][0], name) == 0) file = elsewhere[i][1];
    char *text = text_of(file);
    const bool held =
        has_name(text, "ops->", name) || has_name(text, "ops.", name) || has_name(text, "ops_cpu.", name);
    free(text);
    return held;
}

int main(void) {
    char *tests = text_of("dev/test/ops/test_ops*.c"), *dropout = text_of("dev/test/ops/test_dropout.c");
    for (int id = 0; id < N_OPS; id++) {
        const char *name = names[id];
        CHECK(is_described((OpId)id),
              "%s is in ops.h, but not in described_ops of dev/ops/ops.c (llmc/model/ADD_AN_OP.md, place 4)",
              name);
        CHECK(has_name(tests, "op_", name) || has_name(tests, "ops->", name) ||
                  has_name(dropout, "ops->", name),
              "%s is in ops.h, but no dev/test/ops/test_ops*.c has a row of it (llmc/model/ADD_AN_OP.md, "
              "place 5)",
              name);
        CHECK(is_held_on_cpu(name),
              "%s is in ops.h, but no dev/test/ops/test_cpu_*.c calls it (llmc/model/ADD_AN_OP.md, place 6)",
              name);
    }
    free(tests);
    free(dropout);
    return check_finish("described");
}
