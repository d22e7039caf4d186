/* All tokens of all files that a pattern names, as one stream: token shards, read from disk as they are asked
 * for, or text files, turned into tokens once and kept in memory. Private to the data loader.
 *
 * To add a kind of file: a reader beside shard.h, a case in token_stream_open. */
#pragma once
#include <limits.h>
#include <stdint.h>
#include "llmc/base/error.h"
#include "shard.h"
#include "llmc/tokenizer/tokenizer.h"

typedef struct TokenFile {
    char *path;
    int64_t first; /* place in the stream of its first token */
    int64_t n_tokens;
    int64_t not_utf8; /* of a text: where its first byte lies that belongs to no UTF-8 character; -1: none */
} TokenFile;

enum { OPEN_FILES = 64 }; /* descriptors kept open, however many shards there are */

typedef struct TokenStream {
    const char *pattern;
    TokenFile *files; /* in the order of their names (bytewise) */
    int n_files;
    int64_t n_tokens;
    int token_bytes; /* of one stored token: 1, 2 or 4 */
    uint8_t *memory; /* text: all tokens, token_bytes each; NULL for shards */
    size_t capacity; /* bytes of memory */
    int vocab_size;  /* what a token must be below */
    int n_slots;     /* of open */
    struct {
        int file, fd; /* file i is cached in slot i % n_slots; fd -1: nothing */
    } open[OPEN_FILES];
} TokenStream;

/* pattern: a path or a glob, which must outlive the stream. tokenizer: for text, which without one is refused, for the
 * reason no_tokenizer (NULL: not known). vocab_size 0: the tokenizer's. */
bool token_stream_open(TokenStream *stream, const char *pattern, const Tokenizer *tokenizer,
                       const char *no_tokenizer, int vocab_size, Error *err);
/* Whether the pattern names files, all of one kind; of texts whether they can be read, of shards whether their
 * headers and sizes agree. */
bool token_stream_check(const char *pattern, Error *err);
/* The first file of the pattern, in the order of the names; false where there is none. */
bool token_stream_first_file(const char *pattern, char path[PATH_MAX]);
void token_stream_close(TokenStream *stream);
static inline bool token_stream_is_text(const TokenStream *stream) {
    return stream->memory != NULL;
}
/* One of n streams that are open together: it keeps an n-th of the descriptors. */
void token_stream_share_files(TokenStream *stream, int n);
/* Tokens [first, first + n) of the stream into out (n). One thread at a time. False: an I/O error, or a token
 * that is not below vocab_size, with its file and place. */
bool token_stream_read(TokenStream *stream, int64_t first, int64_t n, int32_t *out, Error *err);
