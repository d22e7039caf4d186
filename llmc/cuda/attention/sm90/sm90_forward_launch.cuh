/* The host side of attention forward for sm_90a: arguments and launches of a config's two kernels (sm90_forward.cuh). */
#pragma once
#include "sm90_forward.cuh"

template <class C>
static ForwardArgs forward_args(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH) {
    ForwardArgs args = {};
    args.q = tensor_map(qkv, B, T, 3 * NH, C::HD, WG_ROWS);
    args.kv = tensor_map(qkv, B, T, 3 * NH, C::HD, C::KEYS);
    args.out = tensor_map(out, B, T, NH, C::HD, WG_ROWS / 4);
    args.lse = lse;
    args.T = T;
    args.NH = NH;
    /* Non-causal tiles are all alike, so small head groups cost nothing: 0.80 GB of DRAM for 1.05 at head size 128, T = 1024, 0
     * to +3 % in speed. Causal ones gain nothing. */
    args.order = tile_order(B, T, NH, C::ROW_BLOCKS * WG_ROWS, 2 * C::HD * 2, true,
                            C::CAUSAL ? SM90_GROUP_BYTES : SM90_SMALL_GROUP_BYTES);
    if (C::CAUSAL) /* the last two head groups as one, for a shorter tail: +1.5 % at T = 32k */
        args.order.last_head = max(0, args.order.last_head - args.order.group_heads);
    args.missing = args.order.tiles * C::ROW_BLOCKS - ceil_div<int>(T, WG_ROWS);
    args.scale_log2 = LOG2E / sqrtf((float)C::HD);
    return args;
}

template <class C> static void launch_forward(const ForwardArgs &args, const char *name, LaunchStart start) {
    launch_persistent(name, sm90_forward_kernel<C>, args, args.order.total * C::CLUSTER, C::THREADS,
                      shared_bytes<ForwardShared<C>>(), start, C::CLUSTER);
}

/* FixedMax: with the fixed maximum; OnlineMax: the same kernel with the running maximum, for the tiles on the redo list. */
template <class FixedMax, class OnlineMax>
static void forward(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH,
                    const SeenKeys &seen = {}, const DropoutArgs &dropout = {},
                    const BlockSparse &sparse = {}) {
    ForwardArgs args = forward_args<FixedMax>(out, lse, qkv, B, T, NH);
    args.seen = seen;
    args.dropout = dropout;
    args.sparse = sparse;
    launch_forward<FixedMax>(args, "sm90_forward_kernel (fixed maximum)", START_AFTER);
    args.redo = true;
    launch_forward<OnlineMax>(args, "sm90_forward_kernel (redo)", START_EARLY);
}
