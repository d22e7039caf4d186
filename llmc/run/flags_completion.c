/* --completion: what bash, zsh and fish complete behind train_gpt2, printed from the table that the parser reads. */
#include <ctype.h>
#include <string.h>
#include "flags_table.h"
#include "llmc/base/terminal.h"

#define PROGRAMS "train_gpt2 train_gpt2cu"

/* ---- what a flag's value may be ---- */

typedef struct Completion {
    bool files, folders;
    char words[512]; /* with a space before each */
} Completion;

static void add_word(Completion *c, const char *word, size_t length) {
    const size_t used = strlen(c->words);
    if (used + length + 2 > sizeof c->words) return;
    snprintf(c->words + used, sizeof c->words - used, " %.*s", (int)length, word);
}

/* A part of value_name, which says in capitals what stands for it. */
static void add_part(Completion *c, const char *part, size_t length) {
    static const char *const of_files[] = {"GLOB", "FILE", "PATH"};
    for (size_t i = 0; i < sizeof of_files / sizeof *of_files; i++)
        if (strncmp(part, of_files[i], length) == 0) c->files = true;
    if (strncmp(part, "DIR", length) == 0) c->folders = true;
    for (int i = 0; strncmp(part, "NAME", length) == 0 && gpt2_descriptor(i); i++)
        add_word(c, gpt2_descriptor(i), strlen(gpt2_descriptor(i)));
    if (islower((unsigned char)*part)) add_word(c, part, length);
}

static Completion completion_of(const Flag *flag) {
    Completion c = {0};
    for (int i = 0; flag->choices[i]; i++) add_word(&c, flag->choices[i], strlen(flag->choices[i]));
    for (const char *part = flag->type == FLAG_TEXT ? flag->value_name : NULL; part;) {
        const char *end = strchr(part, '|');
        add_part(&c, part, end ? (size_t)(end - part) : strlen(part));
        part = end ? end + 1 : NULL;
    }
    return c;
}

/* ---- text ---- */

/* Between single quotes of the shell: the first clause of the help, each character of `special` behind a backslash. A
 * quote becomes `quote`. */
static void print_help(FILE *out, const Flag *flag, const char *quote, const char *special) {
    const char *end = strstr(flag->help, "; ");
    for (const char *at = flag->help; *at && at != end; at++)
        if (*at == '\'')
            print(out, "%s", quote);
        else
            print(out, "%s%c", strchr(special, *at) ? "\\" : "", *at);
}

static void print_lines(FILE *out, const char *text) {
    print_text(out, text, strlen(text));
}

/* ---- the shells ---- */

static void bash_flag(FILE *out, const Flag *flag) {
    const Completion c = completion_of(flag);
    print(out, "    --%s", flag->name);
    if (flag->letter) print(out, " | -%c", flag->letter);
    if (!*c.words && !c.files && !c.folders)
        print_line(out, ") return ;;");
    else
        print_line(out, ") words='%s' kind=%s ;;", *c.words ? c.words + 1 : "",
                   c.files     ? "file"
                   : c.folders ? "directory"
                               : "");
}

static void bash(FILE *out) {
    print_lines(out,
                "# Completion for bash: source <(./train_gpt2cu --completion bash)\n"
                "_train_gpt2() {\n"
                "    local i=$COMP_CWORD word=${COMP_WORDS[COMP_CWORD]} prefix= words= kind= found\n"
                "    # bash takes --flag=value and gpt3:c768 apart.\n"
                "    if [[ $word == : || $word == = ]]; then i=$((i + 1)) word=; fi\n"
                "    if [[ ${COMP_WORDS[i - 1]} == : ]]; then prefix=${COMP_WORDS[i - 2]}: i=$((i - 2)); fi\n"
                "    if [[ ${COMP_WORDS[i - 1]} == = ]]; then i=$((i - 1)); fi\n"
                "    case ${COMP_WORDS[i - 1]} in\n");
    for (int i = 0; i < flags_count; i++)
        if (!flags_table[i].hidden && flags_table[i].type != FLAG_SWITCH) bash_flag(out, &flags_table[i]);
    print(out, "    *) words='");
    for (int i = 0; i < flags_count; i++)
        if (!flags_table[i].hidden) print(out, "%s--%s", i ? " " : "", flags_table[i].name);
    print_lines(out, "' ;;\n"
                     "    esac\n"
                     "    mapfile -t found < <(compgen -W \"$words\" -- \"$prefix$word\")\n"
                     "    COMPREPLY=(\"${found[@]#\"$prefix\"}\")\n"
                     "    if [[ $kind ]]; then\n"
                     "        compopt -o filenames\n"
                     "        mapfile -t found < <(compgen -A \"$kind\" -- \"$prefix$word\")\n"
                     "        COMPREPLY+=(\"${found[@]#\"$prefix\"}\")\n"
                     "    fi\n"
                     "}\n"
                     "complete -F _train_gpt2 " PROGRAMS "\n");
}

/* A function of a flag that has words: in an argument's specification a colon would end one. */
static void zsh_words(FILE *out, const Flag *flag) {
    const Completion c = completion_of(flag);
    if (*c.words)
        print_line(out, "_train_gpt2_%s() { compadd --%s%s }", flag->name, c.words,
                   c.files ? "; _files" : ";");
}

static void zsh_flag(FILE *out, const Flag *flag) {
    const Completion c = completion_of(flag);
    const char *equals = flag->type == FLAG_SWITCH ? "" : "=";
    if (flag->letter)
        print(out, "        '(--%s -%c)'{--%s%s,-%c}'[", flag->name, flag->letter, flag->name, equals,
              flag->letter);
    else
        print(out, "        '--%s%s[", flag->name, equals);
    print_help(out, flag, "'\\''", "[]:\\");
    print(out, "]");
    if (*equals) print(out, ":%s:", flag->value_name ? flag->value_name : flag->name);
    if (*c.words)
        print(out, "_train_gpt2_%s", flag->name);
    else
        print(out, "%s", c.files ? "_files" : c.folders ? "_files -/" : "");
    print_line(out, "' \\");
}

static void zsh(FILE *out) {
    print_lines(out, "#compdef " PROGRAMS "\n"
                     "# Completion for zsh: source <(./train_gpt2cu --completion zsh), or this in $fpath as "
                     "_train_gpt2\n");
    for (int i = 0; i < flags_count; i++)
        if (!flags_table[i].hidden) zsh_words(out, &flags_table[i]);
    print_lines(out, "_train_gpt2() {\n"
                     "    _arguments \\\n");
    for (int i = 0; i < flags_count; i++)
        if (!flags_table[i].hidden) zsh_flag(out, &flags_table[i]);
    print_lines(
        out,
        "        && return\n"
        "}\n"
        "if [[ $funcstack[1] == _train_gpt2 ]]; then _train_gpt2 \"$@\"; else compdef _train_gpt2 " PROGRAMS
        "; fi\n");
}

static void fish_flag(FILE *out, const Flag *flag) {
    const Completion c = completion_of(flag);
    const char *folders = "(__fish_complete_directories (commandline -ct))";
    print(out, "    complete -c $program -l %s", flag->name);
    if (flag->letter) print(out, " -s %c", flag->letter);
    if (flag->type != FLAG_SWITCH) print(out, "%s", c.files ? " -r -F" : " -x");
    if (*c.words || c.folders) print(out, " -a '%s'", c.folders ? folders : c.words + 1);
    print(out, " -d '");
    print_help(out, flag, "\\'", "\\");
    print_line(out, "'");
}

static void fish(FILE *out) {
    print_lines(out, "# Completion for fish: ./train_gpt2cu --completion fish | source\n"
                     "for program in " PROGRAMS "\n"
                     "    complete -c $program -f\n");
    for (int i = 0; i < flags_count; i++)
        if (!flags_table[i].hidden) fish_flag(out, &flags_table[i]);
    print_lines(out, "end\n");
}

void flags_completion(FILE *out, ShellKind shell) {
    static void (*const shells[])(FILE * out) = {[SHELL_BASH] = bash, [SHELL_ZSH] = zsh, [SHELL_FISH] = fish};
    shells[shell](out);
}
