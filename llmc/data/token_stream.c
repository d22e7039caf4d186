#include "token_stream.h"
#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "llmc/base/file_kind.h"
#include "llmc/base/files.h"
#include "llmc/base/utf8.h"
#include "llmc/tokenizer/bpe.h"

enum { TEXT_CHUNK_BYTES = 4 << 20 };

/* ---- the files of a pattern ---- */

/* Paths, as directory_list has names. */
typedef struct Found {
    char **paths;
    int n;
} Found;

static bool copy_paths(TokenStream *stream, char **paths, int n, Error *err) {
    stream->files = calloc((size_t)n, sizeof *stream->files);
    bool ok = stream->files != NULL;
    for (int i = 0; ok && i < n; i++) {
        stream->files[i].not_utf8 = -1;
        ok = (stream->files[i].path = strdup(paths[i])) != NULL;
        stream->n_files = i + 1;
    }
    return ok || fail(err, EXIT_RUN, "out of memory for the names of %d files", n);
}

static bool add_path(Found *found, const char *path, Error *err) {
    return names_add(&found->paths, &found->n, path) ||
           fail(err, EXIT_RUN, "out of memory for the names of %d files", found->n + 1);
}

/* True where there is nothing by errno, rather than something that cannot be looked at. */
static bool is_absence(void) {
    return errno == ENOENT || errno == ENOTDIR || errno == ENAMETOOLONG || errno == ELOOP;
}

/* Names the folder on the way to the path that lets nobody in. */
static bool fail_hidden(const char *path, Error *err) {
    const int reason = errno;
    char folder[PATH_MAX], above[PATH_MAX];
    struct stat info;
    path_parent(folder, path);
    while (lstat(folder, &info) && errno == EACCES && strcmp(folder, "/") != 0) {
        path_parent(above, folder);
        strcpy(folder, above);
    }
    errno = reason;
    return fail_errno(err, "cannot look into", folder);
}

static bool match(Found *found, const char *path, const char *pattern, Error *err);

/* Adds the files whose paths begin with `path`, "" or a folder and its slash, and a name that matches the first n bytes
 * of the pattern. */
static bool match_names(Found *found, const char *path, const char *pattern, size_t n, Error *err) {
    const size_t slashes = strspn(pattern + n, "/");
    const char *folder = *path ? path : ".";
    char part[PATH_MAX], longer[PATH_MAX], **names;
    struct stat info;
    int n_names;
    if (stat(folder, &info)) return is_absence() || fail_hidden(path, err);
    if (!S_ISDIR(info.st_mode)) return true;
    if (!directory_list(folder, "", &names, &n_names, err)) return false;
    bool ok = true;
    snprintf(part, sizeof part, "%.*s", (int)n, pattern);
    for (int i = 0; ok && i < n_names; i++)
        if (fnmatch(part, names[i], FNM_PERIOD) == 0 &&
            snprintf(longer, PATH_MAX, "%s%s%.*s", path, names[i], (int)slashes, pattern + n) < PATH_MAX)
            ok = match(found, longer, pattern + n + slashes, err);
    names_free(names, n_names);
    return ok;
}

/* Adds the files whose paths begin with `path` and go on as the pattern says. A folder that cannot be looked into is an
 * error: glob(3) leaves its files out without a word. */
static bool match(Found *found, const char *path, const char *pattern, Error *err) {
    const size_t n = strcspn(pattern, "/"), wild = strcspn(pattern, "*?[\\");
    char longer[PATH_MAX];
    struct stat info;
    if (!*pattern)
        return lstat(path, &info) ? is_absence() || fail_hidden(path, err) : add_path(found, path, err);
    if (wild < n) return match_names(found, path, pattern, n, err);
    const size_t all = n + strspn(pattern + n, "/");
    return snprintf(longer, PATH_MAX, "%s%.*s", path, (int)all, pattern) >= PATH_MAX || /* no file has it */
           match(found, longer, pattern + all, err);
}

/* What a name that no file has is most often meant to be. */
static const char *hint_for(const char *pattern) {
    static const char *const typographic[] = {"\xe2\x80\x98", "\xe2\x80\x99", "\xe2\x80\x9c", "\xe2\x80\x9d"};
    for (size_t i = 0; i < sizeof typographic / sizeof *typographic; i++)
        if (strstr(pattern, typographic[i]))
            return "these are a word processor's quotes, a shell has ' and \"";
    if (strstr(pattern, "://")) return "curl -LO brings a file here";
    if (*pattern == '~') return "in quotes, and behind =, a shell leaves ~ as it is: $HOME";
    if (strpbrk(pattern, ":,")) return "a mixture gives each glob a weight: 'a_*.bin:0.7,b_*.bin:0.3'";
    if (strchr(pattern, ' '))
        return "several files are a pattern, '*.txt', or a mixture, 'a.txt:0.7,b.txt:0.3'";
    return "`make data` lists data sets";
}

/* Fills files[].path: the file of that very name, else what the pattern matches, sorted bytewise. */
static bool find_files(TokenStream *stream, Error *err) {
    const char *pattern = stream->pattern;
    Found found = {0};
    struct stat info;
    if (stat(pattern, &info) == 0) return copy_paths(stream, (char **)&pattern, 1, err);
    bool ok = match(&found, "", pattern, err);
    if (ok && found.n == 0)
        ok = fail(err, EXIT_INPUT, "%s: no such file, and as a pattern it matches none; hint: %s", pattern,
                  hint_for(pattern));
    names_sort(found.paths, found.n);
    ok = ok && copy_paths(stream, found.paths, found.n, err);
    names_free(found.paths, found.n);
    return ok;
}

/* ---- shards ---- */

static bool open_shards(TokenStream *stream, Error *err) {
    for (int i = 0; i < stream->n_files; i++) {
        TokenFile *file = &stream->files[i];
        Shard shard;
        if (!shard_check(file->path, &shard, err)) return false;
        if (i > 0 && shard.token_bytes != stream->token_bytes)
            return fail(err, EXIT_INPUT, "%s: token width: expected uint%d as in %s, found uint%d",
                        file->path, 8 * stream->token_bytes, stream->files[0].path, 8 * shard.token_bytes);
        stream->token_bytes = shard.token_bytes;
        file->first = stream->n_tokens;
        file->n_tokens = shard.n_tokens;
        stream->n_tokens += shard.n_tokens;
    }
    return stream->n_tokens > 0 ||
           fail(err, EXIT_INPUT, "%s: no tokens by its header%s; hint: the shard is empty, make it again",
                stream->files[0].path, stream->n_files > 1 ? ", nor in those behind it" : "");
}

/* A descriptor of a shard, of which the size is still what it was; -1 on error. */
static int open_again(const TokenFile *file, int token_bytes, Error *err) {
    const int64_t expected = SHARD_HEADER_BYTES + file->n_tokens * token_bytes;
    int64_t size;
    const int fd = file_open(file->path, &size, err);
    if (fd < 0 || size == expected) return fd;
    close(fd);
    fail(err, EXIT_INPUT,
         "%s: expected %lld bytes as at the start of the run, found %lld; hint: shards stay as they are "
         "while a run reads them",
         file->path, (long long)expected, (long long)size);
    return -1;
}

/* A descriptor of file i, opened if need be; -1 on error. */
static int descriptor_of(TokenStream *stream, int i, Error *err) {
    int slot = i % stream->n_slots;
    if (stream->open[slot].fd >= 0 && stream->open[slot].file == i) return stream->open[slot].fd;
    if (stream->open[slot].fd >= 0) close(stream->open[slot].fd);
    stream->open[slot].file = i;
    return stream->open[slot].fd = open_again(&stream->files[i], stream->token_bytes, err);
}

/* ---- text ---- */

/* Narrows n tokens to `width` bytes each. */
static void narrow(uint8_t *out, int width, const int32_t *tokens, size_t n) {
    for (size_t i = 0; width == 1 && i < n; i++) out[i] = (uint8_t)tokens[i];
    for (size_t i = 0; width == 2 && i < n; i++) memcpy(out + 2 * i, &(uint16_t){(uint16_t)tokens[i]}, 2);
    if (width == 4) memcpy(out, tokens, n * sizeof *tokens);
}

static bool append_tokens(TokenStream *stream, const int32_t *tokens, size_t n, Error *err) {
    size_t width = (size_t)stream->token_bytes, used = (size_t)stream->n_tokens * width;
    if (used + n * width > stream->capacity) {
        size_t capacity = used + n * width + used / 4;
        uint8_t *memory = realloc(stream->memory, capacity);
        if (!memory)
            return fail(err, EXIT_RUN, "out of memory for the %zu bytes of the text's tokens", capacity);
        stream->memory = memory;
        stream->capacity = capacity;
    }
    narrow(stream->memory + used, stream->token_bytes, tokens, n);
    stream->n_tokens += (int64_t)n;
    return true;
}

/* Notes the first byte of the file that belongs to no UTF-8 character, for whoever wants to tell the user. */
static void look_at_utf8(TokenFile *file, const char *text, size_t n, int64_t at) {
    const size_t valid = file->not_utf8 < 0 ? utf8_valid(text, n) : n;
    if (valid < n) file->not_utf8 = at + (int64_t)valid;
}

/* Encodes bytes [at, at + n) of an open file up to where they can be cut; *used of them, 0 where they cannot. */
static bool encode_chunk(TokenStream *stream, TokenFile *file, int fd, int64_t at, int64_t n, bool is_last,
                         const Tokenizer *tokenizer, int64_t *used, Error *err) {
    size_t n_tokens = 0;
    int32_t *tokens = NULL;
    char *text = malloc((size_t)n);
    bool ok = text || fail(err, EXIT_RUN, "%s: out of memory for %lld bytes of it", file->path, (long long)n);
    ok = ok && file_read_at(fd, file->path, text, (size_t)n, at, err) &&
         file_kind_check(file->path, text, (size_t)n, at, err);
    if (ok) {
        *used = is_last ? n : (int64_t)bpe_cut(text, (size_t)n);
        look_at_utf8(file, text, (size_t)*used, at);
        ok = tokenizer_encode(tokenizer, text, (size_t)*used, &tokens, &n_tokens, err) &&
             append_tokens(stream, tokens, n_tokens, err);
    }
    free(tokens);
    free(text);
    return ok;
}

/* Chunk by chunk, so that memory beside the tokens themselves stays small. */
static bool append_text(TokenStream *stream, TokenFile *file, const Tokenizer *tokenizer, Error *err) {
    int64_t size, used = 0, chunk = TEXT_CHUNK_BYTES;
    int fd = file_open(file->path, &size, err);
    if (fd < 0) return false;
    bool ok = true;
    file->first = stream->n_tokens;
    for (int64_t at = 0; ok && at < size; at += used) {
        bool is_last = size - at <= chunk;
        ok = encode_chunk(stream, file, fd, at, is_last ? size - at : chunk, is_last, tokenizer, &used, err);
        chunk = used ? TEXT_CHUNK_BYTES : 2 * chunk;
    }
    file->n_tokens = stream->n_tokens - file->first;
    close(fd);
    return ok;
}

static bool open_texts(TokenStream *stream, const Tokenizer *tokenizer, Error *err) {
    int n = tokenizer_vocab_size(tokenizer);
    stream->token_bytes = n <= 1 << 8 ? 1 : n <= 1 << 16 ? 2 : 4;
    for (int i = 0; i < stream->n_files; i++) {
        if (!append_text(stream, &stream->files[i], tokenizer, err)) return false;
    }
    return true;
}

/* ---- open, close ---- */

static bool refuse_text(const TokenStream *stream, const char *reason, Error *err) {
    const char *path = stream->files[0].path;
    int64_t size;
    const int fd = file_open(path, &size, err); /* a folder is told as such */
    if (fd < 0) return false;
    close(fd);
    return fail(err, EXIT_INPUT, "%s is text, and there is no tokenizer for it%s%s; hint: --tokenizer %s",
                path, reason ? ": " : "", reason ? reason : "", stream->vocab_size == 256 ? "bytes" : "PATH");
}

static bool find_kind(const TokenStream *stream, bool *shards, Error *err) {
    *shards = shard_is_meant(stream->files[0].path);
    for (int i = 1; i < stream->n_files; i++) {
        if (shard_is_meant(stream->files[i].path) != *shards)
            return fail(err, EXIT_INPUT,
                        "%s is %s, but %s is not; hint: a narrower pattern, such as '*_train_*.bin'",
                        stream->files[0].path, *shards ? "a token shard" : "text", stream->files[i].path);
    }
    return true;
}

static void begin(TokenStream *stream, const char *pattern, int vocab_size) {
    *stream = (TokenStream){.pattern = pattern, .vocab_size = vocab_size, .n_slots = OPEN_FILES};
    for (int i = 0; i < OPEN_FILES; i++) stream->open[i].fd = -1;
}

/* Every text is a file that may be read, and one of them has bytes. */
static bool check_texts(const TokenStream *stream, Error *err) {
    int64_t total = 0;
    for (int i = 0; i < stream->n_files; i++) {
        const char *path = stream->files[i].path;
        struct stat info;
        int64_t size;
        if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
            return fail(err, EXIT_INPUT,
                        "%s: expected a file, found a directory; hint: '%s/*.txt' names its texts", path,
                        path);
        const int fd = file_open(path, &size, err);
        if (fd < 0) return false;
        close(fd);
        total += size;
    }
    return total > 0 ||
           fail(err, EXIT_INPUT, "%s: expected a text, found an empty file", stream->files[0].path);
}

bool token_stream_check(const char *pattern, Error *err) {
    TokenStream stream;
    bool shards;
    begin(&stream, pattern, 0);
    const bool ok = find_files(&stream, err) && find_kind(&stream, &shards, err) &&
                    (shards ? open_shards(&stream, err) : check_texts(&stream, err));
    token_stream_close(&stream);
    return ok;
}

bool token_stream_first_file(const char *pattern, char path[PATH_MAX]) {
    TokenStream stream;
    Error ignored;
    begin(&stream, pattern, 0);
    const bool ok =
        find_files(&stream, &ignored) && snprintf(path, PATH_MAX, "%s", stream.files[0].path) < PATH_MAX;
    token_stream_close(&stream);
    return ok;
}

bool token_stream_open(TokenStream *stream, const char *pattern, const Tokenizer *tokenizer,
                       const char *no_tokenizer, int vocab_size, Error *err) {
    bool shards;
    begin(stream, pattern, vocab_size);
    if (vocab_size == 0) stream->vocab_size = tokenizer ? tokenizer_vocab_size(tokenizer) : INT_MAX;
    const bool ok = find_files(stream, err) && find_kind(stream, &shards, err) &&
                    (shards      ? open_shards(stream, err)
                     : tokenizer ? open_texts(stream, tokenizer, err)
                                 : refuse_text(stream, no_tokenizer, err));
    if (!ok) token_stream_close(stream);
    return ok;
}

void token_stream_close(TokenStream *stream) {
    for (int i = 0; i < OPEN_FILES; i++) {
        if (stream->open[i].fd >= 0) close(stream->open[i].fd);
        stream->open[i].fd = -1;
    }
    for (int i = 0; i < stream->n_files; i++) free(stream->files[i].path);
    free(stream->files);
    free(stream->memory);
    stream->files = NULL;
    stream->memory = NULL;
    stream->n_files = 0;
}

void token_stream_share_files(TokenStream *stream, int n) {
    stream->n_slots = n < OPEN_FILES ? OPEN_FILES / n : 1;
}

/* ---- reading ---- */

/* The file that holds token `at` of the stream, 0 <= at < n_tokens. Empty files hold none. */
static int file_at(const TokenStream *stream, int64_t at) {
    int low = 0, high = stream->n_files - 1;
    while (low < high) { /* the last file whose first token is not behind `at` */
        int middle = low + (high - low + 1) / 2;
        if (stream->files[middle].first <= at) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

/* Widens in place: the n stored tokens of `width` bytes lie at the end of the n int32 of out, so that none is
 * overwritten before it is read. */
static void widen(int32_t *out, int64_t n, int width) {
    const uint8_t *stored = (const uint8_t *)(out + n) - n * width;
    uint16_t token;
    for (int64_t i = 0; width == 1 && i < n; i++) out[i] = stored[i];
    for (int64_t i = 0; width == 2 && i < n; i++) {
        memcpy(&token, stored + 2 * i, sizeof token);
        out[i] = token;
    }
}

/* Tokens [begin, begin + n) of one file. */
static bool read_from_file(TokenStream *stream, int i, int64_t begin, int64_t n, int32_t *out, Error *err) {
    const TokenFile *file = &stream->files[i];
    size_t bytes = (size_t)(n * stream->token_bytes);
    uint8_t *stored = (uint8_t *)(out + n) - bytes;
    if (stream->memory) {
        memcpy(stored, stream->memory + (file->first + begin) * stream->token_bytes, bytes);
    } else {
        int fd = descriptor_of(stream, i, err);
        if (fd < 0) return false;
        if (!file_read_at(fd, file->path, stored, bytes, SHARD_HEADER_BYTES + begin * stream->token_bytes,
                          err))
            return false;
    }
    widen(out, n, stream->token_bytes);
    for (int64_t k = 0; k < n; k++) {
        if ((uint32_t)out[k] >= (uint32_t)stream->vocab_size)
            return fail(err, EXIT_INPUT,
                        "%s: token %lld: expected an id below the vocabulary's %d, found %u; "
                        "hint: the shard is another tokenizer's, or damaged",
                        file->path, (long long)(begin + k), stream->vocab_size, (uint32_t)out[k]);
    }
    return true;
}

bool token_stream_read(TokenStream *stream, int64_t first, int64_t n, int32_t *out, Error *err) {
    for (int i = file_at(stream, first); n > 0; i++) {
        int64_t begin = first - stream->files[i].first, left = stream->files[i].n_tokens - begin;
        int64_t count = n < left ? n : left;
        if (count > 0 && !read_from_file(stream, i, begin, count, out, err)) return false;
        first += count;
        out += count;
        n -= count;
    }
    return true;
}
