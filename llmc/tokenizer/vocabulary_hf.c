/* Hugging Face's files of a byte-level BPE tokenizer (GPT2Tokenizer): vocab.json and merges.txt spell every
 * byte as a printable character; the configuration beside them names the class and the special token. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "bpe.h"
#include "llmc/base/files.h"
#include "llmc/base/utf8.h"
#include "vocabulary.h"

static const char *const eot_text = "<|endoftext|>";

/* ---- bytes as printable characters ---- */

/* GPT-2's spelling: printable Latin-1 bytes stand for themselves, the 68 others, in order, are U+0100 and up. */
static bool stands_for_itself(uint32_t byte) {
    return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD && byte <= 0xFF);
}

static uint32_t spelled_byte(uint8_t byte) {
    if (stands_for_itself(byte)) return byte;
    return byte <= ' ' ? 0x100u + byte : byte == 0xAD ? 0x143u : 0x121u + byte - 0x7F;
}

/* The byte that a character spells; 256: none. */
static int unspelled_byte(uint32_t code_point) {
    int byte = 0;
    if (stands_for_itself(code_point)) return (int)code_point;
    while (byte < 256 && spelled_byte((uint8_t)byte) != code_point) byte++;
    return byte;
}

void vocabulary_spell(const Vocabulary *vocabulary, int i, char text[TOKEN_SPELLED]) {
    size_t n, length = 0;
    const uint8_t *bytes = vocabulary_bytes(vocabulary, i, &n);
    for (size_t k = 0; k < n; k++) length += (size_t)utf8_encode(text + length, spelled_byte(bytes[k]));
    text[length] = 0;
}

/* The bytes that `text` spells, to out (n bytes are enough); returns their number, 0 where a character spells
 * none. */
static size_t unspell(const char *text, size_t n, uint8_t *out) {
    size_t length = 0;
    while (n > 0) {
        const int sequence = utf8_sequence(text, n), byte = unspelled_byte(utf8_decode(text, sequence));
        if (byte == 256) return 0;
        out[length++] = (uint8_t)byte;
        text += sequence;
        n -= (size_t)sequence;
    }
    return length;
}

/* ---- tokens by their ids ---- */

typedef struct HfToken {
    const char *text; /* NULL: no token has this id */
    size_t length;
    bool added; /* its text is as it is, not spelled byte by byte */
} HfToken;

/* Enters {token: id} into tokens (n): all ids in [0, n), none twice. */
static bool enter(const JsonValue *vocab, HfToken *tokens, int n, const char *path, Error *err) {
    for (const JsonValue *member = vocab->first; member; member = member->next) {
        int64_t id;
        if (!json_int64(member, &id) || id < 0 || id >= n)
            return fail(err, EXIT_INPUT,
                        "%s: id of token \"%.60s\": expected an integer below the %d tokens, found %.30s",
                        path, member->key, n, json_shown(member));
        if (tokens[id].text)
            return fail(err, EXIT_INPUT, "%s: tokens \"%.60s\" and \"%.60s\" have the same id %lld", path,
                        tokens[id].text, member->key, (long long)id);
        tokens[id] = (HfToken){member->key, member->key_length, false};
    }
    return true;
}

/* One of added_tokens: special, so that no text becomes it; it may be in the vocabulary already. */
static bool enter_added(const JsonValue *added, HfToken *tokens, int n, const char *path, Error *err) {
    const JsonValue *content = json_get(added, "content"), *number = json_get(added, "id");
    int64_t id;
    if (!json_is(content, JSON_STRING) || content->length == 0)
        return json_refuse(path, "added_tokens.content", "a text", content, err);
    if (!json_int64(number, &id) || id < 0 || id >= n)
        return json_refuse(path, "added_tokens.id", "an integer below the number of tokens", number, err);
    if (!json_is(json_get(added, "special"), JSON_TRUE))
        return fail(err, EXIT_INPUT,
                    "%s: added_tokens: \"%.60s\" is not special: text would become it, which is not served",
                    path, content->text);
    HfToken *token = &tokens[id];
    if (token->text &&
        (token->length != content->length || memcmp(token->text, content->text, token->length)))
        return fail(err, EXIT_INPUT, "%s: tokens \"%.60s\" and \"%.60s\" have the same id %lld", path,
                    token->text, content->text, (long long)id);
    *token = (HfToken){content->text, content->length, true};
    return true;
}

/* Makes the vocabulary of n tokens, each with a text. */
static bool fill(Vocabulary *vocabulary, const HfToken *tokens, int n, const char *path, Error *err) {
    size_t n_bytes = 0;
    for (int i = 0; i < n; i++) n_bytes += tokens[i].length;
    if (n_bytes > UINT32_MAX)
        return fail(err, EXIT_INPUT, "%s: %zu bytes of tokens: expected less than 4 GiB", path, n_bytes);
    if (!vocabulary_alloc(vocabulary, n, n_bytes, err)) return false;
    for (int i = 0; i < n; i++) {
        uint8_t *out = vocabulary->bytes + vocabulary->offsets[i];
        size_t length = tokens[i].added ? 0 : unspell(tokens[i].text, tokens[i].length, out);
        if (length == 0) { /* not spelled: a special token, its text as it is */
            length = tokens[i].length;
            memcpy(out, tokens[i].text, length);
        }
        if (length > TOKEN_BYTES)
            return fail(err, EXIT_INPUT,
                        "%s: token %d: expected at most %d bytes, which a checkpoint's tokenizer.bin holds, "
                        "found %zu",
                        path, i, TOKEN_BYTES, length);
        vocabulary->offsets[i + 1] = vocabulary->offsets[i] + (uint32_t)length;
        if (strcmp(tokens[i].text, eot_text) == 0) vocabulary->eot = i;
    }
    return true;
}

bool vocabulary_read_tokens(Vocabulary *vocabulary, const JsonValue *vocab, const JsonValue *added,
                            const char *path, Error *err) {
    const JsonValue *first = added ? added->first : NULL;
    int n = (int)vocab->n;
    for (const JsonValue *token = first; token; token = token->next) {
        const JsonValue *content = json_get(token, "content");
        if (json_is(content, JSON_STRING) && !json_get(vocab, content->text)) n++;
    }
    HfToken *tokens = calloc((size_t)n, sizeof *tokens);
    bool ok = tokens || fail(err, EXIT_RUN, "%s: out of memory for %d tokens", path, n);
    ok = ok && enter(vocab, tokens, n, path, err);
    for (const JsonValue *token = first; ok && token; token = token->next)
        ok = enter_added(token, tokens, n, path, err);
    for (int i = 0; ok && i < n; i++)
        ok = tokens[i].text || fail(err, EXIT_INPUT, "%s: no token has the id %d of %d", path, i, n);
    ok = ok && fill(vocabulary, tokens, n, path, err);
    free(tokens);
    return ok;
}

/* ---- vocab.json and merges.txt ---- */

static bool read_vocab(Vocabulary *vocabulary, const JsonValue *root, const char *path, Error *err) {
    if (root->type != JSON_OBJECT || root->n < 1)
        return fail(err, EXIT_INPUT,
                    "%s: expected an object {token: id} with at least one token, found %s of %lld values",
                    path, json_type_name(root), (long long)root->n);
    return vocabulary_read_tokens(vocabulary, root, NULL, path, err);
}

/* merges.txt after its header. */
static bool read_merges(Vocabulary *vocabulary, const char *directory, Error *err) {
    char path[PATH_MAX];
    size_t size;
    if (!path_join(path, directory, "merges.txt", err)) return false;
    char *file = file_read(path, JSON_MAX_BYTES, &size, err);
    if (!file) return false;
    if (strncmp(file, "#version", 8) == 0) {
        size_t header = strcspn(file, "\n");
        header += file[header] == '\n';
        memmove(file, file + header, size - header + 1);
    }
    vocabulary->merges = file;
    vocabulary->file = strdup(path);
    return vocabulary->file || fail(err, EXIT_RUN, "%s: out of memory", path);
}

/* What the configuration beside the vocabulary may say of how text becomes tokens, where no tokenizer.json says it. */
static bool check_class(const char *directory, Error *err) {
    static const char *const known[] = {"GPT2Tokenizer", "GPT2TokenizerFast"};
    char path[PATH_MAX];
    if (!path_join(path, directory, "tokenizer_config.json", err)) return false;
    if (access(path, F_OK) != 0 || directory_has(directory, "tokenizer.json")) return true;
    Json *json = json_read(path, err);
    if (!json) return false;
    const JsonValue *name = json_get(json_root(json), "tokenizer_class");
    bool ok = json_is_absent(name);
    for (int i = 0; i < 2; i++) ok = ok || json_equals(name, known[i]);
    if (!ok)
        fail(err, EXIT_INPUT,
             "%s: tokenizer_class: expected GPT2Tokenizer, found %.80s, whose tokenizer.json is missing; "
             "hint: put "
             "tokenizer.json beside it, or --tokenizer PATH",
             path, json_shown(name));
    json_free(json);
    return ok;
}

/* eos_token of one file: a text, or an object that holds one. */
static bool read_eos_of(const char *directory, const char *name, char text[TOKEN_BYTES + 1], Error *err) {
    char path[PATH_MAX];
    if (!path_join(path, directory, name, err)) return false;
    if (access(path, F_OK) != 0) return true;
    Json *json = json_read(path, err);
    if (!json) return false;
    const JsonValue *eos = json_get(json_root(json), "eos_token");
    if (json_is(eos, JSON_OBJECT)) eos = json_get(eos, "content");
    if (json_is(eos, JSON_STRING)) snprintf(text, TOKEN_BYTES + 1, "%s", eos->text);
    json_free(json);
    return true;
}

bool vocabulary_read_eos(const char *directory, char text[TOKEN_BYTES + 1], Error *err) {
    *text = 0;
    return read_eos_of(directory, "tokenizer_config.json", text, err) &&
           (*text || read_eos_of(directory, "special_tokens_map.json", text, err));
}

/* vocab.json and merges.txt are there together. */
static bool check_both(const char *directory, Error *err) {
    const char *missing = !directory_has(directory, "merges.txt")   ? "merges.txt"
                          : !directory_has(directory, "vocab.json") ? "vocab.json"
                                                                    : NULL;
    return !missing || fail(err, EXIT_INPUT,
                            "%s: expected vocab.json and merges.txt, found no %s; hint: put it there, or "
                            "tokenizer.json alone, or --tokenizer PATH",
                            directory, missing);
}

bool vocabulary_read_hf(Vocabulary *vocabulary, const char *path, Error *err) {
    char directory[PATH_MAX];
    path_parent(directory, path);
    if (!check_both(directory, err) || !check_class(directory, err)) return false;
    Json *json = json_read(path, err);
    if (!json) return false;
    bool ok = read_vocab(vocabulary, json_root(json), path, err) && read_merges(vocabulary, directory, err);
    json_free(json);
    return ok;
}

/* ---- merges.txt ---- */

void vocabulary_append_merges(Buffer *buffer, const Bpe *bpe) {
    for (int i = 0; i < 2 * bpe->vocabulary->n_tokens; i++) {
        const int part = bpe->parts[i / 2][i % 2];
        char spelled[TOKEN_SPELLED];
        if (part < 0) continue;
        vocabulary_spell(bpe->vocabulary, part, spelled);
        buffer_append(buffer, spelled, strlen(spelled));
        buffer_append(buffer, i % 2 ? "\n" : " ", 1);
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

bool vocabulary_check_merges(const Vocabulary *vocabulary, const Bpe *bpe, Error *err) {
    if (!vocabulary->merges) return true;
    Buffer merges = {0};
    vocabulary_append_merges(&merges, bpe);
    bool ok = !merges.failed || fail(err, EXIT_RUN, "%s: out of memory", vocabulary->file);
    int64_t line = ok ? first_difference(vocabulary->merges, merges.data ? merges.data : "") : 0;
    if (line > 0)
        ok = fail(err, EXIT_INPUT,
                  "%s: merge %lld: the merges are not those of the vocabulary in the order of its ids, as "
                  "GPT-2's are",
                  vocabulary->file, (long long)line);
    buffer_free(&merges);
    return ok;
}

/* ---- writing ---- */

/* A special token's text stands as it is, for transformers looks for that in a text; but where a reader of the spelling would take
 * it for other bytes, and for other tokens, byte by byte. */
static void name_of(const Bpe *bpe, int token, char text[TOKEN_SPELLED]) {
    size_t n;
    uint8_t read[TOKEN_BYTES];
    const char *bytes = (const char *)vocabulary_bytes(bpe->vocabulary, token, &n);
    vocabulary_spell(bpe->vocabulary, token, text);
    if (!bpe_is_special(bpe, token) || utf8_valid(bytes, n) != n || memchr(bytes, 0, n)) return;
    const size_t n_read = unspell(bytes, n, read);
    if (n_read > 0 && (n_read != n || memcmp(read, bytes, n) != 0)) return;
    memcpy(text, bytes, n);
    text[n] = '\0';
}

static void write_vocab(JsonWriter *w, const Bpe *bpe) {
    char text[TOKEN_SPELLED];
    json_begin_object(w, NULL);
    for (int i = 0; i < bpe->vocabulary->n_tokens; i++) {
        name_of(bpe, i, text);
        json_write_int(w, text, i);
    }
    json_end_object(w);
}

/* Those beside end-of-text: only where they are named does transformers find them in a text. */
static void write_more_special_tokens(JsonWriter *w, const Bpe *bpe) {
    const Vocabulary *vocabulary = bpe->vocabulary;
    char text[TOKEN_SPELLED];
    bool any = false;
    for (int i = 0; i < vocabulary->n_tokens; i++) {
        if (i == vocabulary->eot || !bpe_is_special(bpe, i)) continue;
        if (!any) json_begin_array(w, "additional_special_tokens");
        any = true;
        name_of(bpe, i, text);
        json_write_string(w, NULL, text);
    }
    if (any) json_end_array(w);
}

static void write_special_tokens(JsonWriter *w, const Bpe *bpe) {
    const Vocabulary *vocabulary = bpe->vocabulary;
    char spelled[TOKEN_SPELLED];
    const char *eot = vocabulary->eot < 0 ? NULL : spelled;
    if (eot) name_of(bpe, vocabulary->eot, spelled);
    json_write_string(w, "bos_token", eot);
    json_write_string(w, "eos_token", eot);
    json_write_string(w, "unk_token", eot);
    write_more_special_tokens(w, bpe);
}

/* Writes the buffer as a file and empties it. */
static bool flush_to(Buffer *buffer, const char *directory, const char *name, Error *err) {
    bool ok = buffer->failed ? fail(err, EXIT_RUN, "%s/%s: out of memory", directory, name)
                             : file_write(directory, name, buffer->data, buffer->length, err);
    buffer_free(buffer);
    return ok;
}

bool vocabulary_write_hf(const Bpe *bpe, const char *directory, int context, Error *err) {
    const char *version = "#version: 0.2\n";
    JsonWriter w = {0};
    Buffer merges = {0};
    write_vocab(&w, bpe);
    if (!flush_to(&w.text, directory, "vocab.json", err)) return false;
    buffer_append(&merges, version, strlen(version));
    vocabulary_append_merges(&merges, bpe);
    if (!flush_to(&merges, directory, "merges.txt", err)) return false;
    w.indent = 2;
    json_begin_object(&w, NULL);
    write_special_tokens(&w, bpe);
    json_end_object(&w);
    if (!flush_to(&w.text, directory, "special_tokens_map.json", err)) return false;
    json_begin_object(&w, NULL);
    json_write_bool(&w, "add_prefix_space", false);
    json_write_bool(&w, "clean_up_tokenization_spaces", false); /* else decoding drops spaces: "a ." */
    json_write_int(&w, "model_max_length", context);
    json_write_string(&w, "tokenizer_class", "GPT2Tokenizer");
    write_special_tokens(&w, bpe);
    json_end_object(&w);
    return flush_to(&w.text, directory, "tokenizer_config.json", err);
}
