#include "shard.h"
#include <unistd.h>
#include "llmc/base/files.h"

typedef struct ShardFormat {
    int32_t magic, version;
    int token_bytes;
} ShardFormat;

/* To add a format: a row here, and its width in token_stream.c if it is new. */
static const ShardFormat formats[] = {
    {20240520, 1, 2},
    {20240801, 7, 4},
};
enum { N_FORMATS = sizeof formats / sizeof *formats };

/* Files that are easily given by mistake; the last row is for all others. */
static const struct {
    int32_t magic;
    const char *what, *hint;
} other_files[] = {
    {20240326, "a llm.c model",                      "--model takes it"                 },
    {20240327, "a llm.c debug state",                "the scripts in data/ write shards"},
    {20240328, "a llm.c tokenizer",                  "--tokenizer takes it"             },
    {20240522, "a llm.c multiple-choice evaluation", "the scripts in data/ write shards"},
    {0,        "no token shard",
     "the scripts in data/ write shards; a text needs another "
     "name than *.bin"                                                                  },
};
enum { N_OTHER_FILES = sizeof other_files / sizeof *other_files };

static const ShardFormat *format_of(int32_t magic) {
    for (int i = 0; i < N_FORMATS; i++) {
        if (formats[i].magic == magic) return &formats[i];
    }
    return NULL;
}

static bool refuse_magic(const char *path, int32_t magic, Error *err) {
    int i = 0;
    while (i < N_OTHER_FILES - 1 && other_files[i].magic != magic) i++;
    return fail(err, EXIT_INPUT,
                "%s: magic: expected %d (uint16 tokens) or %d (uint32), found %d: %s; hint: %s", path,
                formats[0].magic, formats[1].magic, magic, other_files[i].what, other_files[i].hint);
}

bool shard_is_meant(const char *path) {
    if (text_ends_in(path, ".bin")) return true;
    Error unused;
    int64_t size;
    int32_t magic = 0;
    int fd = file_open(path, &size, &unused);
    if (fd < 0) return false;
    bool known = size >= (int64_t)sizeof magic && file_read_at(fd, path, &magic, sizeof magic, 0, &unused) &&
                 format_of(magic);
    close(fd);
    return known;
}

/* Header fields against each other and against the size of the file. */
static bool check_fields(const char *path, const int32_t *header, int64_t size, Shard *shard, Error *err) {
    const ShardFormat *format = format_of(header[0]);
    if (!format) return refuse_magic(path, header[0], err);
    if (header[1] != format->version)
        return fail(err, EXIT_INPUT,
                    "%s: version: expected %d with magic %d, found %d; hint: the file is damaged, or a newer "
                    "program's: the scripts in data/ make it again",
                    path, format->version, format->magic, header[1]);
    int64_t payload = size - SHARD_HEADER_BYTES, n_tokens = payload / format->token_bytes;
    if (n_tokens > INT32_MAX)
        return fail(
            err, EXIT_INPUT,
            "%s: size: %lld tokens are more than the header can count (%d); hint: split the file into shards",
            path, (long long)n_tokens, INT32_MAX);
    if (payload % format->token_bytes != 0 || n_tokens != header[2])
        return fail(err, EXIT_INPUT,
                    "%s: number of tokens: the header says %d, which takes %lld bytes, the file has %lld; "
                    "hint: the file is cut short or damaged, make it again",
                    path, header[2], (long long)header[2] * format->token_bytes + SHARD_HEADER_BYTES,
                    (long long)size);
    *shard = (Shard){n_tokens, format->token_bytes};
    return true;
}

bool shard_check(const char *path, Shard *shard, Error *err) {
    int32_t header[SHARD_HEADER_BYTES / sizeof(int32_t)];
    int64_t size;
    int fd = file_open(path, &size, err);
    if (fd < 0) return false;
    bool ok = size >= SHARD_HEADER_BYTES ||
              fail(err, EXIT_INPUT,
                   "%s: header: expected %d bytes, the file has %lld; hint: it is cut short, make it again",
                   path, SHARD_HEADER_BYTES, (long long)size);
    ok = ok && file_read_at(fd, path, header, sizeof header, 0, err) &&
         check_fields(path, header, size, shard, err);
    close(fd);
    return ok;
}
