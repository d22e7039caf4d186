#include "log.h"
#include "llmc/base/files.h"
#include "llmc/base/json.h"
#include "llmc/base/version.h"
#include "llmc/checkpoint/checkpoint_directory.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "llmc/base/terminal.h"
#include "llmc/comm/watchdog.h"

/* ---- the file ---- */

#define LOG_NAME "log.jsonl"

/* A file, or nothing: what else has the name is not written to. */
static int open_to_append(int folder) {
    const int flags = O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    const int fd = openat(folder, LOG_NAME, flags, 0666);
    struct stat info;
    if (fd < 0 || (fstat(fd, &info) == 0 && S_ISREG(info.st_mode))) return fd;
    close(fd);
    errno = EINVAL;
    return -1;
}

/* A log that was rotated, removed or edited goes on in the file of its name. In the folder that is open: another of that
 * name may be another run's. */
static void follow_name(RunLog *run) {
    struct stat held, named;
    const bool is_known =
        fstatat(run->folder, LOG_NAME, &named, AT_SYMLINK_NOFOLLOW) == 0 && fstat(run->fd, &held) == 0;
    if (is_known && is_same_file(&held, &named)) return;
    const int fd = open_to_append(run->folder);
    if (fd < 0) return; /* the lines stay where they were */
    close(run->fd);
    run->fd = fd;
}

/* What a kill or a full disk left of a line ends here: what comes is a line of its own. */
static void end_torn_line(const RunLog *run) {
    const off_t end = lseek(run->fd, 0, SEEK_END);
    char last = '\n';
    if (end > 0 && pread(run->fd, &last, 1, end - 1) == 1 && last != '\n') file_write_all(run->fd, "\n", 1);
}

/* ---- one line ---- */

/* What a failed write left behind is cut off again. */
static bool append(const RunLog *run, const char *bytes, size_t n) {
    const off_t end = lseek(run->fd, 0, SEEK_END);
    if (file_write_all(run->fd, bytes, n)) return true;
    const int reason = errno;
    if (ftruncate(run->fd, end) == 0) errno = reason; /* else the next line ends it first */
    return false;
}

static bool append_line(RunLog *run, const JsonWriter *w) {
    follow_name(run);
    end_torn_line(run);
    const bool begins = run->header && lseek(run->fd, 0, SEEK_END) == 0;
    return (!begins || append(run, run->header, strlen(run->header))) &&
           append(run, w->text.data, w->text.length);
}

static void say_lost(RunLog *run, int reason) {
    Error err;
    if (run->is_asked) {
        fail(&err, EXIT_RUN, "--out: %s: a line could not be written: %s", run->path, strerror(reason));
        die(&err);
    }
    if (!run->n_lost++)
        print_line(stderr, "warning: %s: a line could not be written: %s; the run goes on", run->path,
                   strerror(reason));
}

static void say_recovered(RunLog *run) {
    if (run->n_lost)
        print_line(stderr, "warning: %s: lines are written again, %lld are missing", run->path,
                   (long long)run->n_lost);
    run->n_lost = 0;
}

static void put_line(RunLog *run, JsonWriter *w) {
    buffer_append(&w->text, "\n", 1);
    watchdog_waits_for_disk(true);
    const bool written = !w->text.failed && append_line(run, w);
    const int reason = w->text.failed ? ENOMEM : errno;
    watchdog_waits_for_disk(false);
    if (written)
        say_recovered(run);
    else
        say_lost(run, reason);
}

/* Ends the object in w, appends it as one line, frees w. */
static void finish_line(RunLog *run, JsonWriter *w) {
    json_end_object(w);
    put_line(run, w);
    json_writer_free(w);
}

/* The object of a line about `step`. */
static JsonWriter begin_line(int64_t step) {
    JsonWriter w = {0};
    json_begin_object(&w, NULL);
    json_write_int(&w, "step", step);
    return w;
}

void log_step(RunLog *run, const StepReport *report) {
    if (!run->is_open) return;
    JsonWriter w = begin_line(report->step);
    json_write_double(&w, "loss", report->loss);
    json_write_double(&w, "lr", report->lr);
    json_write_double(&w, "norm", report->norm);
    json_write_double(&w, "ms", report->ms);
    json_write_double(&w, "tok_s", report->tokens_per_second);
    json_write_double(&w, "mfu", report->mfu);
    if (report->memory_bytes)
        json_write_int(&w, "memory", (int64_t)report->memory_bytes);
    else
        json_write_null(&w, "memory");
    json_write_int(&w, "skipped", report->n_skipped);
    finish_line(run, &w);
}

void log_val(RunLog *run, int64_t step, double val_loss, const char *evaluated) {
    if (!run->is_open) return;
    JsonWriter w = begin_line(step);
    json_write_double(&w, "val_loss", val_loss);
    if (evaluated) json_write_string(&w, "evaluated", evaluated);
    finish_line(run, &w);
}

void log_score(RunLog *run, int64_t step, const ChoiceScore *score, const unsigned char *chosen,
               const char *evaluated) {
    if (!run->is_open) return;
    JsonWriter w = begin_line(step);
    Buffer digits = {0};
    json_write_double(&w, "acc_norm", choices_share(score, score->n_right_mean));
    json_write_double(&w, "acc", choices_share(score, score->n_right));
    json_write_int(&w, "items", score->n_items);
    for (int i = 0; chosen && i < score->n_items; i++)
        buffer_append(&digits, chosen[i] < 10 ? &"0123456789"[chosen[i]] : "?", 1);
    if (digits.data && !digits.failed) json_write_string(&w, "chosen", digits.data);
    buffer_free(&digits);
    if (evaluated) json_write_string(&w, "evaluated", evaluated);
    finish_line(run, &w);
}

void log_sources(RunLog *run, int64_t step, const DataLoader *data, int64_t position) {
    const int n = data ? dataloader_n_sources(data) : 0;
    if (!run->is_open || n < 2) return;
    JsonWriter w = begin_line(step);
    json_begin_array(&w, "sources");
    for (int i = 0; i < n; i++) {
        const DataSource source = dataloader_source(data, i, position);
        json_begin_object(&w, NULL);
        json_write_string(&w, "glob", source.pattern);
        json_write_int(&w, "tokens", source.n_tokens);
        json_write_double(&w, "epochs", source.epochs);
        json_end_object(&w);
    }
    json_end_array(&w);
    finish_line(run, &w);
}

void log_sample(RunLog *run, int64_t step, const char *text, size_t length) {
    if (!run->is_open) return;
    JsonWriter w = begin_line(step);
    char *copy = malloc(length + 1);
    if (!copy) w.text.failed = true;
    /* A null byte would end the string: as a byte that is no UTF-8 it becomes U+FFFD, as all such bytes do. */
    for (size_t i = 0; copy && i < length; i++) copy[i] = text[i] ? text[i] : '\xff';
    if (copy) copy[length] = '\0';
    json_write_string(&w, "sample", copy);
    finish_line(run, &w);
    free(copy);
}

void log_checkpoint(RunLog *run, int64_t step, double seconds) {
    if (!run->is_open) return;
    char name[CHECKPOINT_NAME];
    checkpoint_name(name, "", step);
    JsonWriter w = begin_line(step);
    json_write_string(&w, "checkpoint", name);
    json_write_double(&w, "seconds", seconds);
    finish_line(run, &w);
}

void log_failed_save(RunLog *run, int64_t step, const char *why) {
    if (!run->is_open) return;
    JsonWriter w = begin_line(step);
    json_write_string(&w, "save_failed", why);
    finish_line(run, &w);
}

static void write_header(RunLog *run, int64_t resumed_step, const LogHeader *header) {
    JsonWriter w = {0};
    char date[32];
    time_t now = time(NULL);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime(&now));
    json_begin_object(&w, NULL);
    json_begin_object(&w, "run");
    json_write_string(&w, "date", date);
    json_write_string(&w, "version", program_version());
    json_begin_array(&w, "argv");
    for (int i = 0; i < header->argc; i++) json_write_string(&w, NULL, header->argv[i]);
    json_end_array(&w);
    json_write_raw(&w, "flags", header->flags ? header->flags : "null");
    json_write_string(&w, "device", header->device);
    json_write_int(&w, "ranks", header->n_ranks);
    json_write_string(&w, "model", header->model);
    json_write_int(&w, "parameters", header->n_parameters);
    tokenizer_describe(&w, header->tokenizer);
    json_write_string(&w, "train", header->train_data);
    json_write_int(&w, "train_fingerprint", header->train_fingerprint);
    json_write_string(&w, "val", header->val_data);
    json_write_int(&w, "val_fingerprint", header->val_fingerprint);
    json_write_int(&w, "first_step", resumed_step < 0 ? 0 : resumed_step);
    json_end_object(&w);
    json_end_object(&w);
    put_line(run, &w);
    run->header = w.text.failed ? NULL : strndup(w.text.data, w.text.length);
    json_writer_free(&w);
}

/* ---- opening ---- */

/* What the name stands for: 0 nothing, 1 a file, -1 with err anything else. Nothing is written through a link. */
static int look_at(const char *path, Error *err) {
    struct stat status;
    if (lstat(path, &status)) return errno == ENOENT ? 0 : (fail_errno(err, "cannot open", path), -1);
    if (S_ISREG(status.st_mode)) return 1;
    fail(err, EXIT_INPUT,
         "%s: expected a file, found %s, through which nothing is written; hint: move it away, or another "
         "--out",
         path, file_type_name(status.st_mode));
    return -1;
}

/* A new file of that name; what a kill left of an earlier one goes. */
static bool create(OutFile *file, const char *path, Error *err) {
    const int there = look_at(path, err);
    if (there < 0) return false;
    if (there) unlink(path);
    return outfile_open(file, path, err);
}

/* Whether a text of n bytes begins as write_header begins a line, or as all others do; of a short one, as far as it goes. */
static bool begins_as_line(const char *text, size_t n) {
    static const char *const heads[] = {"{\"run\":", "{\"step\":"};
    bool begins = false;
    for (int i = 0; i < 2; i++) {
        const size_t length = strlen(heads[i]);
        begins = begins || strncmp(text, heads[i], n < length ? n : length) == 0;
    }
    return begins;
}

/* KEPT: a whole line, an object of strict JSON, that is a header, an evaluation's, or belongs to a step up to last_step. DROPPED: of a
 * later step, or torn by a kill. FOREIGN: no log's. */
typedef enum { KEPT, DROPPED, FOREIGN } LineKind;
static LineKind kind_of(const char *line, size_t length, int64_t last_step) {
    const bool is_ended = length > 0 && line[length - 1] == '\n';
    Error unused = {0};
    Json *json = is_ended ? json_parse(line, length, "log line", &unused) : NULL;
    if (!json) { /* a file system may end a file that a power cut left in zeros */
        length -= is_ended;
        while (length > 0 && line[length - 1] == 0) length--;
        return begins_as_line(line, length) ? DROPPED : FOREIGN;
    }
    int64_t step = 0;
    const bool is_object = json_root(json)->type == JSON_OBJECT;
    const JsonValue *value = is_object ? json_get(json_root(json), "step") : NULL;
    const bool is_of_run = is_object && json_is_absent(json_get(json_root(json), "evaluated"));
    const bool keep = !value || !is_of_run || (json_int64(value, &step) && step <= last_step);
    const LineKind kind = !is_object ? FOREIGN : keep ? KEPT : DROPPED;
    json_free(json);
    return kind;
}

/* Copies the lines that stay from `from` to the new file `to`, which is on the disk when this returns true. */
static bool copy_kept_lines(const char *from, const char *to, int64_t last_step, bool *has_foreign,
                            Error *err) {
    FILE *in = fopen(from, "r");
    if (!in) return fail_errno(err, "cannot read", from);
    OutFile out = {.fd = -1};
    char *line = NULL;
    size_t capacity = 0;
    bool good = create(&out, to, err);
    for (ssize_t n; good && (n = getline(&line, &capacity, in)) > 0;) {
        const LineKind kind = kind_of(line, (size_t)n, last_step);
        if (kind == KEPT) good = outfile_write(&out, line, (size_t)n, err);
        *has_foreign = *has_foreign || kind == FOREIGN;
    }
    if (good && !feof(in)) /* a line that no memory holds ends getline, too */
        good = fail_errno(err, "cannot read", from);
    good = good && outfile_close(&out, err);
    outfile_abandon(&out);
    free(line);
    fclose(in);
    return good;
}

/* Begins with a line of one, or has nothing in it yet. */
static bool is_log(const char *path) {
    char begin[16];
    FILE *file = fopen(path, "r");
    const size_t n = file ? fread(begin, 1, sizeof begin, file) : 0;
    const bool is = file && begins_as_line(begin, n);
    if (file) fclose(file);
    return is;
}

/* Moves the log of an earlier run to the first free name, so that a new run in the same folder loses nothing. What is no log, or
 * has other lines as well, is named. */
static bool set_aside(const char *dir, const char *path, bool has_foreign, Error *err) {
    char aside[1100];
    struct stat status;
    int i = 1;
    do {
        snprintf(aside, sizeof aside, "%s/log.%d.jsonl", dir, i++);
    } while (lstat(aside, &status) == 0);
    if (rename(path, aside) != 0) return fail_errno(err, "cannot move aside", path);
    if (has_foreign || !is_log(aside)) print_note("%s has lines that are no log's: kept as %s", path, aside);
    return true;
}

/* Lines that are no log's stay in the old file, under another name. */
static bool drop_later_lines(const char *dir, const char *path, int64_t last_step, Error *err) {
    char temporary[1100];
    snprintf(temporary, sizeof temporary, "%s.tmp", path);
    bool has_foreign = false, good = copy_kept_lines(path, temporary, last_step, &has_foreign, err);
    if (good && has_foreign) good = set_aside(dir, path, true, err);
    if (good && rename(temporary, path) != 0) good = fail_errno(err, "cannot replace", path);
    Error ignored;
    if (good)
        directory_sync(dir, &ignored); /* a file system without this loses nothing but the rename */
    else if (look_at(temporary, &ignored) == 1)
        unlink(temporary);
    return good;
}

/* The line of a save of that step is there. */
static bool has_save(const char *path, int64_t step) {
    char name[CHECKPOINT_NAME], words[CHECKPOINT_NAME + 32], *line = NULL;
    size_t capacity = 0;
    bool found = false;
    FILE *in = fopen(path, "r");
    if (!in) return false;
    checkpoint_name(name, "", step);
    snprintf(words, sizeof words, "\"checkpoint\": \"%s\"", name);
    while (!found && getline(&line, &capacity, in) > 0) found = strstr(line, words) != NULL;
    free(line);
    fclose(in);
    return found;
}

void log_take_back(const char *dir, int64_t step) {
    char path[1100], aside[1100], between[1110];
    struct stat status;
    snprintf(path, sizeof path, "%s/" LOG_NAME, dir);
    snprintf(aside, sizeof aside, "%s/" LOG_ASIDE, dir);
    snprintf(between, sizeof between, "%s.tmp", path);
    /* Most folders have one log, which is not read then. */
    if (lstat(aside, &status) || !S_ISREG(status.st_mode) || has_save(path, step) || !has_save(aside, step))
        return;
    const bool changes = rename(path, between) == 0; /* else a kill left no log in its place */
    rename(aside, path);
    if (changes) rename(between, aside);
}

static bool log_path(RunLog *run, const char *dir, Error *err) {
    return snprintf(run->path, sizeof run->path, "%s/" LOG_NAME, dir) < (int)sizeof run->path ||
           fail(err, EXIT_INPUT, "path longer than %zu bytes", sizeof run->path);
}

static bool open_end(RunLog *run, const char *dir, Error *err) {
    run->folder = directory_open(dir, err);
    run->fd = run->folder < 0 ? -1 : open_to_append(run->folder);
    run->is_open = run->fd >= 0;
    if (run->is_open) return true;
    fail_errno(err, "cannot open for writing", run->path);
    if (run->folder >= 0) close(run->folder);
    return false;
}

bool log_check(const char *dir, bool resumed, Error *err) {
    RunLog run;
    char temporary[1100];
    if (!log_path(&run, dir, err) || look_at(run.path, err) < 0) return fail_flag("out", err);
    snprintf(temporary, sizeof temporary, "%s.tmp", run.path);
    return !resumed || look_at(temporary, err) >= 0 || fail_flag("out", err);
}

bool log_append(RunLog *run, const char *dir, Error *err) {
    *run = (RunLog){0};
    if (!dir) return true;
    if (!log_path(run, dir, err)) return false;
    const int there = look_at(run->path, err);
    if (there < 0 || (there == 1 && !is_log(run->path) && !set_aside(dir, run->path, false, err)))
        return false;
    if (!open_end(run, dir, err)) return false;
    run->is_asked = true;
    return true;
}

bool log_open(RunLog *run, const char *dir, int64_t resumed_step, const LogHeader *header, Error *err) {
    *run = (RunLog){0};
    if (!dir) return true;
    if (!log_path(run, dir, err)) return false;
    if (look_at(run->path, err) < 0) return false;
    if (resumed_step >= 0) log_take_back(dir, resumed_step);
    const bool there = look_at(run->path, err) == 1;
    if (there && resumed_step >= 0 && !drop_later_lines(dir, run->path, resumed_step, err)) return false;
    if (there && resumed_step < 0 && !set_aside(dir, run->path, false, err)) return false;
    if (!open_end(run, dir, err)) return false;
    write_header(run, resumed_step, header);
    return true;
}

/* What the file lacks of the one before: all, or what was written after it was copied. */
static void carry_over(int from, int to) {
    enum { SAME = 256 };
    char before[SAME], now[SAME], buffer[1 << 14];
    off_t at = lseek(to, 0, SEEK_END);
    const size_t n = at < SAME ? (size_t)at : SAME;
    const bool follows = pread(from, before, n, at - (off_t)n) == (ssize_t)n &&
                         pread(to, now, n, at - (off_t)n) == (ssize_t)n && memcmp(before, now, n) == 0;
    ssize_t got;
    while (follows && (got = pread(from, buffer, sizeof buffer, at)) > 0 &&
           file_write_all(to, buffer, (size_t)got))
        at += got;
}

void log_follow(RunLog *run, const char *dir) {
    RunLog next = *run;
    Error ignored;
    if (!run->is_open || !open_end(&next, dir, &ignored)) return; /* the lines stay where they were */
    carry_over(run->fd, next.fd);
    close(run->fd);
    close(run->folder);
    *run = next;
}

void log_close(RunLog *run) {
    if (run->is_open) close(run->fd);
    if (run->is_open) close(run->folder);
    free(run->header);
    run->header = NULL;
    run->is_open = false;
}
