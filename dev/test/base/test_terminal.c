/* What reaches the terminal: the rule for each kind of character; then the program on a terminal of its own (a pty)
 * and in a pipe, with names, files, tokens and prompts that would be obeyed; its lines at 40 columns; no control code
 * where TERM or NO_COLOR says so; something that moves while it works. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "llmc/base/error.h"
#include "llmc/base/terminal.h"
#include "dev/test/folder.h"

/* ---- the rule ---- */

static void test_rule(void) {
    static const struct {
        const char *text, *line, *kept; /* kept: where newline and tab stay */
    } rows[] = {
        {"plain ~ caf\xc3\xa9 \xe6\xbc\xa2 \xf0\x9f\x98\x80",
         "plain ~ caf\xc3\xa9 \xe6\xbc\xa2 \xf0\x9f\x98\x80",                                                             NULL       },
        {"a\x01z\x1b[2J\x7f",                                                                          "a?z?[2J?",        NULL       },
        {"a\nb\tc\rd",                                                                                 "a?b?c?d",         "a\nb\tc?d"},
        {"a\r\nb\r",                                                                                   "a??b?",           "a\r\nb?"  },
        {"raw \x80\x9b\x9f.",                                                                          "raw ???.",        NULL       },
        {"C1 \xc2\x80\xc2\x9b\xc2\x9f\xc2\xa0.",                                                       "C1 ???\xc2\xa0.", NULL       },
        {"\xe2\x80\xa8|\xe2\x80\xa9|\xe2\x80\xaa|\xe2\x80\xab|\xe2\x80\xac|\xe2\x80\xad|\xe2\x80\xae",
         "?|?|?|?|?|?|?",                                                                                                 NULL       },
        {"\xe2\x81\xa6|\xe2\x81\xa7|\xe2\x81\xa8|\xe2\x81\xa9|\xe2\x80\x8e|\xe2\x80\x8f|\xd8\x9c",
         "?|?|?|?|?|?|?",                                                                                                 NULL       },
        {"\xe2\x80\xa7 \xe2\x80\xaf \xe2\x81\xa5 \xe2\x81\xaa",
         "\xe2\x80\xa7 \xe2\x80\xaf \xe2\x81\xa5 \xe2\x81\xaa",                                                           NULL       },
        {"\xc0\x9b \xe0\x82\x9b \xf0\x80\x82\x9b",                                                     "?? ??? ????",     NULL       }, /* U+009B, too long */
        {"\xed\xa0\x80 \xf4\x90\x80\x80 \xff",                                                         "??? ???? ?",      NULL       }, /* a surrogate, beyond Unicode */
        {"cut \xe6\xbc",                                                                               "cut ??",          NULL       },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int kept = 0; kept < 2; kept++) {
            char text[128];
            strcpy(text, rows[i].text);
            text[make_printable(text, strlen(text), kept)] = '\0';
            const char *expected = kept && rows[i].kept ? rows[i].kept : rows[i].line;
            CHECK(strcmp(text, expected) == 0, "row %zu: '%s', expected '%s'", i, text, expected);
        }
    CHECK(incomplete_character("a\xf0\x9f\x98", 4) == 3 && incomplete_character("\xc3", 1) == 1,
          "a character begins");
    CHECK(incomplete_character("a\r", 2) == 1 && incomplete_character("\r\n", 2) == 0, "CR LF");
    CHECK(incomplete_character("\xc3\xa9", 2) == 0 && incomplete_character("a\x9b", 2) == 0, "none begins");
    Error err = {0};
    fail(&err, EXIT_INPUT, "%s: no such file", "a\x1b[31m\xc2\x9b\n\xe2\x80\xae");
    CHECK(strcmp(err.text, "a?[31m???: no such file") == 0, "%s", err.text);
}

/* Of every character that there is: what stays is what this table of the standard says. */
static void test_every_character(void) {
    int wrong = 0;
    for (unsigned c = 0; c <= 0x10FFFF; c++) {
        if (c == 0xD800) c = 0xE000;
        const bool hidden = c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0x61C || c == 0x200E || c == 0x200F ||
                            (c >= 0x2028 && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069) || c == 0xFEFF;
        char text[4], was[4];
        size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
        for (size_t i = 0; i < n; i++)
            text[i] = (char)(i || n == 1 ? (n == 1 ? c : 0x80 | (c >> 6 * (n - 1 - i) & 0x3F))
                                         : (0xF00u >> n & 0xFF) | c >> 6 * (n - 1));
        memcpy(was, text, 4);
        const size_t left = make_printable(text, n, false);
        wrong += hidden ? left != 1 || *text != '?' : left != n || memcmp(text, was, n) != 0;
    }
    CHECK(wrong == 0, "%d characters", wrong);
}

/* A status line is cut to the columns there are, before a character that would be split. */
static void test_cut(void) {
    static const struct {
        int columns;
        const char *text, *shown;
    } rows[] = {
        {4, "abcd",                                      "abcd"                     },
        {3, "abcd",                                      "abc"                      },
        {3, "ab\xc3\xa9",                                "ab"                       },
        {4, "ab\xc3\xa9",                                "ab\xc3\xa9"               },
        {6, "a\xe6\xbc\xa2\xe6\xbc\xa2",                 "a\xe6\xbc\xa2"            },
        {8, "\xc3\xa9\xf0\x9f\x98\x80z\xf0\x9f\x98\x80", "\xc3\xa9\xf0\x9f\x98\x80z"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *seen = NULL;
        size_t n = 0;
        FILE *out = open_memstream(&seen, &n);
        if (!REQUIRE(out, "no memory")) return;
        status_show(out, rows[i].columns, false, "%s", rows[i].text);
        CHECK(n == strlen(rows[i].shown) && memcmp(seen, rows[i].shown, n) == 0,
              "row %zu: '%s' in %d columns: '%s', expected '%s'", i, rows[i].text, rows[i].columns, seen,
              rows[i].shown);
        print_line(out, "a line takes its place");
        CHECK(fflush(out) == 0 && strstr(seen, "\r\033[Ka line"), "row %zu: '%s'", i, seen);
        fclose(out);
        free(seen);
    }
}

/* ---- the program ---- */

static const char *const program = "./train_gpt2";

typedef struct Seen {
    char *text;
    size_t n;
    int status; /* exit code, or -1 */
} Seen;

static void read_to_end(Seen *seen, int fd) {
    size_t capacity = 1 << 22;
    free(seen->text);
    seen->text = malloc(capacity);
    if (!seen->text) abort();
    for (ssize_t got;
         seen->n + 1 < capacity && (got = read(fd, seen->text + seen->n, capacity - 1 - seen->n)) > 0;)
        seen->n += (size_t)got; /* a terminal whose program has ended fails with EIO */
    seen->text[seen->n] = '\0';
}

/* The shell's command with both outputs on a terminal of so many columns; 0: in a pipe. */
static Seen run_on(int columns, const char *term, const char *command) {
    Seen seen = {.text = calloc(1, 1), .status = -1};
    int ends[2] = {-1, -1};
    if (columns) {
        ends[0] = posix_openpt(O_RDWR | O_NOCTTY);
        if (!CHECK(ends[0] >= 0 && grantpt(ends[0]) == 0 && unlockpt(ends[0]) == 0, "no pty")) return seen;
        ends[1] = open(ptsname(ends[0]), O_RDWR | O_NOCTTY);
        ioctl(ends[1], TIOCSWINSZ, &(struct winsize){.ws_row = 24, .ws_col = (unsigned short)columns});
    } else if (!CHECK(pipe(ends) == 0, "no pipe")) {
        return seen;
    }
    const pid_t child = fork();
    if (child == 0) {
        if (term)
            setenv("TERM", term, 1);
        else
            unsetenv("TERM");
        dup2(ends[1], 1), dup2(ends[1], 2);
        close(ends[0]), close(ends[1]);
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    read_to_end(&seen, ends[0]);
    close(ends[0]);
    int status;
    if (waitpid(child, &status, 0) == child && WIFEXITED(status)) seen.status = WEXITSTATUS(status);
    return seen;
}

/* Where a byte stands that a terminal obeys, beyond newline and tab (and carriage returns before a newline, of which one
 * is the terminal's own); -1: nowhere. Not the program's rule, but plain searching. */
static long obeyed(const Seen *seen) {
    static const char *const marks[] = {"\xe2\x80\xa8", "\xe2\x80\xa9", "\xe2\x80\xaa", "\xe2\x80\xab",
                                        "\xe2\x80\xac", "\xe2\x80\xad", "\xe2\x80\xae", "\xe2\x81\xa6",
                                        "\xe2\x81\xa7", "\xe2\x81\xa8", "\xe2\x81\xa9", "\xe2\x80\x8e",
                                        "\xe2\x80\x8f", "\xd8\x9c"};
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (strstr(seen->text, marks[i])) return strstr(seen->text, marks[i]) - seen->text;
    for (size_t i = 0; i < seen->n; i++) {
        const unsigned char c = (unsigned char)seen->text[i],
                            before = i ? (unsigned char)seen->text[i - 1] : 0;
        if (c == 127 ||
            (c < 32 && c != '\n' && c != '\t' && seen->text[i + strspn(seen->text + i, "\r")] != '\n'))
            return (long)i;
        if (c >= 0x80 && c < 0xA0 && (before < 0x80 || before == 0xC2)) return (long)i;
    }
    return -1;
}

/* Longest line between newlines and redraws, in bytes. */
static int longest_line(const Seen *seen) {
    int longest = 0, length = 0;
    for (const char *c = seen->text; *c; c++) {
        if (strncmp(c, "\033[K", 3) == 0)
            c += 2;
        else if (*c == '\n' || *c == '\r')
            length = 0;
        else if (++length > longest)
            longest = length;
    }
    return longest;
}

#define EVIL "e\033]0;x\007\033[31m\302\233\233\342\200\256\nz"
#define TINY                                                                                                 \
    "--device cpu --layers 1 --heads 2 --channels 32 --batch 2 --seq 16 --eval-batches 2 --sample-tokens "   \
    "40 --seed 3"

/* Every byte but null, which no text has; samples do. */
static void write_any_bytes(const char *name) {
    char text[6000];
    for (size_t i = 0; i < sizeof text; i++) text[i] = (char)(1 + i * i / 7 % 255);
    write_file(name, text, sizeof text);
}

/* Each command names something hostile, or reads or draws it; FOLDER is where it runs, PROGRAM what. */
static const struct {
    const char *what, *command, *says;
} hostile[] = {
    {"a run on such files",
     "PROGRAM " TINY " --steps 3 --save-every 1 --train 'E' --val 'E' --out 'oE' --prompt 'E'",
     "done: step 3"                                                                                                                },
    {"its resumption, with notes", "PROGRAM " TINY " --steps 4 --lr 0.5 --train 'E' --out 'oE' --resume",
     "done: step 4"                                                                                                                },
    {"sampling",                   "PROGRAM --device cpu --model 'oE' --prompt 'E' --sample-tokens 200",       "--- sample"        },
    {"a missing file",             "PROGRAM " TINY " --train 'noE'",                                           "error: --train"    },
    {"a missing model",            "PROGRAM --model 'noE' --prompt a",                                         "error: "           },
    {"an unknown flag",            "PROGRAM '--E'",                                                            "error: unknown"    },
    {"the plan",                   "PROGRAM --device cpu --memory --model 'oE'",                               "largest that fits" },
    {"the help",                   "ln -sf PROGRAM 'pE'; './pE' --help",                                       "usage: "           },
    {"a skipped checkpoint",
     "echo x >> 'oE/step_00000004/model.safetensors'; PROGRAM " TINY
     " --steps 9 --train 'E' --out 'oE' --resume",                                                             "checkpoint skipped"},
    {"a manifest",
     "sed -i 's/model.safetensors/mo\302\233\233\342\200\256del/' "
     "'oE/step_00000003/trainer_state.json'; PROGRAM --model 'oE/step_00000003' --prompt a",                   "error: "           },
    {"a tensor's name",
     "mkdir -p hf; cp 'oE'/step_00000003/config.json hf; cp 'oE'/step_00000003/model.safetensors hf; sed -i "
     "'s/ln_f.weight/ln_\033\302\233\233\342\200\256wt/' hf/model.safetensors; PROGRAM --model hf --prompt a", "error: "           },
};

/* The command with the folder's program and the hostile name put in. */
static void fill_in(const char *command, const char *here, char *filled, size_t size) {
    size_t used = (size_t)snprintf(filled, size, "cd %s && ", folder);
    for (; *command && used + 600 < size; command++) {
        if (strncmp(command, "PROGRAM", 7) == 0) {
            used += (size_t)snprintf(filled + used, size - used, "%s/%s", here, program);
            command += 6;
        } else if (*command == 'E' && (command[1] == '\'' || command[1] == '/')) {
            used += (size_t)snprintf(filled + used, size - used, "%s", EVIL);
        } else {
            filled[used++] = *command;
        }
    }
    filled[used] = '\0';
}

static void test_hostile(const char *here) {
    for (int columns = 0; columns <= 80; columns += 80) {
        empty_folder();
        write_any_bytes(EVIL);
        for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
            char command[4096];
            fill_in(hostile[i].command, here, command, sizeof command);
            Seen seen = run_on(columns, "dumb", command);
            CHECK(strstr(seen.text, hostile[i].says), "%s, %d columns: says '%s': %s", hostile[i].what,
                  columns, hostile[i].says, seen.text);
            const long at = obeyed(&seen);
            CHECK(at < 0, "%s, %d columns: byte %#x after '%.*s'", hostile[i].what, columns,
                  (unsigned char)seen.text[at < 0 ? 0 : at], (int)(at < 60 ? at : 60),
                  seen.text + (at < 60 ? 0 : at - 60));
            free(seen.text);
        }
    }
}

static Seen train_at(const char *here, int columns, const char *term, const char *before) {
    char command[1024];
    empty_folder();
    write_any_bytes("text"); /* no UTF-8, so there is a note */
    snprintf(command, sizeof command,
             "cd %s && %s %s/%s " TINY
             " --steps 40 --eval-every 20 --save-every 20 --tokens-per-step 64 --train text --out out",
             folder, before, here, program);
    return run_on(columns, term, command);
}

static void test_width(const char *here) {
    static const char *const moving[] = {"reading the data",
                                         "loading the model",
                                         "first step: micro-step 1 of 2",
                                         "validating: batch 1 of 2",
                                         "saving step 20",
                                         "saving step 40",
                                         "\033[K"};
    for (int columns = 40; columns <= 120; columns += 40) {
        Seen seen = train_at(here, columns, "xterm", "");
        CHECK(seen.status == 0, "exit code %d", seen.status);
        CHECK(longest_line(&seen) <= columns, "%d columns: a line of %d", columns, longest_line(&seen));
        CHECK(strstr(seen.text, "note: "), "%d columns: a note is among the lines: %s", columns, seen.text);
        for (size_t i = 0; i < sizeof moving / sizeof *moving; i++)
            CHECK(strstr(seen.text, moving[i]), "%d columns: '%s' is shown", columns, moving[i]);
        const char *first = strstr(seen.text, "first step:"), *step = strstr(seen.text, "step  1/40");
        CHECK(first && step && first < step, "%d columns: something moves before step 1", columns);
        CHECK((strstr(seen.text, " MFU") != NULL) == (columns == 120), "%d columns: as many fields as fit",
              columns);
        CHECK(strstr(seen.text, "step 40/40 | loss "), "%d columns: the last step: %s", columns, seen.text);
        free(seen.text);
    }
}

static void test_no_codes(const char *here) {
    static const struct {
        int columns;
        const char *term, *before;
    } rows[] = {
        {40, "dumb",  ""          },
        {80, NULL,    ""          },
        {80, "",      ""          },
        {80, "xterm", "NO_COLOR=1"},
        {0,  "xterm", ""          }
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Seen seen = train_at(here, rows[i].columns, rows[i].term, rows[i].before);
        CHECK(seen.status == 0 && strstr(seen.text, "done: step 40"), "row %zu: a run", i);
        CHECK(!strchr(seen.text, '\033'), "row %zu: no escape", i);
        CHECK(obeyed(&seen) < 0, "row %zu: nothing to be obeyed", i);
        CHECK(!rows[i].columns || longest_line(&seen) <= rows[i].columns, "row %zu: a line of %d", i,
              longest_line(&seen));
        free(seen.text);
    }
}

/* Ranks have one stderr: a line comes in one piece, so that none of another stands in it. */
static void test_one_write(void) {
    int ends[2];
    char piece[100] = "";
    if (!REQUIRE(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0, "no sockets")) return;
    FILE *out = fdopen(ends[1], "w");
    setvbuf(out, NULL, _IONBF, 0);
    print_line(out, "error: %s", "a\nline");
    const ssize_t n = recv(ends[0], piece, sizeof piece - 1, MSG_DONTWAIT);
    CHECK(n > 0 && strcmp(piece, "error: a?line\n") == 0, "the first piece: '%s'", piece);
    fclose(out);
    close(ends[0]);
}

/* The reason of what was lost stands, whatever other calls fail of later. */
static void test_failure(void) {
    const pid_t child = fork();
    if (child == 0) {
        if (print_failure() != 0) _exit(1);
        if (!freopen("/dev/full", "w", stdout)) _exit(2);
        print_line(stdout, "lost");
        print_flush(stdout);
        if (open("/nowhere/at/all", O_RDONLY) >= 0) _exit(3);
        _exit(print_failure() == ENOSPC ? 0 : 4);
    }
    int status = -1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0, "wait status %d", status);
}

int main(void) {
    char here[512];
    test_rule();
    test_one_write();
    test_every_character();
    test_cut();
    test_failure();
    unsetenv("NO_COLOR");
    if (!REQUIRE(mkdtemp(folder) && getcwd(here, sizeof here), "no folder")) return check_finish("terminal");
    if (access(program, X_OK) == 0) {
        test_hostile(here);
        test_width(here);
        test_no_codes(here);
    } else {
        skip_("the program on a terminal: %s is not built", program);
    }
    empty_folder();
    rmdir(folder);
    return check_finish("terminal");
}
