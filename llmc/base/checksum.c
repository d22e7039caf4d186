#include "checksum.h"
#include <pthread.h>
#include <string.h>
#if defined(__SSE4_2__)
#include <nmmintrin.h>
#define CRC32C_8(crc, word) ((uint32_t)_mm_crc32_u64((crc), (word)))
#define CRC32C_1(crc, byte) _mm_crc32_u8((crc), (byte))
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#define CRC32C_8(crc, word) __crc32cd((crc), (word))
#define CRC32C_1(crc, byte) __crc32cb((crc), (byte))
#endif

#define POLYNOMIAL 0x82F63B78u

/* table[k][b]: what byte b contributes with k bytes after it (slicing-by-8, Kounavis & Berry 2005). */
static uint32_t table[8][256];
static pthread_once_t table_once = PTHREAD_ONCE_INIT;

static void make_table(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
        table[0][byte] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (int byte = 0; byte < 256; byte++)
            table[k][byte] = table[k - 1][byte] >> 8 ^ table[0][table[k - 1][byte] & 0xff];
}

/* ---- of two parts, of the whole ---- */
/* A checksum is a polynomial over bits, its highest bit that of x^0. The product of two, modulo CRC-32C's. */
static uint32_t multiply(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (; a; a <<= 1) {
        if (a & 0x80000000u) product ^= b;
        b = b >> 1 ^ (b & 1 ? POLYNOMIAL : 0);
    }
    return product;
}

uint32_t crc32c_join(uint32_t first, uint32_t second, size_t n_second) {
    uint32_t power = 0x80000000u, square = 0x00800000u; /* 1 and x^8, a byte */
    for (size_t n = n_second; n > 0; n >>= 1) {
        if (n & 1) power = multiply(power, square);
        square = multiply(square, square);
    }
    return multiply(first, power) ^ second;
}

/* ---- of bytes ---- */

uint32_t crc32c_portable(uint32_t crc, const void *data, size_t n) {
    const unsigned char *p = data;
    pthread_once(&table_once, make_table);
    crc = ~crc;
    for (; n >= 8; n -= 8, p += 8) {
        uint32_t low = crc ^ (p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
        crc = table[7][low & 0xff] ^ table[6][low >> 8 & 0xff] ^ table[5][low >> 16 & 0xff] ^
              table[4][low >> 24] ^ table[3][p[4]] ^ table[2][p[5]] ^ table[1][p[6]] ^ table[0][p[7]];
    }
    for (; n > 0; n--) crc = crc >> 8 ^ table[0][(crc ^ *p++) & 0xff];
    return ~crc;
}

#ifdef CRC32C_8
uint32_t crc32c(uint32_t crc, const void *data, size_t n) {
    const unsigned char *p = data;
    crc = ~crc;
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        crc = CRC32C_8(crc, word);
    }
    for (; n > 0; n--) crc = CRC32C_1(crc, *p++);
    return ~crc;
}
#else
uint32_t crc32c(uint32_t crc, const void *data, size_t n) {
    return crc32c_portable(crc, data, n);
}
#endif
