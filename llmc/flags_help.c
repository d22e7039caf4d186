/* --help, the README's table and --version, all printed from the table that the parser reads. */
#include "flags_table.h"
#include <string.h>

#ifndef LLMC_COMMIT
#define LLMC_COMMIT "unknown"
#endif

const char *program_version(void) {
    return "train_gpt2 " LLMC_COMMIT;
}

/* "--batch B" or "--device auto|cuda|cpu". */
static void flag_form(const Flag *flag, char *buffer, size_t size) {
    size_t used = (size_t)snprintf(buffer, size, "--%s", flag->name);
    if (flag->value_name && used < size) snprintf(buffer + used, size - used, " %s", flag->value_name);
    for (int i = 0; flag->choices[i] && used < size; i++)
        used += (size_t)snprintf(buffer + used, size - used, "%c%s", i ? '|' : ' ', flag->choices[i]);
}

/* The default, or "by recipe"; "" where there is none. */
static const char *flag_default(const Flag *flag) {
    if (flag_recipe(flag->name)) return "by recipe";
    return flag->default_text ? flag->default_text : "";
}

/* Prints text in lines of at most `width` characters, broken at spaces, each but the first after an indent.
 */
static void print_wrapped(FILE *out, const char *text, int indent, int width) {
    int column = 0;
    while (*text) {
        int length = (int)strcspn(text, " ");
        if (column && column + 1 + length > width) {
            fprintf(out, "\n%*s", indent, "");
            column = 0;
        }
        column += fprintf(out, "%s%.*s", column ? " " : "", length, text);
        text += length;
        text += strspn(text, " ");
    }
    fputc('\n', out);
}

static void print_flag(FILE *out, const Flag *flag) {
    enum { FORM_WIDTH = 44, TEXT_WIDTH = 64 };
    char form[96], text[512], letter[5] = "    ";
    const char *value = flag_default(flag);
    flag_form(flag, form, sizeof form);
    if (flag->letter) snprintf(letter, sizeof letter, "-%c, ", flag->letter);
    snprintf(text, sizeof text, *value ? "%s [%s]" : "%s", flag->help, value);
    fprintf(out, "  %s%-*s", letter, FORM_WIDTH - 6, form);
    print_wrapped(out, text, FORM_WIDTH, TEXT_WIDTH);
}

static void print_recipes(FILE *out) {
    enum { NAME_WIDTH = 22, VALUE_WIDTH = 11 };
    fprintf(out, "\nDefaults by recipe\n%*s", NAME_WIDTH, "");
    for (int r = 0; r < N_RECIPES; r++) fprintf(out, "%*s", VALUE_WIDTH, recipe_names[r]);
    for (int i = 0; i < recipe_rows_count; i++) {
        fprintf(out, "\n  --%-*s", NAME_WIDTH - 4, recipe_rows[i].flag);
        for (int r = 0; r < N_RECIPES; r++) fprintf(out, "%*s", VALUE_WIDTH, recipe_rows[i].value[r]);
    }
    fputc('\n', out);
}

void flags_help(FILE *out, const char *program) {
    fprintf(
        out,
        "usage: %s [--flag VALUE]...\n\n"
        "Trains GPT-2 on text. With no flags: a small byte-level model on data/default.txt, sized for the\n"
        "GPU, or for the CPU where there is none. Defaults stand in brackets; some come from a recipe:\n"
        "  cpu-small, gpu-small   without --model, or with nano or baby\n"
        "  gpt2, gpt2-cpu         with any other --model; on a GPU also with token shards\n",
        program);
    int group = -1;
    for (int i = 0; i < flags_count; i++) {
        const Flag *flag = &flags_table[i];
        if (!flag_is_listed(flag)) continue;
        if ((int)flag->group != group) fprintf(out, "\n%s\n", flag_group_names[group = (int)flag->group]);
        print_flag(out, flag);
    }
    print_recipes(out);
    fprintf(out,
            "\nExit codes: 0 done (also after SIGTERM, with the state saved), 1 a failure at run time, 2 bad "
            "input.\n");
}

/* Table cells: '|' separates columns in Markdown, so a literal one is escaped. */
static void print_cell(FILE *out, const char *text) {
    for (; *text; text++) fprintf(out, *text == '|' ? "\\|" : "%c", *text);
}

static void print_markdown_flag(FILE *out, const Flag *flag) {
    char form[96], letter[3] = "";
    flag_form(flag, form, sizeof form);
    if (flag->letter) snprintf(letter, sizeof letter, "-%c", flag->letter);
    fprintf(out, "| `");
    print_cell(out, form);
    fprintf(out, "` | %s | %s | ", letter, flag_default(flag));
    print_cell(out, flag->help);
    fprintf(out, " |\n");
}

static void print_markdown_recipes(FILE *out) {
    fprintf(out, "\n| Defaults by recipe |");
    for (int r = 0; r < N_RECIPES; r++) fprintf(out, " %s |", recipe_names[r]);
    fprintf(out, "\n|---|");
    for (int r = 0; r < N_RECIPES; r++) fprintf(out, "---|");
    for (int i = 0; i < recipe_rows_count; i++) {
        fprintf(out, "\n| `--%s` |", recipe_rows[i].flag);
        for (int r = 0; r < N_RECIPES; r++) fprintf(out, " %s |", recipe_rows[i].value[r]);
    }
    fputc('\n', out);
}

void flags_help_markdown(FILE *out) {
    int group = -1;
    for (int i = 0; i < flags_count; i++) {
        const Flag *flag = &flags_table[i];
        if (!flag_is_listed(flag)) continue;
        if ((int)flag->group != group) {
            group = (int)flag->group;
            fprintf(out, "%s| %s | | default | meaning |\n|---|---|---|---|\n", i ? "\n" : "",
                    flag_group_names[group]);
        }
        print_markdown_flag(out, flag);
    }
    print_markdown_recipes(out);
}
