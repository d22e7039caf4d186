/* The ops of the CPU backend; ops.h says what each computes. All pointers are fp32. */
#pragma once
#include "llmc/model/ops.h"

/* embedding.c */
void cpu_embedding_forward(floatX *out, const int32_t *tokens, const floatX *wte, const floatX *wpe, int B,
                           int T, int C);
void cpu_embedding_backward(float *dwte, float *dwpe, const floatX *dout, const int32_t *tokens,
                            void *scratch, int B, int T, int C, int V);

/* layernorm.c */
void cpu_layernorm_forward(floatX *out, float *mean, float *rstd, const floatX *x, const floatX *weight,
                           const floatX *bias, int64_t N, int C);
void cpu_residual_layernorm_forward(floatX *residual, floatX *out, float *mean, float *rstd, const floatX *a,
                                    const floatX *b, const floatX *weight, const floatX *bias, int64_t N,
                                    int C);
void cpu_layernorm_backward(floatX *dx, float *dweight, float *dbias, float *dx_sums, const floatX *dresidual,
                            const floatX *dout, const floatX *x, const floatX *weight, const float *mean,
                            const float *rstd, void *scratch, int64_t N, int C);
size_t cpu_layernorm_scratch_bytes(const OpShape *shape);

/* linear.c */
void cpu_linear_forward(floatX *out, floatX *pre_gelu, const floatX *x, const floatX *weight,
                        const floatX *bias, int64_t N, int OC, int IC);
void cpu_linear_backward_input(floatX *dx, float *dx_sums, floatX *gelu, const floatX *dout,
                               const floatX *weight, const floatX *pre_gelu, void *scratch, int64_t N, int OC,
                               int IC);
bool cpu_linear_backward_input_row_dots(floatX *dx, float *row_dots, const floatX *dout, const floatX *weight,
                                        const floatX *other, void *scratch, int64_t N, int OC, int IC,
                                        int group);
void cpu_linear_backward_weight(float *dweight, float *dbias, const floatX *dout, const floatX *x,
                                void *scratch, int64_t N, int OC, int IC);
void cpu_linear_backward_weight_first(float *dweight, float *dbias, const floatX *dout, const floatX *x,
                                      void *scratch, int64_t N, int OC, int IC);

void cpu_qkv_bias_backward(float *dbias, const floatX *dqkv, const float *dproj_bias,
                           const floatX *proj_weight, void *scratch, int64_t N, int C);

/* out (columns) += sum over the rows of x (N,columns), which lie `stride` elements apart */
void cpu_column_sums(float *out, const float *x, int64_t N, int columns, int stride);

/* dropout.c */
void cpu_dropout(floatX *out, const floatX *x, const Dropout *dropout, int64_t rows, int columns);

/* elementwise.c */
void cpu_residual_forward(floatX *out, const floatX *a, const floatX *b, int64_t n);
void cpu_gelu_forward(floatX *out, const floatX *x, int64_t n);
void cpu_zero(void *dst, size_t bytes);
void cpu_copy(void *dst, const void *src, size_t bytes);

/* attention.c, attention_standard.c, attention_decode.c */
void cpu_attention_forward(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, int HD);
void cpu_attention_backward(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                            const float *lse, void *scratch, int B, int T, int NH, int HD);
void cpu_attention_standard_forward(floatX *out, floatX *probs, const floatX *qkv, int B, int T, int NH,
                                    int HD);
void cpu_attention_standard_backward(floatX *dqkv, floatX *dprobs, const floatX *dout, const floatX *probs,
                                     const floatX *qkv, int B, int T, int NH, int HD);
void cpu_masked_attention_forward(floatX *out, float *lse, const floatX *qkv, const AttentionMask *mask,
                                  int B, int T, int NH, int HD);
void cpu_masked_attention_backward(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                                   const float *lse, const float *d, const AttentionMask *mask, void *scratch,
                                   int B, int T, int NH, int HD);
void cpu_masked_attention_standard_forward(floatX *out, floatX *probs, floatX *dropped, const floatX *qkv,
                                           const AttentionMask *mask, int B, int T, int NH, int HD);
void cpu_masked_attention_standard_backward(floatX *dqkv, floatX *dprobs, const floatX *dout,
                                            const floatX *probs, const floatX *qkv, const AttentionMask *mask,
                                            int B, int T, int NH, int HD);
void cpu_attention_decode(floatX *out, const floatX *qkv, float *scratch, int t, int NH, int HD);

/* loss.c */
void cpu_cross_entropy_backward_inplace(float *losses, floatX *logits, const int32_t *targets, float dloss,
                                        int64_t N, int V, int Vp);
void cpu_cross_entropy_forward(float *losses, const floatX *logits, const int32_t *targets, int64_t N, int V,
                               int Vp);
void cpu_loss_sum(StepStats *stats, const float *losses, float scale, void *scratch, int64_t N);

/* adamw.c */
void cpu_grad_norm(StepStats *stats, const float *grads, void *scratch, int64_t n);
void cpu_adamw(const AdamWArgs *args);
void cpu_weights_from_master(floatX *weights, const float *master, int64_t n);
size_t cpu_grad_norm_scratch_bytes(void);

/* queue.c */
void cpu_fetch_begin(int slot, const void *src, size_t bytes);
void cpu_fetch_end(int slot, void *dst, size_t bytes);
void cpu_mark(int i);
double cpu_seconds_between(int first, int second);
bool cpu_record_begin(void);
Recording *cpu_record_end(void);
void cpu_replay(Recording *recording);
void cpu_recording_release(Recording *recording);

/* device.c */
const char *cpu_device_name(void);
double cpu_peak_flops(const char **how);
void *cpu_alloc(size_t bytes);
void cpu_release(void *p);
void cpu_memory_info(size_t *free_bytes, size_t *total_bytes);
