/* A chat on the terminal with a base model, which has learned no turns: it goes on with the text so far, in which each
 * line that is typed stands as it is. */
#include "samples.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "llmc/base/buffer.h"
#include "llmc/base/files.h"
#include "llmc/base/terminal.h"
#include "stop.h"

/* All that was typed and answered; the answer that comes is shown and added. */
typedef struct Chat {
    Console *console;
    Buffer text;
} Chat;

/* Its nulls as '?': a text ends at its first. */
static void add(Buffer *text, const char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) buffer_append(text, bytes[i] ? &bytes[i] : "?", 1);
}

static void take_answer(int sample, const char *bytes, size_t n, void *user) {
    Chat *c = user;
    console_text(c->console, bytes, n);
    add(&c->text, bytes, n);
}

static void end_line(Buffer *text) {
    if (text->length == 0 || text->data[text->length - 1] != '\n') buffer_append(text, "\n", 1);
}

/* The next line behind the text so far; false where stdin ends, or, with err, cannot be read. */
static bool read_line(Buffer *text, Error *err) {
    static const char prompt[] = "> ";
    const bool typed = isatty(STDIN_FILENO);
    char *line = NULL;
    size_t size = 0;
    if (typed) print(stderr, "%s", prompt);
    stop_expect_line(typed ? prompt : "");
    const ssize_t n = getline(&line, &size, stdin);
    if (n < 0 && ferror(stdin)) {
        fail_stdin(err);
        fail_flag("chat", err);
    }
    stop_expect_line(NULL);
    if (n > 0) add(text, line, (size_t)n);
    if (n > 0) end_line(text);
    if (n <= 0 && typed) print_line(stderr, "%s", "");
    free(line);
    return n > 0;
}

/* By SIGINT, and where nobody gets it. */
static bool answer_ends(void) {
    return stop_interrupted() || ferror(stdout);
}

static bool answer(Run *run, Chat *c, SampleOptions *options, SampleRates *all, Error *err) {
    SampleRates rates;
    options->prompt = c->text.data;
    options->seed++;
    stop_forget_interrupt();
    console_text_begin(c->console);
    const bool ok = sample(&run->model, run->tokenizer, options, take_answer, c, &rates, err);
    console_text_end(c->console);
    if (!ok || !console_text_arrived(c->console, err)) return false;
    if (c->text.failed) return fail(err, EXIT_RUN, "--chat: no memory for its text");
    end_line(&c->text);
    if (all->n_tokens == 0) all->first_seconds = rates.first_seconds;
    all->n_tokens += rates.n_tokens;
    all->n_steps += rates.n_steps;
    all->step_seconds += rates.step_seconds;
    all->step_bytes += rates.step_bytes;
    return true;
}

bool chat(Run *run, Console *console, SampleOptions options, Error *err) {
    Chat c = {.console = console};
    SampleRates all = {0};
    bool ok = true;
    print_note_to(
        stderr,
        "a base model goes on with the text so far, your lines in it; an answer ends with end-of-text, "
        "--stop, or %d tokens (--sample-tokens); ctrl-C ends an answer, ctrl-D the chat",
        options.n_tokens);
    options.text_alone = true;
    if (options.prompt) add(&c.text, options.prompt, strlen(options.prompt));
    stop_catch_interrupt();
    run->model.stop = answer_ends;
    while (ok && read_line(&c.text, err)) ok = answer(run, &c, &options, &all, err);
    ok = ok && err->exit_code == 0;
    if (ok) samples_print_rates(run->ops, &all);
    buffer_free(&c.text);
    return ok;
}
