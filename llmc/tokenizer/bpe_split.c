/* GPT-2's split pattern as a scanner over UTF-8: what a regex engine would do, with two classes of
 * look-ahead. */
#include "bpe.h"
#include <string.h>
#include "llmc/base/utf8.h"
#include "unicode_classes.h"

typedef enum { CLASS_OTHER, CLASS_LETTER, CLASS_NUMBER, CLASS_SPACE } UnicodeClass;

static bool is_in(const uint32_t (*ranges)[2], size_t n, uint32_t code_point) {
    size_t low = 0, high = n;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (code_point > ranges[middle][1])
            low = middle + 1;
        else
            high = middle;
    }
    return low < n && code_point >= ranges[low][0];
}

#define IS_IN(ranges, code_point) is_in(ranges, sizeof ranges / sizeof *ranges, code_point)

static UnicodeClass class_of(uint32_t code_point) {
    return IS_IN(unicode_letters, code_point)   ? CLASS_LETTER
           : IS_IN(unicode_numbers, code_point) ? CLASS_NUMBER
           : IS_IN(unicode_spaces, code_point)  ? CLASS_SPACE
                                                : CLASS_OTHER;
}

static UnicodeClass class_of_ascii(uint8_t c) {
    if ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') return CLASS_LETTER;
    if (c >= '0' && c <= '9') return CLASS_NUMBER;
    return c == ' ' || (c >= '\t' && c <= '\r') ? CLASS_SPACE : CLASS_OTHER;
}

/* Class of the symbol at text (length > 0), and its bytes: 1 for a byte of invalid UTF-8. */
static UnicodeClass next_symbol(const uint8_t *text, size_t length, size_t *n) {
    *n = 1;
    if (text[0] < 0x80) return class_of_ascii(text[0]);
    int sequence = utf8_sequence((const char *)text, length);
    if (sequence == 0) return CLASS_OTHER;
    *n = (size_t)sequence;
    return class_of(utf8_decode((const char *)text, sequence));
}

/* Bytes of the run of symbols of one class from `begin` on; *last is the start of its last symbol. */
static size_t run_of(const uint8_t *text, size_t length, size_t begin, UnicodeClass kind, size_t *last) {
    size_t end = begin, n;
    while (end < length && next_symbol(text + end, length - end, &n) == kind) {
        *last = end;
        end += n;
    }
    return end;
}

/* 's 't 're 've 'm 'll 'd at text, or 0. */
static size_t contraction(const uint8_t *text, size_t length) {
    static const char *const suffixes[] = {"s", "t", "re", "ve", "m", "ll", "d"};
    if (text[0] != '\'') return 0;
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        size_t n = strlen(suffixes[i]);
        if (n < length && memcmp(text + 1, suffixes[i], n) == 0) return n + 1;
    }
    return 0;
}

size_t bpe_split(const char *text, size_t length) {
    const uint8_t *s = (const uint8_t *)text;
    size_t n = contraction(s, length), last = 0;
    if (n > 0) return n;
    size_t begin = s[0] == ' ' && length > 1; /* " ?": one optional space before a run */
    UnicodeClass kind = next_symbol(s + begin, length - begin, &n);
    if (kind != CLASS_SPACE) return run_of(s, length, begin, kind, &last);
    size_t end = run_of(s, length, 0, CLASS_SPACE, &last);
    /* \s+(?!\S): before a visible symbol the run leaves its last space to the next piece; \s+ takes a run of
     * one. */
    return end < length && last > 0 ? last : end;
}

/* Class of the last symbol of text (length > 0). */
static UnicodeClass last_class(const uint8_t *text, size_t length) {
    for (size_t n = 1, symbol; n <= 4 && n <= length; n++)
        if (utf8_sequence((const char *)text + length - n, n) == (int)n)
            return next_symbol(text + length - n, n, &symbol);
    return CLASS_OTHER;
}

size_t bpe_cut(const char *text, size_t length) {
    for (size_t i = length; --i > 0;)
        if ((text[i] == ' ' || text[i] == '\n') && last_class((const uint8_t *)text, i) != CLASS_SPACE)
            return i;
    return 0;
}
