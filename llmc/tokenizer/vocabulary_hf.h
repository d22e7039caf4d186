/* What the readers of Hugging Face's files share: the tokens of a vocabulary by id. Private to vocabulary_hf.c
 * and vocabulary_json.c. */
#pragma once
#include "llmc/base/json.h"
#include "vocabulary.h"

typedef struct HfToken {
    const char *text; /* NULL: no token has this id */
    size_t length;
    bool added; /* its text is as it is, not spelled byte by byte */
} HfToken;

/* Enters {token: id} into tokens (n): all ids in [0, n), none twice. */
bool hf_enter(const JsonValue *vocab, HfToken *tokens, int n, const char *path, Error *err);
/* Makes the vocabulary of n tokens, each with a text. */
bool hf_fill(Vocabulary *vocabulary, const HfToken *tokens, int n, const char *path, Error *err);
