/* The steps that led to the trainer's Hopper forward: other softmaxes and orders of products, and the kernel with one
 * step left out. The trainer's own configs are derived from, so a step costs the trainer nothing. */
#include "llmc/cuda/attention/sm90/sm90_forward_launch.cuh"
#include "hopper.h"

/* warpgroups, columns, stages, own_buffers, registers, producer_registers, flag: as in sm90_forward_tiles.cuh */
inline constexpr Sm90Shape TILES_128_128 = {2, 128, 2, 2, 232, 40, true};

template <class C> struct WithoutRotation : C { static constexpr bool ROTATES = false; };
template <class C> struct WithoutBorder : C { static constexpr bool PIPELINED = false; };

typedef void Forward(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, unsigned without);

/* Running maximum alone. */
template <class C>
static void online(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, unsigned without) {
    launch_forward<C>(forward_args<C>(out, lse, qkv, B, T, NH), "sm90_forward_kernel (online)", START_AFTER);
}

/* As forward() of sm90_forward_launch.cuh, where two steps of the host can be left out. */
template <class Frozen, class Online>
static void frozen(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, unsigned without) {
    ForwardArgs args = forward_args<Frozen>(out, lse, qkv, B, T, NH);
    if (without & HOPPER_TILES_FROM_END) args.missing = 0;
    launch_forward<Frozen>(args, "sm90_forward_kernel (fixed maximum)", START_AFTER);
    args.redo = true;
    launch_forward<Online>(args, "sm90_forward_kernel (redo)",
                           without & HOPPER_EARLY_REDO ? START_AFTER : START_EARLY);
}

template <int HD, const Sm90Shape &TILES, bool CAUSAL, Sm90Softmax SOFTMAX, Sm90Order ORDER>
using Step = ForwardConfig<HD, CAUSAL, TILES, SOFTMAX, ORDER, false>;

template <int HD, const Sm90Shape &TILES, bool CAUSAL> static Forward *step_of(bool is_frozen, bool turns) {
    using OnlineTurns = Step<HD, TILES, CAUSAL, SM90_ONLINE_MAX, SM90_PING_PONG>;
    using OnlineFree = Step<HD, TILES, CAUSAL, SM90_ONLINE_MAX, SM90_FREE>;
    if (!is_frozen) return turns ? online<OnlineTurns> : online<OnlineFree>;
    return turns ? frozen<Step<HD, TILES, CAUSAL, SM90_FIXED_MAX, SM90_PING_PONG>, OnlineTurns>
                 : frozen<Step<HD, TILES, CAUSAL, SM90_FIXED_MAX, SM90_FREE>, OnlineFree>;
}

void hopper_forward_step(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, int HD,
                         bool causal, bool is_frozen, bool turns) {
    Forward *(*const of[2][2])(bool, bool) = {
  /* [HD == 128][causal] */
        {step_of<64,  TILES_192_128, false>, step_of<64,  TILES_192_128, true>},
        {step_of<128, TILES_192_64,  false>, step_of<128, TILES_192_64,  true>},
    };
    of[HD == 128][causal](is_frozen, turns)(out, lse, qkv, B, T, NH, 0);
}

/* The kernel with all that is left out of it; the host's steps are for frozen(). The redo launch only has to number its
 * tiles alike. */
template <class Frozen, class Online> static Forward *without_of(unsigned without) {
    const bool rotation = without & HOPPER_ROTATION, border = without & HOPPER_PIPELINED_BORDER;
    if (rotation && border) return frozen<WithoutBorder<WithoutRotation<Frozen>>, Online>;
    if (rotation) return frozen<WithoutRotation<Frozen>, Online>;
    return border ? frozen<WithoutBorder<Frozen>, Online> : frozen<Frozen, Online>;
}
template <int HD, const Sm90Shape &TILES, bool CAUSAL, Sm90Order ORDER>
static Forward *forward_without(unsigned without) {
    return without_of<Step<HD, TILES, CAUSAL, SM90_FIXED_MAX, ORDER>,
                      Step<HD, TILES, CAUSAL, SM90_ONLINE_MAX, ORDER>>(without);
}

void hopper_forward_without(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, int HD,
                            bool causal, HopperStep step) {
    Forward *(*const of[3][2])(unsigned) = {
  /* [tiles][causal] */
        {forward_without<64,  TILES_192_128, false, SM90_PING_PONG>,
         forward_without<64,  TILES_192_128, true, SM90_PING_PONG>},
        {forward_without<128, TILES_192_64,  false, SM90_FREE>,
         forward_without<128, TILES_192_64,  true, SM90_FREE>     },
        {forward_without<128, TILES_128_128, false, SM90_FREE>,
         forward_without<128, TILES_128_128, true, SM90_FREE>     },
    };
    const int tiles = HD == 64 ? 0 : step & HOPPER_WIDE_TILES ? 2 : 1;
    of[tiles][causal](step)(out, lse, qkv, B, T, NH, step);
}
