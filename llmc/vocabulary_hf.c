/* Hugging Face's files of a byte-level BPE tokenizer (GPT2Tokenizer): vocab.json and merges.txt spell every
 * byte as a printable character; the configuration beside them names the class and the special token. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "files.h"
#include "json.h"
#include "vocabulary.h"

static const char *const eot_text = "<|endoftext|>";

/* ---- bytes as printable characters ---- */

/* GPT-2's spelling: printable Latin-1 bytes stand for themselves, the 68 others, in order, are U+0100 and up.
 */
static bool stands_for_itself(int byte) {
    return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
}

static void make_spelling(uint32_t code_points[256]) {
    uint32_t next = 0x100;
    for (int b = 0; b < 256; b++) code_points[b] = stands_for_itself(b) ? (uint32_t)b : next++;
}

/* Writes the spelling of n bytes to out (2 n + 1 bytes, null-terminated); returns its length. */
static size_t spell(const uint32_t code_points[256], const uint8_t *bytes, size_t n, char *out) {
    size_t length = 0;
    for (size_t i = 0; i < n; i++) length += (size_t)utf8_encode(out + length, code_points[bytes[i]]);
    out[length] = 0;
    return length;
}

/* The bytes that `text` spells, to out (n bytes are enough); returns their number, 0 where a character spells
 * none. */
static size_t unspell(const uint32_t code_points[256], const char *text, size_t n, uint8_t *out) {
    size_t length = 0;
    while (n > 0) {
        int sequence = utf8_sequence(text, n), byte = 0;
        char spelled[4];
        while (byte < 256 && (utf8_encode(spelled, code_points[byte]) != sequence ||
                              memcmp(spelled, text, (size_t)sequence) != 0))
            byte++;
        if (byte == 256) return 0;
        out[length++] = (uint8_t)byte;
        text += sequence;
        n -= (size_t)sequence;
    }
    return length;
}

/* ---- vocab.json ---- */

/* Fills by_id with the member of each id: all in [0, n), none twice. */
static bool order_by_id(const JsonValue *root, const JsonValue **by_id, const char *path, Error *err) {
    for (const JsonValue *member = root->first; member; member = member->next) {
        int64_t id;
        if (!json_int64(member, &id) || id < 0 || id >= root->n)
            return fail(err, EXIT_INPUT,
                        "%s: id of token \"%.60s\": expected an integer below the %lld tokens, found %.30s",
                        path, member->key, (long long)root->n,
                        member->text ? member->text : json_type_name(member));
        if (by_id[id])
            return fail(err, EXIT_INPUT, "%s: tokens \"%.60s\" and \"%.60s\" have the same id %lld", path,
                        by_id[id]->key, member->key, (long long)id);
        by_id[id] = member;
    }
    return true;
}

static bool fill_from_json(Vocabulary *vocabulary, const JsonValue *root, const char *path, Error *err) {
    const JsonValue **by_id = calloc((size_t)root->n, sizeof(*by_id));
    bool ok = by_id || fail(err, EXIT_RUN, "%s: out of memory for %lld tokens", path, (long long)root->n);
    ok = ok && order_by_id(root, by_id, path, err);
    uint32_t code_points[256];
    make_spelling(code_points);
    for (int i = 0; ok && i < vocabulary->n_tokens; i++) {
        uint8_t *out = vocabulary->bytes + vocabulary->offsets[i];
        size_t length = unspell(code_points, by_id[i]->key, by_id[i]->key_length, out);
        if (length == 0) { /* not spelled: a special token, its text as it is */
            length = by_id[i]->key_length;
            memcpy(out, by_id[i]->key, length);
        }
        vocabulary->offsets[i + 1] = vocabulary->offsets[i] + (uint32_t)length;
        if (strcmp(by_id[i]->key, eot_text) == 0) vocabulary->eot = i;
    }
    free(by_id);
    return ok;
}

bool vocabulary_read_hf(Vocabulary *vocabulary, const char *directory, Error *err) {
    char path[PATH_MAX];
    if (!path_join(path, directory, "vocab.json", err)) return false;
    Json *json = json_read(path, err);
    if (!json) return false;
    const JsonValue *root = json_root(json);
    bool ok = false;
    if (root->type != JSON_OBJECT || root->n < 1) {
        fail(err, EXIT_INPUT,
             "%s: expected an object {token: id} with at least one token, found %s of %lld values", path,
             json_type_name(root), (long long)root->n);
    } else {
        ok = vocabulary_alloc(vocabulary, (int)root->n, root->end - root->begin, err) &&
             fill_from_json(vocabulary, root, path, err);
    }
    json_free(json);
    return ok;
}

/* ---- merges.txt ---- */

/* The line of merges.txt that makes a token: its two parts, a space between, a newline after them. Appended
 * to w. */
static void append_merge(JsonWriter *w, const Bpe *bpe, const uint32_t code_points[256], int token) {
    for (int side = 0; side < 2; side++) {
        int part = bpe->parts[token][side];
        const uint8_t *bytes = bpe->bytes + bpe->offsets[part];
        for (size_t i = 0; i < bpe->offsets[part + 1] - bpe->offsets[part]; i++) {
            char spelled[4];
            json_append(w, spelled, (size_t)utf8_encode(spelled, code_points[bytes[i]]));
        }
        json_append(w, side == 0 ? " " : "\n", 1);
    }
}

/* All lines of merges.txt after its first, in the order of the ids. */
static void append_merges(JsonWriter *w, const Bpe *bpe) {
    uint32_t code_points[256];
    make_spelling(code_points);
    for (int i = 0; i < bpe->n_tokens; i++) {
        if (bpe->parts[i][0] >= 0) append_merge(w, bpe, code_points, i);
    }
}

/* Where two texts differ first: the number of that line, from 1; 0 if they are equal up to blank space at the
 * end. */
static int64_t first_difference(const char *a, const char *b) {
    int64_t line = 1;
    for (; *a && *a == *b; a++, b++) line += *a == '\n';
    while (*a == '\n') a++;
    while (*b == '\n') b++;
    return *a || *b ? line : 0;
}

bool vocabulary_check_merges(const Bpe *bpe, const char *directory, Error *err) {
    char path[PATH_MAX];
    if (!path_join(path, directory, "merges.txt", err)) return false;
    if (access(path, F_OK) != 0) return true;
    size_t size;
    char *file = file_read(path, JSON_MAX_BYTES, &size, err);
    if (!file) return false;
    const char *merges = file;
    int64_t header_lines = strncmp(file, "#version", 8) == 0;
    if (header_lines) merges += strcspn(file, "\n") + (strchr(file, '\n') != NULL);
    JsonWriter w = {0};
    append_merges(&w, bpe);
    bool ok = !w.failed || fail(err, EXIT_RUN, "%s: out of memory", path);
    int64_t line = ok ? first_difference(merges, w.data ? w.data : "") : 0;
    if (line > 0)
        ok = fail(err, EXIT_INPUT,
                  "%s: line %lld: the merges are not in the order of the ids in vocab.json, as GPT-2's are",
                  path, (long long)(line + header_lines));
    json_writer_free(&w);
    free(file);
    return ok;
}

/* ---- writing ---- */

static void write_vocab(JsonWriter *w, const Vocabulary *vocabulary) {
    uint32_t code_points[256];
    char text[2 * 255 + 1];
    make_spelling(code_points);
    json_begin_object(w, NULL);
    for (int i = 0; i < vocabulary->n_tokens; i++) {
        size_t begin = vocabulary->offsets[i];
        spell(code_points, vocabulary->bytes + begin, vocabulary->offsets[i + 1] - begin, text);
        json_write_int(w, text, i);
    }
    json_end_object(w);
}

static void write_merges(JsonWriter *w, const Bpe *bpe) {
    const char *version = "#version: 0.2\n";
    json_append(w, version, strlen(version));
    append_merges(w, bpe);
}

static void write_special_tokens(JsonWriter *w, const char *eot) {
    json_write_string(w, "bos_token", eot);
    json_write_string(w, "eos_token", eot);
    json_write_string(w, "unk_token", eot);
}

/* Writes the buffer as a file and empties it. */
static bool flush_to(JsonWriter *w, const char *directory, const char *name, Error *err) {
    bool ok = w->failed ? fail(err, EXIT_RUN, "%s/%s: out of memory", directory, name)
                        : vocabulary_write_file(directory, name, w->data, w->length, err);
    json_writer_free(w);
    *w = (JsonWriter){0};
    return ok;
}

bool vocabulary_write_hf(const Vocabulary *vocabulary, const Bpe *bpe, const char *directory, Error *err) {
    const char *eot = vocabulary->eot < 0 ? NULL : eot_text;
    JsonWriter w = {0};
    write_vocab(&w, vocabulary);
    if (!flush_to(&w, directory, "vocab.json", err)) return false;
    write_merges(&w, bpe);
    if (!flush_to(&w, directory, "merges.txt", err)) return false;
    w.indent = 2;
    json_begin_object(&w, NULL);
    write_special_tokens(&w, eot);
    json_end_object(&w);
    if (!flush_to(&w, directory, "special_tokens_map.json", err)) return false;
    w.indent = 2;
    json_begin_object(&w, NULL);
    json_write_bool(&w, "add_prefix_space", false);
    json_write_string(&w, "tokenizer_class", "GPT2Tokenizer");
    write_special_tokens(&w, eot);
    json_end_object(&w);
    return flush_to(&w, directory, "tokenizer_config.json", err);
}
