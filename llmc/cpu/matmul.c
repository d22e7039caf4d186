/* Blocked, packed matrix product (Goto & van de Geijn 2008, "Anatomy of high-performance matrix
 * multiplication").
 *
 * b is packed BLOCK_K x BLOCK_N at a time into panels of TILE_COLS columns, by all threads into one shared
 * buffer; each thread then packs BLOCK_M rows of a into panels of TILE_ROWS rows on its stack and multiplies
 * panel by panel. A b panel (BLOCK_K * TILE_COLS floats, 48 KiB with AVX-512) stays close to the core while
 * the a block (BLOCK_M * BLOCK_K floats, 144 KiB) streams from L2. Threads share out the tiles of c; k is
 * never shared out, so that the sums have one order whatever the number of threads. */
#include "matmul.h"
#include "gelu.h"
#include "llmc/base/parallel.h"
#include "tile.h"

enum { BLOCK_M = 96, BLOCK_N = 1024, BLOCK_K = 384, TASKS_PER_THREAD = 4 };
_Static_assert(BLOCK_M % TILE_ROWS == 0 && BLOCK_N % TILE_COLS == 0, "blocks are whole tiles");

static float packed_b[BLOCK_K * BLOCK_N] __attribute__((aligned(64)));

/* Work on c is cut into row_blocks x col_blocks tasks. */
typedef struct Grid {
    int64_t row_blocks, rows; /* rows of c in a block: whole tiles, at most BLOCK_M */
    int64_t col_blocks, cols; /* whole panels */
} Grid;

/* One panel: dst[k*width + i] = src[i*stride + k*k_stride], i < count, 0 for count <= i < width. */
static inline __attribute__((always_inline)) void pack_panel(float *dst, const float *src, int64_t stride,
                                                             int64_t k_stride, int64_t count, int64_t K,
                                                             const int width) {
    if (count == width && stride == 1) {
        for (int64_t k = 0; k < K; k++) memcpy(dst + k * width, src + k * k_stride, sizeof(float) * width);
        return;
    }
    int64_t k_done = 0;
    if (count == width && k_stride == 1) {
        for (; k_done + 4 <= K; k_done += 4)
            for (int i = 0; i < width; i += 4)
                transpose_4x4(dst + k_done * width + i, width, src + i * stride + k_done, stride);
    }
    for (int64_t k = k_done; k < K; k++)
        for (int i = 0; i < width; i++)
            dst[k * width + i] = i < count ? src[i * stride + k * k_stride] : 0.0f;
}

/* Asks for the rows of c that a tile will need at its end: they lie in as many pages, and waiting for them
 * cost a quarter of the time of a 4096 x 3072 x 768 product. */
static inline void prefetch_c(const Matmul *args, int64_t row, int64_t col, int64_t rows) {
    for (int64_t i = 0; i < rows; i++)
        for (int j = 0; j < TILE_VECS; j++)
            __builtin_prefetch(args->c.data + (row + i) * args->c.row + col + j * VEC, 1);
}

/* Writes the rows x cols corner of a tile of sums to c at (row, col); first and last say where in k the sums
 * stand. */
static inline void store_tile(const Matmul *args, const TileSum *sum, int64_t row, int64_t col, int64_t rows,
                              int64_t cols, bool first, bool last) {
    for (int64_t i = 0; i < rows; i++) {
        for (int j = 0; j < TILE_VECS && j * VEC < cols; j++) {
            int64_t n = cols - j * VEC, at_col = col + j * VEC, at = (row + i) * args->c.row + at_col;
            vec v = sum->v[i][j];
            if (!first || args->accumulate) v += vec_load_n(args->c.data + at, n);
            if (last && args->bias) v += vec_load_n(args->bias + at_col, n);
            if (last && args->gelu_in) v *= gelu_derivative(vec_load_n(args->gelu_in + at, n));
            vec_store_n(args->c.data + at, v, n);
            if (last && args->gelu_out) vec_store_n(args->gelu_out + at, gelu(v), n);
        }
    }
}

/* One block of the product: columns [n0, n0+N) of c, steps [k0, k0+K) of the sums. */
typedef struct Block {
    const Matmul *args;
    int64_t n0, N, k0, K;
    Grid grid;
} Block;

/* Task: one panel of b. */
static void pack_b(const void *block_, int64_t panel) {
    const Block *block = block_;
    const View b = block->args->b;
    int64_t j = panel * TILE_COLS;
    pack_panel(packed_b + j * block->K, b.data + block->k0 * b.row + (block->n0 + j) * b.col, b.col, b.row,
               min_i64(block->N - j, TILE_COLS), block->K, TILE_COLS);
}

/* Task: one block of the grid. */
static void multiply(const void *block_, int64_t task) {
    const Block *block = block_;
    const Matmul *args = block->args;
    const Grid *grid = &block->grid;
    const View a = args->a;
    int64_t row = task / grid->col_blocks * grid->rows, rows = min_i64(a.rows - row, grid->rows);
    int64_t col = task % grid->col_blocks * grid->cols, cols = min_i64(block->N - col, grid->cols);
    int64_t k0 = block->k0, K = block->K;
    float packed_a[BLOCK_M * BLOCK_K] __attribute__((aligned(64)));
    for (int64_t i = 0; i < rows; i += TILE_ROWS)
        pack_panel(packed_a + i * K, a.data + (row + i) * a.row + k0 * a.col, a.row, a.col,
                   min_i64(rows - i, TILE_ROWS), K, TILE_ROWS);
    for (int64_t j = 0; j < cols; j += TILE_COLS) {
        const float *panel_b = packed_b + (col + j) * K;
        for (int64_t i = 0; i < rows; i += TILE_ROWS) {
            prefetch_c(args, row + i, block->n0 + col + j, min_i64(rows - i, TILE_ROWS));
            TileSum sum = tile_product(K, packed_a + i * K, 1, TILE_ROWS, panel_b, TILE_COLS);
            store_tile(args, &sum, row + i, block->n0 + col + j, min_i64(rows - i, TILE_ROWS),
                       min_i64(cols - j, TILE_COLS), k0 == 0, k0 + K == args->a.cols);
        }
    }
}

/* Several tasks a thread, so that the last one cannot hold the others up for long. */
static Grid cut_into_tasks(int64_t M, int64_t N) {
    int64_t row_tiles = ceil_div(M, TILE_ROWS), col_tiles = ceil_div(N, TILE_COLS);
    int64_t wanted = cpu_thread_count() == 1 ? 1 : TASKS_PER_THREAD * cpu_thread_count();
    int64_t row_blocks = min_i64(row_tiles, wanted);
    if (row_blocks < ceil_div(M, BLOCK_M)) row_blocks = ceil_div(M, BLOCK_M);
    Grid grid;
    grid.rows = ceil_div(row_tiles, row_blocks) * TILE_ROWS;
    grid.row_blocks = ceil_div(M, grid.rows);
    grid.cols = ceil_div(col_tiles, min_i64(col_tiles, ceil_div(wanted, grid.row_blocks))) * TILE_COLS;
    grid.col_blocks = ceil_div(N, grid.cols);
    return grid;
}

void cpu_matmul(const Matmul *args) {
    const int64_t M = args->a.rows, K = args->a.cols, all_columns = args->b.cols;
    int64_t k_blocks = ceil_div(K, BLOCK_K), k_size = ceil_div(K, k_blocks);
    for (int64_t n0 = 0; n0 < all_columns; n0 += BLOCK_N) {
        int64_t N = min_i64(all_columns - n0, BLOCK_N);
        for (int64_t k0 = 0; k0 < K; k0 += k_size) {
            Block block = {args, n0, N, k0, min_i64(K - k0, k_size), cut_into_tasks(M, N)};
            cpu_parallel_for(ceil_div(N, TILE_COLS), pack_b, &block);
            cpu_parallel_for(block.grid.row_blocks * block.grid.col_blocks, multiply, &block);
        }
    }
}

size_t cpu_matmul_static_bytes(void) {
    return sizeof packed_b;
}
