/* --help, the table of FLAGS.md and --version, all printed from the table that the parser reads. */
#include "flags_table.h"
#include <string.h>
#include "llmc/base/terminal.h"

static void end_line(FILE *out) {
    print_text(out, "\n", 1);
}

/* "--batch B", "--device auto|cuda|cpu", or a name where the choices are many. */
static void flag_form(const Flag *flag, char *buffer, size_t size) {
    size_t used = (size_t)snprintf(buffer, size, "--%s", flag->name);
    if (flag->value_name && used < size) snprintf(buffer + used, size - used, " %s", flag->value_name);
    for (int i = 0; !flag->value_name && flag->choices[i] && used < size; i++)
        used += (size_t)snprintf(buffer + used, size - used, "%c%s", i ? '|' : ' ', flag->choices[i]);
}

/* The default, or "by recipe"; "" where there is none. */
static const char *flag_default(const Flag *flag) {
    if (flag_recipe(flag->name)) return "by recipe";
    return flag->default_text ? flag->default_text : "";
}

static void print_group(FILE *out, FlagGroup group, void (*print_one)(FILE *out, const Flag *flag)) {
    for (int i = 0; i < flags_count; i++)
        if (flags_table[i].group == group && !flags_table[i].hidden) print_one(out, &flags_table[i]);
}

/* The flag and what it does, side by side where there is room, else below it. */
static void print_flag(FILE *out, const Flag *flag) {
    enum { FORM_WIDTH = 44, WIDTH = 108, NARROW_INDENT = 6 };
    const int columns = terminal_columns(out), width = columns && columns < WIDTH ? columns : WIDTH;
    char form[96], letter[5] = "    ";
    const char *value = flag_default(flag);
    flag_form(flag, form, sizeof form);
    if (flag->letter) snprintf(letter, sizeof letter, "-%c, ", flag->letter);
    const int indent = width >= 80 ? FORM_WIDTH : NARROW_INDENT;
    if (width >= 80 && strlen(form) < FORM_WIDTH - 6) {
        print(out, "  %s%-*s", letter, FORM_WIDTH - 6, form);
    } else {
        print_line(out, "  %s%s", letter, form);
        print(out, "%*s", indent, "");
    }
    print_wrapped(out, indent, indent, width, *value ? "%s [%s]" : "%s", flag->help, value);
}

static const char *recipe_name(int column) {
    return flags_table[flag_find("recipe")].choices[column + 1];
}

static void print_recipes(FILE *out) {
    enum { NAME_WIDTH = 22, VALUE_WIDTH = 11 };
    end_line(out);
    print_line(out, "Defaults by recipe");
    print(out, "%*s", NAME_WIDTH, "");
    for (int r = 0; r < N_RECIPES; r++) print(out, "%*s", VALUE_WIDTH, recipe_name(r));
    end_line(out);
    for (int i = 0; i < recipe_rows_count; i++) {
        print(out, "  --%-*s", NAME_WIDTH - 4, recipe_rows[i].flag);
        for (int r = 0; r < N_RECIPES; r++) print(out, "%*s", VALUE_WIDTH, recipe_rows[i].value[r]);
        end_line(out);
    }
}

void flags_help(FILE *out, const char *program) {
    const int columns = terminal_columns(out), width = columns && columns < 100 ? columns : 100;
    print_line(out, "usage: %s [--flag VALUE]...", program);
    end_line(out);
    print_wrapped(
        out, 0, 0, width,
        "Trains GPT-2 on text. With no flags: a small byte-level model on data/default.txt, sized for "
        "the GPU, or for the CPU where there is none. Defaults stand in brackets; some come from a "
        "recipe:");
    print_line(out, "  cpu-small, gpu-small   without --model, or with nano or baby");
    print_line(out, "  gpt2, gpt2-cpu         with any other --model; on a GPU also with token shards");
    print_line(out, "  llm.c, nanogpt         with --recipe: the published settings of their GPT-2 124M");
    for (int group = 0; group < N_GROUPS; group++) {
        end_line(out);
        print_line(out, "%s", flag_group_names[group]);
        print_group(out, (FlagGroup)group, print_flag);
    }
    print_recipes(out);
    end_line(out);
    print_wrapped(out, 0, 0, width,
                  "Exit codes: 0 done (also after SIGTERM, with the state saved), 1 a failure at run time, 2 "
                  "bad input.");
}

/* Table cells: '|' separates columns in Markdown, so a literal one is escaped. */
static void print_cell(FILE *out, const char *text) {
    for (; *text; text++) print(out, *text == '|' ? "\\|" : "%c", *text);
}

static void print_markdown_flag(FILE *out, const Flag *flag) {
    char form[96], letter[3] = "";
    flag_form(flag, form, sizeof form);
    if (flag->letter) snprintf(letter, sizeof letter, "-%c", flag->letter);
    print(out, "| `");
    print_cell(out, form);
    print(out, "` | %s | %s | ", letter, flag_default(flag));
    print_cell(out, flag->help);
    print_line(out, " |");
}

static void print_markdown_recipes(FILE *out) {
    end_line(out);
    print(out, "| Defaults by recipe |");
    for (int r = 0; r < N_RECIPES; r++) print(out, " %s |", recipe_name(r));
    end_line(out);
    print(out, "|---|");
    for (int r = 0; r < N_RECIPES; r++) print(out, "---|");
    end_line(out);
    for (int i = 0; i < recipe_rows_count; i++) {
        print(out, "| `--%s` |", recipe_rows[i].flag);
        for (int r = 0; r < N_RECIPES; r++) print(out, " %s |", recipe_rows[i].value[r]);
        end_line(out);
    }
}

void flags_help_markdown(FILE *out) {
    for (int group = 0; group < N_GROUPS; group++) {
        if (group > 0) end_line(out);
        print_line(out, "| %s | | default | meaning |", flag_group_names[group]);
        print_line(out, "|---|---|---|---|");
        print_group(out, (FlagGroup)group, print_markdown_flag);
    }
    print_markdown_recipes(out);
}
