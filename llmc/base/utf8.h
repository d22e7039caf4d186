/* UTF-8 (RFC 3629). */
#pragma once
#include <stddef.h>
#include <stdint.h>

/* Bytes of a sequence that begins with this byte (1..4), 0 if none does. */
int utf8_length(char first);
/* Bytes of the sequence at p (1..4), 0 if it is none; n bytes are there. Refuses overlong forms, surrogates and values
 * past U+10FFFF (section 4). */
int utf8_sequence(const char *p, size_t n);
/* Bytes at the beginning of text that are whole sequences: n where all is UTF-8. */
size_t utf8_valid(const char *text, size_t n);
/* The code point of a valid sequence of n bytes. */
uint32_t utf8_decode(const char *p, int n);
/* Writes the UTF-8 form of a code point below 0x110000; returns its length. */
int utf8_encode(char out[4], uint32_t code_point);
