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

/* The default as one value, or one value per recipe: "12 (cpu-small), 64 (gpu-small, gpt2), 4 (gpt2-cpu)". */
static void flag_default(const Flag *flag, char *buffer, size_t size) {
    const RecipeRow *row = flag_recipe(flag->name);
    snprintf(buffer, size, "%s", flag->default_text ? flag->default_text : "");
    size_t used = 0;
    for (int i = 0; row && i < N_RECIPES; i++) {
        int first = 0;
        while (strcmp(row->value[first], row->value[i])) first++;
        if (first < i) continue;
        char recipes[80] = "";
        for (int j = i; j < N_RECIPES; j++)
            if (strcmp(row->value[j], row->value[i]) == 0) {
                size_t n = strlen(recipes);
                snprintf(recipes + n, sizeof recipes - n, "%s%s", n ? ", " : "", recipe_names[j]);
            }
        if (used < size)
            used += (size_t)snprintf(buffer + used, size - used, "%s%s (%s)", i ? "; " : "", row->value[i],
                                     recipes);
    }
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

void flags_help(FILE *out, const char *program) {
    enum { FORM_WIDTH = 42, TEXT_WIDTH = 66 };
    fprintf(
        out,
        "usage: %s [--flag VALUE]...\n\n"
        "Trains GPT-2 on text. With no flags: a small byte-level model on data/default.txt, sized for the\n"
        "GPU, or for the CPU where there is none. Defaults in brackets; where they depend on the model and\n"
        "the device, each is named with its recipe:\n"
        "  cpu-small, gpu-small   no --model, or nano and baby\n"
        "  gpt2, gpt2-cpu         any other --model; on a GPU also with token shards\n",
        program);
    int group = -1;
    for (int i = 0; i < flags_count; i++) {
        const Flag *flag = &flags_table[i];
        if (flag->hidden) continue;
        if ((int)flag->group != group) fprintf(out, "\n%s\n", flag_group_names[group = (int)flag->group]);
        char form[96], value[160], text[512];
        flag_form(flag, form, sizeof form);
        flag_default(flag, value, sizeof value);
        char letter[5] = "    ";
        if (flag->letter) snprintf(letter, sizeof letter, "-%c, ", flag->letter);
        snprintf(text, sizeof text, *value ? "%s [%s]" : "%s", flag->help, value);
        fprintf(out, "  %s%-*s", letter, FORM_WIDTH - 6, form);
        print_wrapped(out, text, FORM_WIDTH, TEXT_WIDTH);
    }
    fprintf(out, "\nExit codes: 0 done (also after SIGTERM, with the state saved), 1 a failure at run time, "
                 "2 bad input.\n");
}

/* Table cells: '|' separates columns in Markdown, so a literal one is escaped. */
static void print_cell(FILE *out, const char *text) {
    for (; *text; text++) fprintf(out, *text == '|' ? "\\|" : "%c", *text);
}

void flags_help_markdown(FILE *out) {
    int group = -1;
    for (int i = 0; i < flags_count; i++) {
        const Flag *flag = &flags_table[i];
        if (flag->hidden) continue;
        if ((int)flag->group != group) {
            group = (int)flag->group;
            fprintf(out, "%s| %s | | default | meaning |\n|---|---|---|---|\n", i ? "\n" : "",
                    flag_group_names[group]);
        }
        char form[96], value[160], letter[3] = "";
        flag_form(flag, form, sizeof form);
        flag_default(flag, value, sizeof value);
        if (flag->letter) snprintf(letter, sizeof letter, "-%c", flag->letter);
        fprintf(out, "| `");
        print_cell(out, form);
        fprintf(out, "` | %s | ", letter);
        print_cell(out, value);
        fprintf(out, " | ");
        print_cell(out, flag->help);
        fprintf(out, " |\n");
    }
}
