#include "format.h"
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *format_unit(char *buffer, double value, double base, const char *const units[],
                               int n_units, int digits) {
    int unit = 0;
    /* 999.95 would print as 1000.0: it goes to the next unit */
    while (unit + 1 < n_units && fabs(value) >= base - 0.05) {
        value /= base;
        unit++;
    }
    snprintf(buffer, FORMAT_NUMBER, "%.*f%s%s", unit || value != floor(value) ? digits : 0, value,
             *units[unit] ? " " : "", units[unit]);
    return buffer;
}

const char *format_count(char *buffer, double count) {
    static const char *const units[] = {"", "k", "M", "G", "T", "P"};
    return format_unit(buffer, count, 1000, units, 6, 1);
}

static const char *const byte_units[] = {"B", "KiB", "MiB", "GiB", "TiB"};

const char *format_bytes(char *buffer, double bytes) {
    return format_unit(buffer, bytes, 1024, byte_units, 5, 1);
}

const char *format_bytes_finely(char *buffer, double bytes) {
    return format_unit(buffer, bytes, 1024, byte_units, 5, 2);
}

const char *format_integer(char *buffer, int64_t n) {
    char digits[24];
    int length = snprintf(digits, sizeof digits, "%lld", (long long)n), used = 0;
    for (int i = 0; i < length; i++) {
        buffer[used++] = digits[i];
        int left = length - 1 - i;
        if (isdigit((unsigned char)digits[i]) && left && left % 3 == 0) buffer[used++] = ',';
    }
    buffer[used] = '\0';
    return buffer;
}

const char *format_duration(char *buffer, double seconds) {
    if (!(seconds >= 0 && seconds < 1e12)) return strcpy(buffer, "-");
    long long s = llround(seconds);
    if (s < 3600)
        snprintf(buffer, FORMAT_NUMBER, "%lld:%02lld", s / 60, s % 60);
    else
        snprintf(buffer, FORMAT_NUMBER, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    return buffer;
}
