/* CRC-32C (Castagnoli polynomial 0x1EDC6F41, reflected; RFC 3720, appendix B.4): the checksum of checkpoint
 * files.
 *
 * Finds every flip of a single bit and every burst of up to 32 bits, whatever the length. One core: 8 bytes
 * per instruction where the processor has one (SSE 4.2, ARMv8 CRC), slicing-by-8 tables elsewhere. */
#pragma once
#include <stddef.h>
#include <stdint.h>

/* The checksum of bytes that follow those summed in `crc`; start from 0. crc32c(0, "123456789", 9) =
 * 0xE3069283. */
uint32_t crc32c(uint32_t crc, const void *data, size_t n);
/* The checksum of two stretches of bytes, one behind the other, from that of each. */
uint32_t crc32c_join(uint32_t first, uint32_t second, size_t n_second);
/* crc32c from the tables alone, for tests. */
uint32_t crc32c_portable(uint32_t crc, const void *data, size_t n);
