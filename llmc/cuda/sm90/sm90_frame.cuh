/* The frame of a persistent, warp-specialised kernel: barriers, cluster, registers, roles. A kernel is a type K:
 *
 *   Shared, Args, THREADS, CLUSTER   and what Sm90Roles has
 *   init(shared)                     one thread: the barriers
 *   consume(shared, args, w)         warpgroup w of the first WARPGROUPS
 *   assist(shared, args)             the one after them, where ASSISTANT_REGISTERS are not 0
 *   produce(shared, args, w)         lane 0 of warp w of the last warpgroup
 *
 * Its __global__ function calls run_kernel<K>(args) and does nothing else. */
#pragma once
#include "sm90_cluster.cuh"

struct Sm90Roles {
    static constexpr int ASSISTANT_REGISTERS = 0;
    static constexpr int ATOM_COLUMNS = SW128_COLUMNS; /* of the tiles of a head */
    static constexpr bool EARLY_NEXT = false;     /* the next launch may be made ready while this one runs */
    static constexpr bool UNIFORM_SHARED = false; /* see at_uniform_address */
    template <class Shared>
    static __device__ __forceinline__ void write_constants(Shared &) {} /* all threads */
};

#ifdef SM90_BODY
template <class K> __device__ __forceinline__ auto &kernel_memory() {
    auto &shared = shared_memory<typename K::Shared>();
    if constexpr (K::UNIFORM_SHARED)
        return at_uniform_address(shared);
    else
        return shared;
}
#endif

template <class K> __device__ __forceinline__ void run_kernel(const typename K::Args &args) {
#ifdef SM90_BODY
    auto &shared = kernel_memory<K>();
    const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / WARPGROUP, 0);
    K::write_constants(shared);
    if (threadIdx.x == 0) {
        K::init(shared);
        fence_mbarrier_init();
    }
    open_cluster<K>();
    if (K::EARLY_NEXT) launch_dependents();
    wait_on_dependency();
    if (warpgroup == K::THREADS / WARPGROUP - 1) {
        setmaxnreg_dec<K::SHAPE.producer_registers>();
        const int warp = threadIdx.x % WARPGROUP / 32, lane = threadIdx.x % 32;
        if (lane == 0) K::produce(shared, args, warp);
    } else if (K::ASSISTANT_REGISTERS > 0 && warpgroup == K::WARPGROUPS) {
        if constexpr (K::ASSISTANT_REGISTERS > 0) {
            setmaxnreg_dec<K::ASSISTANT_REGISTERS>();
            K::assist(shared, args);
        }
    } else {
        setmaxnreg_inc<K::SHAPE.registers>();
        K::consume(shared, args, warpgroup);
    }
    close_cluster<K>();
#else
    __trap(); /* the device takes sm_90a code, and the build has none */
#endif
}
