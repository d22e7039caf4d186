/* NVIDIA's NCCL, opened at run time: a machine without it trains on one GPU, and the program is built without it. Types
 * and functions are those of NCCL's public documentation (docs.nvidia.com/deeplearning/nccl), as of NCCL_OLDEST. */
#pragma once
#include <stddef.h>
#include "llmc/base/error.h"

enum { NCCL_OLDEST = 21800 }; /* 10000 major + 100 minor + patch */

/* How long NCCL may take to start, and to queue a call: 60. Tests have a shorter time. */
extern double nccl_seconds;
/* How long a communicator may take to end, in each of two calls: 2. Tests have a longer time. */
extern double nccl_seconds_to_close;

typedef struct NcclHandle NcclHandle; /* a communicator */
typedef enum { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7 } NcclResult;
typedef enum { NCCL_INT8 = 0, NCCL_INT64 = 4, NCCL_FLOAT32 = 7 } NcclType;
typedef enum { NCCL_SUM = 0 } NcclReduction;

typedef struct NcclId {
    char bytes[128];
} NcclId;

/* INT_MIN: not set. A later NCCL takes what it does not find here, by `size` and `version`, as not set, too. */
typedef struct NcclConfig {
    size_t size;
    unsigned magic, version;
    int blocking;
    int cga_cluster_size, min_ctas, max_ctas;
    const char *net_name;
    int split_share;
} NcclConfig;

/* clang-format off */
#define EACH_NCCL_FUNCTION(F) \
    F(NcclResult, ncclGetVersion, (int *version)) \
    F(NcclResult, ncclGetUniqueId, (NcclId *id)) \
    F(NcclResult, ncclCommInitRankConfig, (NcclHandle **comm, int n_ranks, NcclId id, int rank, NcclConfig *config)) \
    F(NcclResult, ncclCommGetAsyncError, (NcclHandle *comm, NcclResult *state)) \
    F(NcclResult, ncclCommFinalize, (NcclHandle *comm)) \
    F(NcclResult, ncclCommDestroy, (NcclHandle *comm)) \
    F(const char *, ncclGetErrorString, (NcclResult result)) \
    F(const char *, ncclGetLastError, (NcclHandle *comm)) \
    F(NcclResult, ncclReduceScatter, (const void *in, void *out, size_t n_of_a_rank, NcclType type, NcclReduction how, NcclHandle *comm, void *stream)) \
    F(NcclResult, ncclAllGather, (const void *in, void *out, size_t n_of_a_rank, NcclType type, NcclHandle *comm, void *stream)) \
    F(NcclResult, ncclAllReduce, (const void *in, void *out, size_t n, NcclType type, NcclReduction how, NcclHandle *comm, void *stream)) \
    F(NcclResult, ncclSend, (const void *in, size_t n, NcclType type, int to, NcclHandle *comm, void *stream)) \
    F(NcclResult, ncclRecv, (void *out, size_t n, NcclType type, int from, NcclHandle *comm, void *stream)) \
    F(NcclResult, ncclGroupStart, (void)) \
    F(NcclResult, ncclGroupEnd, (void))
/* clang-format on */

typedef struct Nccl {
#define MEMBER(Type, name, arguments) Type(*name) arguments;
    EACH_NCCL_FUNCTION(MEMBER)
#undef MEMBER
} Nccl;

/* The functions; NULL and one line where there is none, or one that is too old. Opened once. */
const Nccl *nccl_open(Error *err);
