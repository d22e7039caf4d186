/* The model's linear layers: an op's call from a weight's row in the table of tensors. */
#include "gpt2_pass.h"

static int out_channels(const GPT2 *model, TensorId weight) {
    return (int)model->tensors[weight].rows;
}
static int in_channels(const GPT2 *model, TensorId weight) {
    return (int)model->tensors[weight].cols;
}

void linear_forward(GPT2 *model, TensorId weight, int layer, floatX *out, floatX *pre_gelu, const floatX *x,
                    int64_t N) {
    const floatX *bias = weight == WTE ? NULL : gpt2_weight(model, weight + 1, layer);
    model->ops->linear_forward(out, pre_gelu, x, gpt2_weight(model, weight, layer), bias, N,
                               out_channels(model, weight), in_channels(model, weight));
}

void linear_input_gradient(GPT2 *model, TensorId weight, int layer, floatX *dx, const floatX *dout,
                           const GeluBackward *through, int64_t N) {
    const GeluBackward t = through ? *through : (GeluBackward){0};
    model->ops->linear_backward_input(dx, t.dx_sums, t.gelu, dout, gpt2_weight(model, weight, layer),
                                      t.pre_gelu, model->scratch, N, out_channels(model, weight),
                                      in_channels(model, weight));
}

void linear_weight_gradient(GPT2 *model, TensorId weight, int layer, const floatX *dout, const floatX *x,
                            int64_t N, bool with_bias, bool first) {
    float *dbias = with_bias ? gpt2_grad(model, weight + 1, layer) : NULL;
    const Ops *ops = model->ops;
    ops->linear_backward_weight(gpt2_grad(model, weight, layer), dbias, dout, x,
                                first ? OVERWRITE : ACCUMULATE, model->scratch, N,
                                out_channels(model, weight), in_channels(model, weight));
}
