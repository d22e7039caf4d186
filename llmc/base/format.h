/* Numbers as people read them. Each function writes into buffer (FORMAT_NUMBER bytes) and returns it. */
#pragma once
#include <stdint.h>

enum { FORMAT_NUMBER = 32 };
const char *format_count(char *buffer, double count);        /* 812.0 k, 124.5 M, 1.6 G */
const char *format_bytes(char *buffer, double bytes);        /* 512 B, 14.2 MiB, 1.2 GiB */
const char *format_bytes_finely(char *buffer, double bytes); /* 512 B, 14.21 MiB, 1.23 GiB */
const char *format_integer(char *buffer, int64_t n);         /* 300,000,000 */
const char *format_duration(char *buffer, double seconds);   /* 0:25, 12:07, 3:04:05 */
