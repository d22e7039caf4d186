/* For tests alone (make DELAYS=1): pauses of pseudo-random length before arrivals at barriers and after waits, another
 * one for every warp and time, so that results which only hold because a warp happens to be early come out wrong.
 * Without the switch it is nothing, and the machine code is what it would be without this file. */
#pragma once
#include <stdint.h>

#ifdef DELAYS
/* One pass in four pauses, up to 2 us: as long as some steps of the Hopper kernels. The lanes of a warp that come
 * together read the same clock, so they stay together. */
__device__ __forceinline__ void delay() {
    const uint32_t block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    uint32_t x = (uint32_t)clock64() * 0x9E3779B9u + (block * 64 + threadIdx.x / 32) * 0x85EBCA6Bu;
    x ^= x >> 15;
    x *= 0x2C1B3C6Du;
    x ^= x >> 13;
    if (x % 4 == 0) __nanosleep(x >> 8 & 2047);
}
#else
__device__ __forceinline__ void delay() {}
#endif
