#include "utf8.h"
#include <stdbool.h>

int utf8_length(char first) {
    const unsigned char c = (unsigned char)first;
    return c < 0x80 ? 1 : c < 0xC2 || c > 0xF4 ? 0 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
}

int utf8_sequence(const char *p, size_t n) {
    const unsigned char *c = (const unsigned char *)p;
    const int length = n ? utf8_length(*p) : 0;
    if ((size_t)length > n) return 0;
    for (int i = 1; i < length; i++)
        if ((c[i] & 0xC0) != 0x80) return 0;
    if (length < 3) return length;
    bool overlong = (c[0] == 0xE0 && c[1] < 0xA0) || (c[0] == 0xF0 && c[1] < 0x90);
    bool surrogate = c[0] == 0xED && c[1] > 0x9F;
    bool too_large = c[0] == 0xF4 && c[1] > 0x8F;
    return overlong || surrogate || too_large ? 0 : length;
}

size_t utf8_valid(const char *text, size_t n) {
    size_t at = 0;
    for (int length = 1; length && at < n; at += (size_t)length) length = utf8_sequence(text + at, n - at);
    return at;
}

uint32_t utf8_decode(const char *p, int n) {
    const unsigned char *c = (const unsigned char *)p;
    uint32_t code_point = n == 1 ? c[0] : c[0] & (0x7Fu >> n);
    for (int i = 1; i < n; i++) code_point = code_point << 6 | (c[i] & 0x3Fu);
    return code_point;
}

int utf8_encode(char out[4], uint32_t code_point) {
    int length = code_point < 0x80 ? 1 : code_point < 0x800 ? 2 : code_point < 0x10000 ? 3 : 4;
    static const unsigned char lead[5] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (int i = length - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (code_point & 0x3F));
        code_point >>= 6;
    }
    out[0] = (char)(lead[length] | code_point);
    return length;
}
