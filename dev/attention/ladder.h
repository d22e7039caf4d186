/* The systems of the ladder that are written in this folder, one file each. Those on the GPU take both storage types:
 * Call.ops->dtype. Operands and layouts: attention.h. */
#pragma once
#include "attention.h"

#ifdef __cplusplus
extern "C" {
#endif

/* textbook.c (F0), on the CPU, fp32 */
void textbook(const Call *c);
void autograd_graph(const Call *c);

/* naive_fused.cu (F2) */
void naive_fused(const Call *c);
size_t naive_fused_scratch(const Sizes *s, int elem);
double naive_fused_bytes(const Sizes *s, int elem);

/* flash1.cu (F3, B2) */
void flash1_forward(const Call *c);
void flash1_backward(const Call *c);
void flash1_prepare(const Call *c); /* m and l for backward */
size_t flash1_scratch(const Sizes *s, int elem);
double flash1_forward_bytes(const Sizes *s, int elem);
double flash1_backward_bytes(const Sizes *s, int elem);

/* flash2.cu (F4, F9, F10, F11) and flash2_backward.cu (B3) */
void flash2_forward(const Call *c);
double flash2_forward_bytes(const Sizes *s, int elem);
void flash2_by_length(const Call *c); /* F9 */
double flash2_by_length_bytes(const Sizes *s, int elem);
void flash2_64x4(const Call *c); /* rows x warps, 32 keys a tile */
void flash2_128x4(const Call *c);
void flash2_128x8(const Call *c);
void flash2_256x8(const Call *c);
void flash2_backward(const Call *c);
void flash2_backward_p_only(const Call *c); /* wrong */
size_t flash2_backward_scratch(const Sizes *s, int elem);
double flash2_backward_bytes(const Sizes *s, int elem);

/* lite_online.cu (F5, F6) and scalar_online.cu (F7) */
void lite(const Call *c);
void online(const Call *c);
void scalar_online(const Call *c);
double scalar_online_bytes(const Sizes *s, int elem);

/* flash_decoding.cu (F13) */
void flash_decoding(const Call *c);
size_t flash_decoding_scratch(const Sizes *s, int elem);

#ifdef __cplusplus
}
#endif
