#include "manifest.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include "llmc/base/checksum.h"
#include "llmc/base/version.h"
#include "safetensors.h"

enum { FORMAT_VERSION = 1, MAX_BYTES = 16 << 20 }; /* 0.2 MB at 48 layers */

#define NO_DIGITS "00000000"
static const char tail[] = "\"" NO_DIGITS "\"\n}\n"; /* how the file ends before its checksum is filled in */

/* ---- writing ---- */
static bool check_flags(const char *flags, Error *err) {
    if (!flags) return true;
    Error inner;
    Json *json = json_parse(flags, strlen(flags), "flags", &inner);
    bool ok = json && json_root(json)->type == JSON_OBJECT;
    json_free(json);
    return ok || fail(err, EXIT_RUN, "the run's flags are no JSON object: %.200s", flags);
}

bool manifest_begin(JsonWriter *w, const TrainerState *state, const Tokenizer *tokenizer, bool model_only,
                    Error *err) {
    *w = (JsonWriter){.indent = 1};
    if (!check_flags(state->flags, err)) return false;
    json_begin_object(w, NULL);
    json_write_int(w, "format_version", FORMAT_VERSION);
    json_write_string(w, "program", program_version());
    json_write_bool(w, "model_only", model_only);
    json_write_int(w, "step", state->step);
    json_write_int(w, "data_position", state->data_position);
    json_write_int(w, "data_tokens", state->data_tokens);
    json_write_int(w, "data_fingerprint", state->data_fingerprint);
    json_write_int(w, "tokens_seen", state->tokens_seen);
    json_write_int(w, "n_skipped", state->n_skipped);
    json_write_int(w, "seed", state->seed);
    json_write_double(w, "best_val_loss", state->best_val_loss);
    json_write_double(w, "val_loss", state->val_loss);
    json_write_bool(w, "best_only", state->best_only);
    tokenizer_describe(w, tokenizer);
    json_write_raw(w, "flags", state->flags ? state->flags : "null");
    json_begin_array(w, "files");
    return true;
}

void manifest_begin_file(JsonWriter *w, const char *name) {
    json_begin_object(w, NULL);
    json_write_string(w, "name", name);
}

void manifest_write_checksum(JsonWriter *w, const char *key, uint32_t crc) {
    char digits[9];
    snprintf(digits, sizeof digits, "%08x", crc);
    json_write_string(w, key, digits);
}

void manifest_end_file(JsonWriter *w, int64_t bytes, uint32_t crc) {
    json_write_int(w, "bytes", bytes);
    manifest_write_checksum(w, "crc32c", crc);
    json_end_object(w);
}

bool manifest_write(JsonWriter *w, const char *directory, Error *err) {
    char digits[9];
    json_end_array(w);
    json_write_string(w, "crc32c", NO_DIGITS);
    json_end_object(w);
    buffer_append(&w->text, "\n", 1);
    if (w->text.failed) return fail(err, EXIT_RUN, "%s: no memory to write " MANIFEST_NAME, directory);
    snprintf(digits, sizeof digits, "%08x", crc32c(0, w->text.data, w->text.length));
    memcpy(w->text.data + w->text.length - strlen(tail) + 1, digits, 8);
    return file_write(directory, MANIFEST_NAME, w->text.data, w->text.length, err);
}

/* ---- reading ---- */
static bool refuse(const Manifest *m, const char *field, const char *expected, Error *err) {
    return json_refuse(m->path, field, expected, json_get(json_root(m->json), field), err);
}

/* The file's own checksum: zeros its digits in text. */
static bool check_own_checksum(const Manifest *m, char *text, size_t length, Error *err) {
    const JsonValue *field = json_get(json_root(m->json), "crc32c");
    char digits[9], expected[40];
    if (!json_is(field, JSON_STRING) || field->end - field->begin != 10)
        return refuse(m, "crc32c", "8 hexadecimal digits", err);
    memcpy(text + field->begin + 1, NO_DIGITS, 8);
    snprintf(digits, sizeof digits, "%08x", crc32c(0, text, length));
    snprintf(expected, sizeof expected, "%s (the file is damaged)", digits);
    return json_equals(field, digits) || refuse(m, "crc32c", expected, err);
}

static bool read_counts(Manifest *m, Error *err) {
    const JsonValue *root = json_root(m->json);
    TrainerState *state = &m->state;
    const struct {
        const char *name;
        int64_t *out;
        bool may_lack;
    } counts[] = {
        {"step",             &state->step,             false},
        {"data_position",    &state->data_position,    false},
        {"data_tokens",      &state->data_tokens,      true },
        {"data_fingerprint", &state->data_fingerprint, true },
        {"tokens_seen",      &state->tokens_seen,      false},
        {"n_skipped",        &state->n_skipped,        false},
        {"seed",             &state->seed,             false},
    };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        const JsonValue *count = json_get(root, counts[i].name);
        if (!count && counts[i].may_lack) continue;
        if (!json_int64(count, counts[i].out) || *counts[i].out < 0)
            return refuse(m, counts[i].name, "a whole number from 0 on", err);
    }
    return state->n_skipped <= state->step || refuse(m, "n_skipped", "at most the number of steps", err);
}

static bool read_losses(Manifest *m, Error *err) {
    const JsonValue *root = json_root(m->json), *best = json_get(root, "best_val_loss"),
                    *own = json_get(root, "val_loss"), *best_only = json_get(root, "best_only");
    TrainerState *state = &m->state;
    state->best_val_loss = state->val_loss = NAN;
    state->best_only = json_is(best_only, JSON_TRUE);
    if (!json_is(best, JSON_NULL) && !json_double(best, &state->best_val_loss))
        return refuse(m, "best_val_loss", "a number or null", err);
    if (!json_is_absent(own) && !json_double(own, &state->val_loss))
        return refuse(m, "val_loss", "a number or null", err);
    if (best_only && best_only->type != JSON_TRUE && best_only->type != JSON_FALSE)
        return refuse(m, "best_only", "true or false", err);
    return true;
}

static bool read_flags(Manifest *m, const char *text, Error *err) {
    const JsonValue *flags = manifest_flags(m);
    if (json_is(flags, JSON_NULL)) return true;
    if (!json_is(flags, JSON_OBJECT)) return refuse(m, "flags", "an object or null", err);
    m->state.flags = strndup(text + flags->begin, flags->end - flags->begin);
    return m->state.flags || fail(err, EXIT_RUN, "%s: no memory for its flags", m->path);
}

static const JsonValue *find_file(const Manifest *m, const char *name) {
    const JsonValue *file = json_get(json_root(m->json), "files")->first;
    while (file && !json_equals(json_get(file, "name"), name)) file = file->next;
    return file;
}

/* Every entry has a plain name, a size and a checksum; the files without which nothing can be loaded are
 * listed. */
static bool check_files(const Manifest *m, Error *err) {
    static const char *const needed[] = {"config.json", "model.safetensors", "optimizer.safetensors"};
    const JsonValue *files = json_get(json_root(m->json), "files");
    int64_t bytes;
    if (!json_is(files, JSON_ARRAY)) return refuse(m, "files", "an array", err);
    for (const JsonValue *file = files->first; file; file = file->next) {
        const JsonValue *name = json_get(file, "name"), *crc = json_get(file, "crc32c");
        bool ok = json_is(name, JSON_STRING) && strlen(name->text) == name->length &&
                  !strchr(name->text, '/') && json_is(crc, JSON_STRING) &&
                  json_int64(json_get(file, "bytes"), &bytes) && bytes >= 0;
        if (!ok) return refuse(m, "files", "entries with name, bytes and crc32c", err);
    }
    for (int i = 0; i < (m->model_only ? 2 : 3); i++)
        if (!find_file(m, needed[i]))
            return fail(err, EXIT_INPUT, "%s: files: expected an entry for %s", m->path, needed[i]);
    return true;
}

static bool check_version(Manifest *m, Error *err) {
    const JsonValue *root = json_root(m->json), *model_only = json_get(root, "model_only");
    int64_t version;
    if (root->type != JSON_OBJECT)
        return fail(err, EXIT_INPUT, "%s: expected an object, found %s", m->path, json_type_name(root));
    if (!json_int64(json_get(root, "format_version"), &version) || version != FORMAT_VERSION)
        return refuse(m, "format_version", "1 (a newer program may have written it)", err);
    m->model_only = json_is(model_only, JSON_TRUE);
    return m->model_only || json_is(model_only, JSON_FALSE) || refuse(m, "model_only", "true or false", err);
}

bool manifest_read(Manifest *m, const char *directory, Error *err) {
    size_t length;
    *m = (Manifest){0};
    if (!path_join(m->path, directory, MANIFEST_NAME, err)) return false;
    snprintf(m->directory, sizeof m->directory, "%s", directory);
    char *text = file_read(m->path, MAX_BYTES, &length, err);
    if (!text) return false;
    m->json = json_parse(text, length, m->path, err);
    bool ok = m->json && check_version(m, err) && read_flags(m, text, err) &&
              check_own_checksum(m, text, length, err) && read_counts(m, err) && read_losses(m, err) &&
              check_files(m, err);
    free(text);
    if (!ok) manifest_free(m);
    return ok;
}

void manifest_free(Manifest *m) {
    free((char *)m->state.flags);
    json_free(m->json);
    *m = (Manifest){0};
}

/* ---- verification ---- */
bool manifest_sizes_match(const Manifest *m) {
    char path[PATH_MAX];
    struct stat info;
    Error ignored;
    for (const JsonValue *file = json_get(json_root(m->json), "files")->first; file; file = file->next) {
        int64_t bytes = -1;
        json_int64(json_get(file, "bytes"), &bytes);
        if (!path_join(path, m->directory, json_get(file, "name")->text, &ignored)) return false;
        if (stat(path, &info) || info.st_size != bytes) return false;
    }
    return true;
}

/* "tensor NAME" that differs from its checksum, or where else the damage lies. */
static void find_damage(const char *path, const JsonValue *tensors, char *where, size_t size) {
    Safetensors file;
    Error ignored;
    char digits[9];
    uint32_t crc;
    snprintf(where, size, tensors ? "its header" : "its bytes");
    if (!tensors || !safetensors_open(&file, path, &ignored)) return;
    for (int i = 0; i < file.n; i++) {
        const SafetensorsEntry *entry = &file.entries[i];
        const JsonValue *expected = json_get(tensors, entry->name);
        if (!expected || !file_checksum_at(file.fd, path, entry->begin, entry->end, &crc, &ignored)) continue;
        snprintf(digits, sizeof digits, "%08x", crc);
        if (json_equals(expected, digits)) continue;
        snprintf(where, size, "tensor %.80s", entry->name);
        break;
    }
    safetensors_close(&file);
}

/* to_load: the weights alone are wanted, and would be had without the manifest. */
static bool verify(const Manifest *m, const JsonValue *file, bool to_load, Error *err) {
    char path[PATH_MAX], digits[9], where[100], hint[PATH_MAX + 80] = "";
    int64_t bytes, expected_bytes = -1;
    uint32_t crc;
    const JsonValue *expected = json_get(file, "crc32c");
    json_int64(json_get(file, "bytes"), &expected_bytes);
    if (!path_join(path, m->directory, json_get(file, "name")->text, err)) return false;
    if (!file_checksum(path, &bytes, &crc, err)) return false;
    if (bytes != expected_bytes)
        return fail(err, EXIT_INPUT, "%s: expected %lld bytes by " MANIFEST_NAME ", found %lld", path,
                    (long long)expected_bytes, (long long)bytes);
    snprintf(digits, sizeof digits, "%08x", crc);
    if (json_equals(expected, digits)) return true;
    find_damage(path, json_get(file, "tensors"), where, sizeof where);
    if (to_load)
        snprintf(hint, sizeof hint, "; hint: without its " MANIFEST_NAME " --model %s loads it as it is",
                 m->directory);
    return fail(err, EXIT_INPUT,
                "%s: %s: damaged or edited: expected checksum %.8s by " MANIFEST_NAME ", found %s%s", path,
                where, expected->text, digits, hint);
}

static bool is_wanted(const JsonValue *file, bool with_optimizer) {
    return with_optimizer || !json_equals(json_get(file, "name"), "optimizer.safetensors");
}

/* One number of what the disk says of these files: another one once any of them was written or replaced. 0 where that cannot
 * be told: one is not there, or was written just now, within a step of the clock. */
static uint32_t stamp_of(const Manifest *m, bool with_optimizer) {
    enum { CLOCK_STEP = 2 }; /* seconds: the coarsest of file systems */
    char path[PATH_MAX];
    struct stat info;
    Error ignored;
    uint32_t stamp = 0;
    for (const JsonValue *file = json_get(json_root(m->json), "files")->first; file; file = file->next) {
        if (!is_wanted(file, with_optimizer)) continue;
        if (!path_join(path, m->directory, json_get(file, "name")->text, &ignored)) return 0;
        if (stat(path, &info) || info.st_mtime + CLOCK_STEP >= time(NULL)) return 0;
        const int64_t fields[] = {(int64_t)info.st_dev, (int64_t)info.st_ino, info.st_size,
                                  info.st_mtim.tv_sec,  info.st_mtim.tv_nsec, info.st_ctim.tv_sec,
                                  info.st_ctim.tv_nsec};
        stamp = crc32c(stamp, fields, sizeof fields);
    }
    return stamp;
}

static uint32_t whole_stamp; /* of the files that were last found whole; 0: none */

bool manifest_verify(const Manifest *m, bool with_optimizer, Error *err) {
    const uint32_t stamp = stamp_of(m, with_optimizer); /* before they are read */
    for (const JsonValue *file = json_get(json_root(m->json), "files")->first; file; file = file->next)
        if (is_wanted(file, with_optimizer) && !verify(m, file, !with_optimizer, err)) return false;
    whole_stamp = stamp;
    return true;
}

bool manifest_verify_once(const Manifest *m, bool with_optimizer, Error *err) {
    const uint32_t stamp = stamp_of(m, with_optimizer);
    return (stamp && stamp == whole_stamp) || manifest_verify(m, with_optimizer, err);
}
