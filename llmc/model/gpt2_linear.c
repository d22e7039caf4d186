/* The model's linear layers: an op's operands from a weight's row in the table of tensors. */
#include "gpt2_pass.h"

static Matrix weight_of(const GPT2 *model, TensorId weight, int layer) {
    const Tensor *t = &model->tensors[weight];
    return matrix(gpt2_weight(model, weight, layer), model->ops->dtype, t->rows, t->cols);
}
/* N rows of the layer's outputs, or of its inputs; none where data is NULL. */
static Matrix outputs(const GPT2 *model, TensorId weight, const floatX *data, int64_t N) {
    return matrix(data, model->ops->dtype, N, model->tensors[weight].rows);
}
static Matrix inputs(const GPT2 *model, TensorId weight, const floatX *data, int64_t N) {
    return matrix(data, model->ops->dtype, N, model->tensors[weight].cols);
}

void linear_forward(GPT2 *model, TensorId weight, int layer, floatX *out, floatX *pre_gelu, const floatX *x,
                    int64_t N) {
    const floatX *bias = weight == WTE ? NULL : gpt2_weight(model, weight + 1, layer);
    model->ops->linear_forward(outputs(model, weight, out, N), outputs(model, weight, pre_gelu, N),
                               inputs(model, weight, x, N), weight_of(model, weight, layer), bias);
}

void linear_input_gradient(GPT2 *model, TensorId weight, int layer, floatX *dx, const floatX *dout,
                           const GeluBackward *through, int64_t N) {
    const GeluBackward t = through ? *through : (GeluBackward){0};
    model->ops->linear_backward_input(inputs(model, weight, dx, N), t.dx_sums,
                                      inputs(model, weight, t.gelu, N), outputs(model, weight, dout, N),
                                      weight_of(model, weight, layer), inputs(model, weight, t.pre_gelu, N),
                                      model->scratch);
}

bool linear_input_gradient_row_dots(GPT2 *model, TensorId weight, int layer, floatX *dx, float *row_dots,
                                    const floatX *dout, const floatX *other, int group, int64_t N) {
    return model->ops->linear_backward_input_row_dots(
        inputs(model, weight, dx, N), row_dots, outputs(model, weight, dout, N),
        weight_of(model, weight, layer), inputs(model, weight, other, N), model->scratch, group);
}

void linear_weight_gradient(GPT2 *model, TensorId weight, int layer, const floatX *dout, const floatX *x,
                            int64_t N, bool with_bias, WriteMode mode) {
    const Tensor *t = &model->tensors[weight];
    model->ops->linear_backward_weight(matrix(gpt2_grad(model, weight, layer), DTYPE_F32, t->rows, t->cols),
                                       with_bias ? gpt2_grad(model, weight + 1, layer) : NULL,
                                       outputs(model, weight, dout, N), inputs(model, weight, x, N), mode,
                                       model->scratch);
}
