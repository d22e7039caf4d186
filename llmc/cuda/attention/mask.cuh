/* What attention leaves out beside the keys behind a query, as a type that kernels are instantiated with.
 *
 * PlainMask leaves out nothing: every answer is a constant, and a kernel with it is the kernel without masks.
 * GeneralMask has a window (positions that a query sees, itself among them), documents, blocks (block_sparse.h: tiles of these
 * kernels lie in one each, so they are left out whole), and dropout of the probabilities
 * (llmc/model/dropout.h: a matrix for each head of B*NH, row query, column key). Where S, P and D are those without dropout and M is
 * the mask as 0 and 1, with kept = 1 - p:
 *   O = (P*M) V / kept    dV = (P*M)^T dO / kept    dS kept = P * (M ? dP - D kept : -D kept)
 * so that a dropped element costs a choice and no multiplication; 1/kept is applied to the sums. */
#pragma once
#include "llmc/cuda/device/cuda_common.cuh"

/* A window and documents: a query sees the keys from first_key to itself, a key is seen by queries up to end_query. Both
 * grow with the position, so what a block of rows sees, or is seen by, is a range, too. */
typedef struct SeenKeys {
    int T, window;                /* window: at most T */
    const int32_t *starts, *ends; /* of documents, (B,T); NULL: a sequence is one */

    __device__ __forceinline__ int first_key(int batch, int row) const {
        const int first = max(row - window + 1, 0);
        return starts ? max(first, starts[(int64_t)batch * T + min(row, T - 1)]) : first;
    }
    /* The first query behind the key that does not see it; may be beyond T. */
    __device__ __forceinline__ int end_query(int batch, int key) const {
        const int end = key + window;
        return ends ? min(end, ends[(int64_t)batch * T + min(key, T - 1)]) : end;
    }
} SeenKeys;

static inline SeenKeys seen_keys(const AttentionMask *mask, int T) {
    return (SeenKeys){T, attention_window(mask, T), mask->starts, mask->ends};
}

struct PlainMask {
    static constexpr bool PLAIN = true;
    __device__ constexpr void enter_sequence(int) {}
    __device__ constexpr int first_key(int) const { return 0; }
    __device__ constexpr int end_query(int, int T) const { return T; }
    __device__ constexpr bool beyond(int, int) const { return false; }
    __device__ constexpr bool hides_block(int, int) const { return false; }
    __device__ constexpr bool drops() const { return false; }
    __device__ constexpr DropoutMatrix matrix(int) const { return {0, 0}; }
    __device__ constexpr bool dropped(DropoutMatrix, int, int) const { return false; }
    __device__ constexpr bool dropped_by(uint32_t, int) const { return false; }
    __device__ constexpr float kept() const { return 1.0f; }
    __device__ constexpr float kept_scale() const { return 1.0f; }
};

struct GeneralMask {
    static constexpr bool PLAIN = false;
    const uint64_t *key;
    uint32_t site_number, threshold; /* threshold 0: no dropout, key is not read */
    SeenKeys seen;
    BlockSparse sparse;
    int batch;              /* the sequence whose queries are meant */
    float keep, keep_scale; /* 1 - p, 1 / (1 - p); p: threshold / 256 */

    __device__ __forceinline__ void enter_sequence(int sequence) { batch = sequence; }
    /* The first key that query `row` and those behind it see. */
    __device__ __forceinline__ int first_key(int row) const { return seen.first_key(batch, row); }
    /* No query from this one on sees a key before `key_end`. */
    __device__ __forceinline__ int end_query(int key_end, int T) const {
        return min(T, seen.end_query(batch, key_end - 1));
    }
    /* The key lies before those that the query sees. */
    __device__ __forceinline__ bool beyond(int query, int key_position) const {
        return key_position < first_key(query);
    }
    /* No query of the block of MASK_BLOCK that `query` is in sees a key of the block of `key_position`; not behind it. */
    __device__ __forceinline__ bool hides_block(int query, int key_position) const {
        return sparse.pattern.window > 0 &&
               !sparse_sees(&sparse, query / (int)MASK_BLOCK, key_position / (int)MASK_BLOCK);
    }
    __device__ __forceinline__ bool drops() const { return threshold != 0; }
    /* The mask of a head of B*NH. */
    __device__ __forceinline__ DropoutMatrix matrix(int head) const {
        return drops() ? dropout_matrix(dropout_site(*key, site_number), head) : DropoutMatrix{0, 0};
    }
    __device__ __forceinline__ bool dropped(DropoutMatrix matrix, int query, int key_position) const {
        return dropout_drops(matrix, query, key_position, threshold);
    }
    /* The same where the element's word is at hand. */
    __device__ __forceinline__ bool dropped_by(uint32_t word, int key_position) const {
        return dropout_dropped_by(word, key_position, threshold);
    }
    __device__ __forceinline__ float kept() const { return keep; }
    __device__ __forceinline__ float kept_scale() const { return keep_scale; }
};

static inline GeneralMask general_mask(const AttentionMask *mask, int T) {
    GeneralMask m;
    m.key = mask->dropout.key;
    m.site_number = mask->dropout.site;
    m.threshold = dropout_threshold(mask->dropout.p);
    m.seen = seen_keys(mask, T);
    m.sparse = mask->sparse;
    m.batch = 0;
    m.keep = 1.0f - dropout_p(m.threshold);
    m.keep_scale = dropout_scale(m.threshold);
    return m;
}
