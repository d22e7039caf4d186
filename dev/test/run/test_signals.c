/* A signal while the program starts up: it ends at once, as signals do, with nothing left behind. */
#include <signal.h>
#include <stdint.h>
#include <time.h>
#include "llmc/base/clock.h"
#include "dev/test/program_case.h"

enum { TEXT_BYTES = 24000000 }; /* one word of many seconds: its tokens are merged pair by pair */

static void put(FILE *file, const char *token, size_t length) {
    fputc((int)length, file);
    fwrite(token, 1, length, file);
}

/* FOLDER/small.bin, a tokenizer with two merges, and FOLDER/word.txt, which it is long at. */
static bool write_files(void) {
    const uint32_t header[256] = {20240328, 2, 259, 258};
    FILE *file = fopen(path_of("small.bin"), "wb");
    if (!file) return false;
    fwrite(header, sizeof header, 1, file);
    for (int byte = 0; byte < 256; byte++) put(file, &(char){(char)byte}, 1);
    put(file, "th", 2);
    put(file, "the", 3);
    put(file, "<|endoftext|>", 13);
    bool ok = fclose(file) == 0 && (file = fopen(path_of("word.txt"), "wb"));
    for (int i = 0; ok && i < TEXT_BYTES / 3; i++) ok = fwrite("the", 3, 1, file) == 1;
    return file && fclose(file) == 0 && ok;
}

/* Starts the program on the text, its output in FOLDER/stdout and stderr. */
static pid_t start(void) {
    char text[300], tokenizer[300], out[300], printed[300], errors[300];
    snprintf(text, sizeof text, "%s/word.txt", folder);
    snprintf(tokenizer, sizeof tokenizer, "%s/small.bin", folder);
    snprintf(out, sizeof out, "%s/out", folder);
    snprintf(printed, sizeof printed, "%s/stdout", folder);
    snprintf(errors, sizeof errors, "%s/stderr", folder);
    unlink(printed);
    const pid_t child = fork();
    if (child) return child;
    signal(SIGINT, SIG_DFL); /* a shell may have started the tests without */
    signal(SIGTERM, SIG_DFL);
    if (!freopen(printed, "w", stdout) || !freopen(errors, "w", stderr)) _exit(99);
    execl(program, program, "--device", "cpu", "--train", text, "--tokenizer", tokenizer, "--out", out,
          "--steps", "2", (char *)NULL);
    _exit(99);
}

/* Until the program has printed its first line, or is gone: then it reads the text. */
static bool wait_for_line(pid_t child) {
    siginfo_t gone = {0};
    for (bool printed = false;;) {
        char *text = read_text(path_of("stdout"));
        printed = strchr(text, '\n') != NULL;
        free(text);
        if (printed || gone.si_pid == child) return printed;
        waitid(P_PID, (id_t)child, &gone, WEXITED | WNOHANG | WNOWAIT);
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
}

/* Sends the program a signal once it reads the text; its status. False where it had read it all by then. */
static bool interrupt(int number, int *status) {
    const pid_t child = start();
    if (!REQUIRE(child > 0, "the program cannot be started")) return true;
    wait_for_line(child);
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    kill(child, number);
    waitpid(child, status, 0);
    char *text = read_text(path_of("stdout"));
    const bool is_early = !strstr(text, "device ");
    free(text);
    return is_early;
}

/* Again where this test was held up for longer than the program takes to start. */
static void test_signal(int number) {
    int status = 0;
    bool is_early = false;
    for (int again = 0; again < 10 && !is_early; again++) {
        remove_tree(path_of("out"));
        is_early = interrupt(number, &status);
    }
    char *text = read_text(path_of("stdout")), *errors = read_text(path_of("stderr"));
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == number, "signal %d: status %#x, printed %s", number,
          (unsigned)status, text);
    CHECK(strstr(text, "program ") && is_early, "signal %d came after start-up: %s", number, text);
    CHECK(!*errors, "signal %d: says %s", number, errors);
    CHECK(access(path_of("out"), F_OK) != 0, "signal %d: a folder is left", number);
    free(text);
    free(errors);
}

int main(void) {
    if (!program_is_here()) return check_finish("signals");
    if (!REQUIRE(mkdtemp(folder) && write_files(), "%s cannot be written", folder))
        return check_finish("signals");
    test_signal(SIGINT);
    test_signal(SIGTERM);
    remove_tree(folder);
    return check_finish("signals");
}
