/* log.jsonl: strict lines, NaN as null, resume without a step twice, a new run that loses no old one, a full
 * disk. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include "llmc/base/json.h"
#include "llmc/run/log.h"
#include "dev/test/folder.h"

static char *arguments[] = {"./train_gpt2", "--prompt", "a \"quoted\"\nline \xff"};

static LogHeader header(void) {
    return (LogHeader){
        .argc = 3,
        .argv = arguments,
        .flags = "{\"lr\": 0.001}",
        .device = "cpu",
        .model = "nano",
        .n_parameters = 812345,
        .train_data = "1 text, 1000 tokens",
        .train_fingerprint = 4000000000,
        .n_ranks = 1,
    };
}

static StepReport report(int64_t step) {
    return (StepReport){.step = step,
                        .loss = 1.0 / (double)step,
                        .lr = 1e-3,
                        .norm = 0.5,
                        .ms = 12.5,
                        .mfu = NAN,
                        .memory_bytes = 4096};
}

static bool exists(const char *name) {
    return access(path_of(name), F_OK) == 0;
}

/* Checks that every line of the log is one strict JSON object; counts headers, and the lines of `step` that
 * have `field`. */
static int count_lines(const char *name, int64_t step, const char *field, int *headers) {
    char *text = read_text(path_of(name));
    int found = 0, line_number = 0;
    *headers = 0;
    for (char *line = text, *end; *line; line = end + 1) {
        end = strchr(line, '\n');
        line_number++;
        if (!CHECK(end, "%s line %d has no end", name, line_number)) break;
        Error err = {0};
        Json *json = json_parse(line, (size_t)(end - line), name, &err);
        const JsonValue *root = json ? json_root(json) : NULL;
        int64_t at = -1;
        CHECK(json && root->type == JSON_OBJECT, "%s line %d: %s", name, line_number, err.text);
        *headers += json_get(root, "run") != NULL;
        if (json_int64(json_get(root, "step"), &at) && at == step && json_get(root, field)) found++;
        json_free(json);
    }
    free(text);
    return found;
}

static void test_lines(void) {
    RunLog run;
    Error err = {0};
    LogHeader h = header();
    int headers;
    if (!CHECK(log_open(&run, folder, -1, &h, &err), "%s", err.text)) return;
    StepReport r = report(1);
    r.loss = NAN;
    r.norm = INFINITY;
    r.n_skipped = 1;
    log_step(&run, &r);
    log_val(&run, 1, 2.5, NULL);
    log_sample(&run, 1, "two\nlines \0 and \xf0\x9f\x98 half a face", 32);
    char *text = read_text(path_of("log.jsonl")); /* before the log is closed: each line is written at once */
    CHECK(strstr(text,
                 "{\"step\": 1, \"loss\": null, \"lr\": 0.001, \"norm\": null, \"ms\": 12.5, \"tok_s\": 0, "
                 "\"mfu\": null, \"memory\": 4096, \"skipped\": 1}\n"),
          "the step line: %s", text);
    CHECK(strstr(text, "{\"step\": 1, \"val_loss\": 2.5}\n"), "the evaluation line: %s", text);
    CHECK(
        strstr(text, "\"argv\": [\"./train_gpt2\", \"--prompt\", \"a \\\"quoted\\\"\\nline \xef\xbf\xbd\"]"),
        "argv in the header: %s", text);
    CHECK(strstr(text, "\"flags\": {\"lr\": 0.001}") &&
              strstr(text, "\"train_fingerprint\": 4000000000, \"val\": null, \"val_fingerprint\": 0, "),
          "the header: %s", text);
    CHECK(strstr(text, "two\\nlines \xef\xbf\xbd and \xef\xbf\xbd"), "the sample: %s", text);
    free(text);
    log_close(&run);
    CHECK(count_lines("log.jsonl", 1, "loss", &headers) == 1 && headers == 1, "one header, one step");
    log_step(&run, &r); /* after the end: nothing happens */
    CHECK(count_lines("log.jsonl", 1, "loss", &headers) == 1, "a closed log takes no lines");
    CHECK(log_open(&run, NULL, -1, &h, &err), "no folder, no log");
    log_step(&run, &r);
    log_close(&run);
}

/* No number stands for memory that was not measured: readers would draw it. */
static void test_unknown_memory(void) {
    RunLog run;
    Error err = {0};
    LogHeader h = header();
    StepReport r = report(1);
    r.memory_bytes = 0;
    remove(path_of("log.jsonl"));
    CHECK(log_open(&run, folder, -1, &h, &err), "%s", err.text);
    log_step(&run, &r);
    log_close(&run);
    char *text = read_text(path_of("log.jsonl"));
    CHECK(strstr(text, "\"memory\": null, \"skipped\": 0}\n"), "the step line: %s", text);
    free(text);
    remove(path_of("log.jsonl"));
}

static void write_steps(RunLog *run, int64_t first, int64_t last) {
    for (int64_t step = first; step <= last; step++) {
        StepReport r = report(step);
        log_step(run, &r);
        if (step % 2 == 0) log_val(run, step, 1.5, NULL);
    }
}

static void test_resume(void) {
    RunLog run;
    Error err = {0};
    LogHeader h = header();
    int headers;
    remove(path_of("log.jsonl"));
    CHECK(log_open(&run, folder, -1, &h, &err), "%s", err.text);
    write_steps(&run, 1, 7);
    log_close(&run);
    /* killed in the middle of a line, after the checkpoint of step 4 */
    char path[128];
    snprintf(path, sizeof path, "%s/log.jsonl", folder);
    FILE *file = fopen(path, "a");
    fputs("{\"step\": 3, \"sample\": \"{}\n{\"st\n", file); /* two that an evaluation has ended */
    fputs("{\"step\": 540, \"val_loss\": 2, \"evaluated\": \"x.txt\"}\n", file);
    fputs("{\"step\": 3, \"lo", file);
    fwrite("\0\0\0", 1, 3, file);
    fclose(file);
    CHECK(log_open(&run, folder, 4, &h, &err), "%s", err.text);
    write_steps(&run, 5, 9);
    log_close(&run);
    for (int64_t step = 1; step <= 9; step++) {
        CHECK(count_lines("log.jsonl", step, "loss", &headers) == 1, "step %d stands once", (int)step);
        CHECK(count_lines("log.jsonl", step, "val_loss", &headers) == (step % 2 == 0), "evaluation of %d",
              (int)step);
    }
    CHECK(headers == 2, "one header a run: %d", headers);
    CHECK(count_lines("log.jsonl", 540, "evaluated", &headers) == 1,
          "an evaluation, perhaps of another model, stays");
    CHECK(!exists("log.jsonl.tmp") && !exists("log.1.jsonl"),
          "no temporary file stays, and no copy of a log some of whose lines a kill tore");
    CHECK(log_open(&run, folder, 9, &h, &err), "resumed at the end: %s", err.text);
    log_close(&run);
    CHECK(count_lines("log.jsonl", 9, "loss", &headers) == 1 && headers == 3, "nothing is lost");
    CHECK(log_open(&run, folder, 0, &h, &err), "resumed at the start: %s", err.text);
    log_close(&run);
    CHECK(count_lines("log.jsonl", 1, "loss", &headers) == 0, "every step is dropped");
    remove(path_of("log.jsonl"));
    CHECK(log_open(&run, folder, 5, &h, &err), "resumed without a log: %s", err.text);
    log_close(&run);
}

/* Lines of somebody else's stay in the file as it was, under another name. */
static void test_foreign_lines(void) {
    static const char *const lines[] = {"my notes\n", "my notes without an end", "42\n{]\n"};
    for (int i = 0; i < 3; i++) {
        RunLog run;
        Error err = {0};
        LogHeader h = header();
        int headers;
        remove(path_of("log.jsonl"));
        remove(path_of("log.1.jsonl"));
        CHECK(log_open(&run, folder, -1, &h, &err), "%s", err.text);
        write_steps(&run, 1, 3);
        log_close(&run);
        char *before = read_text(path_of("log.jsonl")), expected[8192];
        snprintf(expected, sizeof expected, "%s%s", before, lines[i]);
        write_text(path_of("log.jsonl"), expected);
        CHECK(log_open(&run, folder, 2, &h, &err), "%s", err.text);
        log_close(&run);
        char *aside = read_text(path_of("log.1.jsonl"));
        CHECK(strcmp(aside, expected) == 0, "the file as it was: %s", aside);
        CHECK(count_lines("log.jsonl", 2, "loss", &headers) == 1 && headers == 2, "the log goes on");
        free(aside);
        free(before);
    }
    remove(path_of("log.1.jsonl"));
}

/* A later run was killed behind moving the log aside: it comes back, cut as any other. */
static void test_taken_back(void) {
    RunLog run;
    Error err = {0};
    LogHeader h = header();
    int headers;
    remove(path_of("log.jsonl"));
    write_text(path_of("log.1.jsonl"), "{\"step\": 4, \"loss\": 1}\n{\"step\": 4, \"checkpoint\": "
                                       "\"step_00000004\"}\n{\"step\": 5, \"loss\": 1}\n");
    write_text(path_of("log.jsonl.tmp"), "what a kill left\n");
    CHECK(log_open(&run, folder, 4, &h, &err), "%s", err.text);
    log_close(&run);
    CHECK(count_lines("log.jsonl", 4, "loss", &headers) == 1, "the checkpoint's log is back");
    CHECK(count_lines("log.jsonl", 5, "loss", &headers) == 0, "later steps do not stand in it");
    CHECK(!exists("log.1.jsonl") && !exists("log.jsonl.tmp"), "what a kill left half cut is no log");
}

/* A resumed log has the mode of a new one, which is that of checkpoints. */
static void test_mode(void) {
    RunLog run;
    Error err = {0};
    LogHeader h = header();
    struct stat created, resumed;
    remove(path_of("log.jsonl"));
    const mode_t mask = umask(002); /* a folder that a group works in */
    CHECK(log_open(&run, folder, -1, &h, &err) && stat(run.path, &created) == 0, "%s", err.text);
    log_close(&run);
    CHECK(log_open(&run, folder, 4, &h, &err) && stat(run.path, &resumed) == 0, "%s", err.text);
    log_close(&run);
    umask(mask);
    CHECK((created.st_mode & 0777) == 0664 && resumed.st_mode == created.st_mode, "mode %o, resumed %o",
          created.st_mode, resumed.st_mode);
    remove(path_of("log.jsonl"));
}

/* A line that no memory holds, zeros of a crash, say: the lines behind it are not given up without a word. */
static void test_long_line(void) {
#ifndef __SANITIZE_ADDRESS__ /* which needs more memory than a limit leaves it */
    const off_t hole = (off_t)1 << 28;
    RunLog run;
    Error err = {0};
    LogHeader h = header();
    char path[128];
    struct stat info;
    struct rlimit before, limit;
    snprintf(path, sizeof path, "%s/log.jsonl", folder);
    write_text(path_of("log.jsonl"), "{\"step\": 1}\n");
    CHECK(truncate(path, hole) == 0, "%s", strerror(errno));
    FILE *file = fopen(path, "a");
    fputs("\n{\"step\": 2}\n", file);
    fclose(file);
    getrlimit(RLIMIT_DATA, &before);
    limit = before;
    limit.rlim_cur = (rlim_t)hole / 4;
    setrlimit(RLIMIT_DATA, &limit);
    CHECK(!log_open(&run, folder, 4, &h, &err) && strstr(err.text, "log.jsonl: Cannot allocate memory"),
          "a long line: '%s'", err.text);
    setrlimit(RLIMIT_DATA, &before);
    CHECK(stat(path, &info) == 0 && info.st_size > hole && !exists("log.jsonl.tmp"),
          "the log stays as it was");
    remove(path_of("log.jsonl"));
#endif
}

static void test_new_run(void) {
    RunLog run;
    Error err = {0};
    LogHeader h = header();
    write_text(path_of("log.jsonl"), "first\n");
    CHECK(log_open(&run, folder, -1, &h, &err), "%s", err.text);
    log_close(&run);
    CHECK(log_open(&run, folder, -1, &h, &err), "%s", err.text);
    log_close(&run);
    char *text = read_text(path_of("log.1.jsonl"));
    CHECK(strcmp(text, "first\n") == 0, "the earlier log stands beside it: %s", text);
    CHECK(exists("log.2.jsonl") && exists("log.jsonl"), "and so does the one after");
    free(text);
    remove(path_of("log.1.jsonl"));
    remove(path_of("log.2.jsonl"));
}

static void test_unwritable(void) {
    RunLog run;
    Error err = {0};
    LogHeader h = header();
    CHECK(!log_open(&run, "/nonexistent/folder", -1, &h, &err), "a folder that is not there");
    CHECK(err.exit_code == EXIT_INPUT && strstr(err.text, "/nonexistent/folder/log.jsonl"), "%s", err.text);
    log_step(&run, &(StepReport){.step = 1}); /* a log that did not open takes no lines */
}

/* ---- a disk that is full, files that move ---- */

/* A limit of file size stands for a full disk: write() fails in the middle of a line. */
static void write_on_full_disk(RunLog *run, int64_t first, int64_t last) {
    struct rlimit before, limit;
    getrlimit(RLIMIT_FSIZE, &before);
    limit = before;
    limit.rlim_cur = (rlim_t)lseek(run->fd, 0, SEEK_END) + 20;
    setrlimit(RLIMIT_FSIZE, &limit);
    write_steps(run, first, last);
    setrlimit(RLIMIT_FSIZE, &before);
}

/* Full, free, full and free again; between the two the log is copied elsewhere and cut to nothing, as logrotate does. */
static void test_full_disk(void) {
    RunLog run;
    Error err = {0};
    LogHeader h = header();
    int headers, old_stderr = dup(2);
    remove(path_of("log.jsonl"));
    CHECK(log_open(&run, folder, -1, &h, &err), "%s", err.text);
    fflush(stderr);
    CHECK(freopen(path_of("stderr"), "w", stderr) != NULL, "stderr: %s", strerror(errno));
    write_steps(&run, 1, 1);
    write_on_full_disk(&run, 2, 4);
    write_steps(&run, 5, 5);
    CHECK(count_lines("log.jsonl", 5, "loss", &headers) == 1, "the log goes on");
    CHECK(count_lines("log.jsonl", 3, "loss", &headers) == 0, "what did not fit is left out, whole");
    CHECK(truncate(path_of("log.jsonl"), 0) == 0, "%s", strerror(errno));
    write_on_full_disk(&run, 7, 7);
    CHECK(lseek(run.fd, 0, SEEK_END) == 0, "nothing is put before what did not fit");
    write_steps(&run, 9, 9);
    fflush(stderr);
    dup2(old_stderr, 2);
    close(old_stderr);
    log_close(&run);
    CHECK(count_lines("log.jsonl", 9, "loss", &headers) == 1 && headers == 1, "the log goes on once more");
    char *said = read_text(path_of("stderr")), expected[600];
    const char *fails = "log.jsonl: a line could not be written: File too large; the run goes on\n",
               *goes = "log.jsonl: lines are written again";
    snprintf(expected, sizeof expected,
             "warning: %s/%swarning: %s/%s, 5 are missing\nwarning: %s/%swarning: %s/%s, 1 are missing\n",
             folder, fails, folder, goes, folder, fails, folder, goes);
    CHECK(strcmp(said, expected) == 0, "once when it fails, once when it goes on: %s", said);
    free(said);
}

/* What logrotate, an editor and a user do to the log of a run that goes on. */
static void test_rotated(void) {
    static const char *const ways[] = {"removed", "moved", "moved and created", "cut to nothing", "edited"};
    RunLog run;
    Error err = {0};
    LogHeader h = header();
    int headers;
    for (int way = 0; way < 5; way++) {
        remove(path_of("log.jsonl"));
        CHECK(log_open(&run, folder, -1, &h, &err), "%s", err.text);
        write_steps(&run, 1, 1);
        if (way == 3) CHECK(truncate(path_of("log.jsonl"), 0) == 0, "%s", strerror(errno));
        if (way != 3) CHECK(rename(path_of("log.jsonl"), path_of("old")) == 0, "%s", strerror(errno));
        if (way == 0) remove(path_of("old"));
        if (way == 2) write_text(path_of("log.jsonl"), "");
        if (way == 4) write_text(path_of("log.jsonl"), "{\"run\": {}}\n{\"step\": 1, \"note\": \"mine\"}");
        write_steps(&run, 2, 3);
        log_close(&run);
        CHECK(count_lines("log.jsonl", 2, "loss", &headers) == 1 && headers == 1,
              "%s: the log goes on in a file of its name, with one header", ways[way]);
        CHECK(count_lines("log.jsonl", 1, "note", &headers) == (way == 4), "%s: what was there stays",
              ways[way]);
    }
    CHECK(log_open(&run, folder, -1, &h, &err) && rename(path_of("log.jsonl"), path_of("old")) == 0 &&
              mkfifo(path_of("log.jsonl"), 0600) == 0,
          "%s", err.text);
    write_steps(&run, 3, 3);
    log_close(&run);
    CHECK(count_lines("old", 3, "loss", &headers) == 1, "no line goes into a FIFO");
    remove(path_of("old"));
    remove(path_of("log.1.jsonl"));
}

/* Another run may take the name of a folder that was moved away: its log is not written into. */
static void test_moved_folder(void) {
    RunLog run;
    Error err = {0};
    LogHeader h = header();
    int headers;
    CHECK(mkdir(path_of("a"), 0700) == 0 && log_open(&run, path_of("a"), -1, &h, &err), "%s", err.text);
    write_steps(&run, 1, 1);
    CHECK(rename(path_of("a"), path_of("moved")) == 0 && mkdir(path_of("a"), 0700) == 0, "%s",
          strerror(errno));
    write_text(path_of("a/log.jsonl"), "");
    write_steps(&run, 2, 3);
    CHECK(count_lines("a/log.jsonl", 2, "loss", &headers) == 0 && headers == 0, "another's log has no lines");
    CHECK(count_lines("moved/log.jsonl", 2, "loss", &headers) == 1, "they are in the folder that moved");
    /* A copy of the folder took its place in the middle of a line. */
    char *text = read_text(path_of("moved/log.jsonl"));
    text[strlen(text) - 30] = 0;
    write_text(path_of("a/log.jsonl"), text);
    free(text);
    log_follow(&run, path_of("a"));
    write_steps(&run, 5, 5);
    for (int step = 1; step <= 5; step += 2)
        CHECK(count_lines("a/log.jsonl", step, "loss", &headers) == 1 && headers == 1,
              "step %d stands once in the folder that the run goes on in", step);
    log_close(&run);
    remove_tree(path_of("a"));
    remove_tree(path_of("moved"));
}

int main(void) {
    if (!REQUIRE(mkdtemp(folder), "%s", strerror(errno))) return check_finish("log");
    test_lines();
    test_unknown_memory();
    test_resume();
    test_foreign_lines();
    test_taken_back();
    test_mode();
    test_long_line();
    test_new_run();
    test_unwritable();
    signal(SIGXFSZ, SIG_IGN);
    test_full_disk();
    test_rotated();
    test_moved_folder();
    remove(path_of("log.jsonl"));
    remove(path_of("stderr"));
    CHECK(rmdir(folder) == 0, "nothing else was written: %s", strerror(errno));
    return check_finish("log");
}
