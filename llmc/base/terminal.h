/* Where text meets the terminal: whatever the program prints goes through here, and so no byte of a file name, a
 * manifest, a token or a prompt is ever obeyed by the terminal, nor makes a line of a log that is none. Lint refuses
 * printf and its kind elsewhere.
 *
 * What could be obeyed, or does not show, becomes '?', one for each character or, where there is none, each byte:
 * control codes (C0, DEL, C1), marks that turn the direction of writing, line and paragraph separators, and what is
 * no UTF-8. The same where the output is a pipe or a file. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* From now on what goes to stdout arrives nowhere. */
void print_nothing(void);
/* What was printed goes out now. */
void print_flush(FILE *out);
/* Why something that was printed to stdout could not be written, an errno, of the first such; 0: nothing failed. Where
 * a failure shows later, errno is another call's. */
int print_failure(void);

/* ---- lines ---- */

/* A part of a line, and the rest of a line with its end: a newline in the text is no end, it becomes '?'. */
void print(FILE *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
void print_line(FILE *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Text of many lines: newline, as Windows has it (CR LF), too, and tab stay. */
void print_text(FILE *out, const char *bytes, size_t n);
/* One text in lines of at most `width` characters, broken at spaces, where `column` stand in the first line
 * already and the others begin with `indent` spaces. Width 0: one line. */
void print_wrapped(FILE *out, int column, int indent, int width, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* "note: ...", on stdout or elsewhere, in lines of the terminal's width; where it is none, one line. */
#define print_note(...) print_note_to(stdout, __VA_ARGS__)
void print_note_to(FILE *out, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The rule itself, in place; returns the new length, which is never more than n. */
size_t make_printable(char *text, size_t n, bool keep_newline_and_tab);
/* How many bytes at the end of text begin a character, or CR LF, that is not complete yet: 0 to 3. */
size_t incomplete_character(const char *text, size_t n);

/* ---- the terminal ---- */

/* Characters in a line of the terminal; 0 where `out` is none. */
int terminal_columns(FILE *out);
/* Whether a line can be drawn again: a terminal that knows control codes (TERM is set and not dumb) and a user who
 * has not forbidden them (NO_COLOR). */
bool terminal_redraws(FILE *out);

/* One line below the others that the next line of any kind replaces, cut to `columns`. With `ticks` it counts the
 * seconds while it stands, so that long work moves, too. */
void status_show(FILE *out, int columns, bool ticks, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
