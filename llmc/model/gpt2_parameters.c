/* The table of parameter tensors. Host arithmetic only. */
#include "gpt2.h"
#include "llmc/base/integers.h"

/* Tensors [first, last] lie one behind the other, the last of them padded to whole parts; returns the elements of all. */
static int64_t pad_layer(Tensor table[N_TENSORS], int first, int last, int n_parts) {
    int64_t n = 0;
    for (int i = first; i <= last; i++) n += table[i].padded = round_up(table[i].layer_elems, PARAMETER_TILE);
    const int64_t padding = round_up(n, (int64_t)n_parts * PARAMETER_TILE) - n;
    table[last].padded += padding;
    return n + padding;
}

static void place(Tensor table[N_TENSORS], int n_layer, int n_parts) {
    pad_layer(table, WTE, WPE, n_parts);
    pad_layer(table, LN_F_W, LN_F_B, n_parts);
    const int64_t block = pad_layer(table, LN_1_W, MLP_PROJ_B, n_parts);
    int64_t offset = 0;
    for (int i = 0; i < N_TENSORS; i++) {
        table[i].offset = offset;
        table[i].stride = i >= LN_1_W && i <= MLP_PROJ_B ? block : 0;
        offset += table[i].padded;
        if (i == MLP_PROJ_B) offset += block * (n_layer - 1);
    }
}

int64_t gpt2_tensors(Tensor table[N_TENSORS], const GPT2Config *config, int n_parts) {
    const int64_t C = config->n_embd, Vp = config->padded_vocab_size, maxT = config->max_seq_len;
    const int L = config->n_layer;
    /* clang-format off */
    const Tensor rows[N_TENSORS] = {
        /* name, rows, cols, n_layers, rank, transposed, overwritten, init, group */
        [WTE] =         {"wte.weight",              Vp,    C,     1, 2, false, true,  INIT_NORMAL,   GROUP_EMBEDDINGS, 0, 0, 0, 0},
        [WPE] =         {"wpe.weight",              maxT,  C,     1, 2, false, false, INIT_NORMAL,   GROUP_EMBEDDINGS, 0, 0, 0, 0},
        [LN_1_W] =      {"h.%d.ln_1.weight",        1,     C,     L, 1, false, false, INIT_ONE,      GROUP_VECTORS,    0, 0, 0, 0},
        [LN_1_B] =      {"h.%d.ln_1.bias",          1,     C,     L, 1, false, false, INIT_ZERO,     GROUP_VECTORS,    0, 0, 0, 0},
        [C_ATTN_W] =    {"h.%d.attn.c_attn.weight", 3 * C, C,     L, 2, true,  true,  INIT_NORMAL,   GROUP_MATRICES,   0, 0, 0, 0},
        [C_ATTN_B] =    {"h.%d.attn.c_attn.bias",   1,     3 * C, L, 1, false, false, INIT_ZERO,     GROUP_VECTORS,    0, 0, 0, 0},
        [ATTN_PROJ_W] = {"h.%d.attn.c_proj.weight", C,     C,     L, 2, true,  true,  INIT_RESIDUAL, GROUP_MATRICES,   0, 0, 0, 0},
        [ATTN_PROJ_B] = {"h.%d.attn.c_proj.bias",   1,     C,     L, 1, false, false, INIT_ZERO,     GROUP_VECTORS,    0, 0, 0, 0},
        [LN_2_W] =      {"h.%d.ln_2.weight",        1,     C,     L, 1, false, false, INIT_ONE,      GROUP_VECTORS,    0, 0, 0, 0},
        [LN_2_B] =      {"h.%d.ln_2.bias",          1,     C,     L, 1, false, false, INIT_ZERO,     GROUP_VECTORS,    0, 0, 0, 0},
        [C_FC_W] =      {"h.%d.mlp.c_fc.weight",    4 * C, C,     L, 2, true,  true,  INIT_NORMAL,   GROUP_MATRICES,   0, 0, 0, 0},
        [C_FC_B] =      {"h.%d.mlp.c_fc.bias",      1,     4 * C, L, 1, false, false, INIT_ZERO,     GROUP_VECTORS,    0, 0, 0, 0},
        [MLP_PROJ_W] =  {"h.%d.mlp.c_proj.weight",  C,     4 * C, L, 2, true,  true,  INIT_RESIDUAL, GROUP_MATRICES,   0, 0, 0, 0},
        [MLP_PROJ_B] =  {"h.%d.mlp.c_proj.bias",    1,     C,     L, 1, false, false, INIT_ZERO,     GROUP_VECTORS,    0, 0, 0, 0},
        [LN_F_W] =      {"ln_f.weight",             1,     C,     1, 1, false, false, INIT_ONE,      GROUP_VECTORS,    0, 0, 0, 0},
        [LN_F_B] =      {"ln_f.bias",               1,     C,     1, 1, false, false, INIT_ZERO,     GROUP_VECTORS,    0, 0, 0, 0},
    };
    /* clang-format on */
    int64_t n_parameters = 0;
    for (int i = 0; i < N_TENSORS; i++) {
        table[i] = rows[i];
        table[i].layer_elems = rows[i].rows * rows[i].cols;
        n_parameters += table[i].layer_elems * rows[i].n_layers;
    }
    place(table, L, n_parts);
    return n_parameters;
}

int64_t gpt2_n_parameters(const GPT2Config *config) {
    Tensor table[N_TENSORS];
    const int64_t padding_rows = config->padded_vocab_size - config->vocab_size;
    return gpt2_tensors(table, config, 1) - padding_rows * config->n_embd;
}

void gpt2_layer_tensors(const Tensor table[N_TENSORS], int layer, TensorId *first, TensorId *last) {
    const int n_layer = table[LN_1_W].n_layers;
    *first = layer < 0 ? WTE : layer < n_layer ? LN_1_W : LN_F_W;
    *last = layer < 0 ? WPE : layer < n_layer ? MLP_PROJ_B : LN_F_B;
}

ParameterRange gpt2_layer_range(const Tensor table[N_TENSORS], int layer) {
    TensorId first, last;
    gpt2_layer_tensors(table, layer, &first, &last);
    const int64_t begin = tensor_at(&table[first], layer);
    return (ParameterRange){begin, tensor_at(&table[last], layer) + table[last].padded - begin};
}

int64_t gpt2_n_elements(const Tensor table[N_TENSORS]) {
    return table[LN_F_B].offset + table[LN_F_B].padded;
}

void gpt2_tile_groups(int32_t *out, const Tensor table[N_TENSORS]) {
    for (int id = 0; id < N_TENSORS; id++)
        for (int layer = 0; layer < table[id].n_layers; layer++) {
            const int64_t first = tensor_at(&table[id], layer) / PARAMETER_TILE;
            const int64_t n = table[id].padded / PARAMETER_TILE;
            for (int64_t i = first; i < first + n; i++) out[i] = table[id].group;
        }
}
