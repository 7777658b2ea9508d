//! layout    nt
//! launch    hgemm(A: in, B: in, partial: workspace, M, N, K)
//! grid      ceil_div(N, BN), ceil_div(M, BM), BATCH * SPLITS
//! block     THREADS
//! shared    STAGES * STAGE
//! launch    add_splits(partial: workspace, C: out, M, N, BATCH)
//! grid      ceil_div(BATCH * M * N, REDUCERS * 4)
//! block     REDUCERS
//! workspace partial SPLITS * BATCH * M * N * 4
//
// For few tiles and a long K: SPLITS blocks share a tile of C, each walks along its part of K and stores its sums as floats
// in the workspace; a second launch adds them up. Sums are in float throughout (mma.sync.m16n8k16): the fp32 class. A block
// of WARPS_M x WARPS_N warps computes a BM x BN tile, each warp WM x WN of it in registers, in steps of BK. A ring of
// STAGES tiles in shared memory is filled by cp.async, one barrier a step; fragments of the next slice, 16 steps of K, and
// copies of a later tile are issued between the products. Chunks of 16 bytes are permuted in each row (XOR): no bank
// conflicts, no padding. B's tile is BN x BK, as in memory; nothing is transposed.
// Past the edges tiles hold zeros. Where rows are no multiple of 16 bytes, elements are copied one by one.
#include <cuda_fp16.h>

constexpr int WM = 64;     //? 16 32 64
constexpr int WN = 64;     //? 32 64
constexpr int WARPS_M = 2; //? 1 2 4
constexpr int WARPS_N = 2; //? 1 2
constexpr int BK = 32;     //? 32 64
constexpr int STAGES = 4;  //? 2 3 4 5
constexpr int GROUP = 8;   //? 1 4 8 16
constexpr int SPLITS = 4;  //? 1 2 3 4 6 8 16
constexpr int REDUCERS = 256; //? 64 128 256 512

constexpr int THREADS = 32 * WARPS_M * WARPS_N;
constexpr int BM = WM * WARPS_M;
constexpr int BN = WN * WARPS_N;
constexpr int STAGE_A = BM * BK * 2; // bytes
constexpr int STAGE = STAGE_A + BN * BK * 2;
constexpr int SLICES = BK / 16, LOADS_A = WM / 16, LOADS_B = WN / 16, LOADS = LOADS_A + LOADS_B;
constexpr int PRODUCTS = LOADS_A * LOADS_B, LOADS_AT_ONCE = (LOADS + PRODUCTS - 1) / PRODUCTS;
constexpr int ROWS = THREADS / (BK / 8), COPIES_A = BM / ROWS, COPIES_B = BN / ROWS, COPIES = COPIES_A + COPIES_B;

// Where a chunk, eight elements, of a tile with rows of COLS elements stands, in bytes. The eight chunks in 128 bytes (all
// banks) are permuted from row to row, so that the chunks of eight rows in one column, which ldmatrix reads at once, never
// collide. Rows that are a multiple of eight apart have the same permutation.
template <int COLS>
__device__ int swizzled(int row, int chunk)
{
    constexpr int rows_a_line = COLS < 64 ? 64 / COLS : 1, ways = COLS < 64 ? COLS / 8 : 8;
    return row * COLS * 2 + (chunk ^ row / rows_a_line % ways) * 16;
}

__device__ void copy_chunk(unsigned to, const half *from, bool inside) // asynchronously; zeros if not inside
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(inside * 16) : "memory");
}

// Copies the ROWS x COLS tile at (row0, col0) of a row-major matrix, of any alignment, or zeros where that ends.
template <int ROWS, int COLS>
__device__ void copy_elements(char *tile, const half *matrix, int row0, int col0, int n_rows, int n_cols,
                              int stride)
{
#pragma unroll 1
    for (int i = threadIdx.x; i < ROWS * COLS / 8; i += THREADS) {
        const int row = row0 + i / (COLS / 8), col = col0 + i % (COLS / 8) * 8;
        half *to = (half *)(tile + swizzled<COLS>(i / (COLS / 8), i % (COLS / 8)));
        for (int e = 0; e < 8; e++)
            to[e] = row < n_rows && col + e < n_cols ? matrix[(size_t)row * stride + col + e] : __ushort_as_half(0);
    }
}

// Four 8 x 8 matrices at once, one in each register; lane l gives the address of row l % 8 of matrix l / 8.
__device__ void ldmatrix(unsigned (&r)[4], unsigned row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row) : "memory");
}

__device__ void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// A warp's sums over `depth` steps of K. ALIGNED: the rows of both operands are multiples of 16 bytes.
template <bool ALIGNED>
__device__ void multiply(float (&sums)[WM / 16][WN / 8][4], char *memory, const half *a, const half *b, int row0, int col0,
                         int M, int N, int K, int depth)
{
    const unsigned tiles = (unsigned)__cvta_generic_to_shared(memory);
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, n_steps = (depth + BK - 1) / BK;

    // A thread copies the same chunk of every ROWS-th row of A's tile, then of B's.
    const int row = thread / (BK / 8), col = thread % (BK / 8) * 8, to = swizzled<BK>(row, col / 8);
    const half *from_a = a + (size_t)(row0 + row) * K + col, *from_b = b + (size_t)(col0 + row) * K + col;
    const auto copy_part = [&](unsigned tile, const half *&from, int c, int n_copies, int n_rows) {
        copy_chunk(tile + (to ^ c * ROWS % 8 * 16) + c * ROWS * BK * 2, from, c * ROWS < n_rows);
        from += c + 1 < n_copies ? (size_t)ROWS * K : BK - (size_t)(n_copies - 1) * ROWS * K;
        asm volatile("" : "+l"(from)); // or multiples of K are kept in registers, and spill
    };
    const auto copy = [&](int t, unsigned stage, int c) {
        if (c < COPIES_A)
            copy_part(stage, from_a, c, COPIES_A, t * BK + col < depth ? M - row0 - row : 0);
        else
            copy_part(stage + STAGE_A, from_b, c - COPIES_A, COPIES_B, t * BK + col < depth ? N - col0 - row : 0);
    };
    const auto copy_slowly = [&](int t, unsigned stage) {
        copy_elements<BM, BK>(memory + (stage - tiles), a, row0, t * BK, M, depth, K);
        copy_elements<BN, BK>(memory + (stage - tiles) + STAGE_A, b, col0, t * BK, N, depth, K);
    };

    // Fragments of two slices, the one that is multiplied and the next. First those that are needed first: x[0], y, others.
    unsigned x[2][LOADS_A][4], y[2][LOADS_B][4], at_a[SLICES], at_b[SLICES];
    for (int s = 0; s < SLICES; s++) {
        at_a[s] = swizzled<BK>(warp / WARPS_N * WM + lane % 16, s * 2 + lane / 16);
        at_b[s] = STAGE_A + swizzled<BK>(warp % WARPS_N * WN + lane / 16 * 8 + lane % 8, s * 2 + lane / 8 % 2);
    }
    const auto load = [&](unsigned stage, int s, int l) {
        const int i = max(l - LOADS_B, 0), j = l - 1;
        if (l == 0 || l > LOADS_B)
            ldmatrix(x[s % 2][i], stage + at_a[s] + i * 16 * BK * 2);
        else
            ldmatrix(y[s % 2][j], stage + at_b[s] + j * 16 * BK * 2);
    };

    // A commit closes a group of copies; when a tile is read, those of STAGES - 2 later ones may be under way.
    const auto next = [&](unsigned stage) { return stage == tiles + (STAGES - 1) * STAGE ? tiles : stage + STAGE; };
    const auto wait = [] {
        asm volatile("cp.async.commit_group;\n\tcp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
    };
    unsigned read = tiles, write = tiles;
#pragma unroll 1
    for (int t = 0; t < STAGES - 1; t++, write = next(write)) {
        if (!ALIGNED)
            copy_slowly(t, write);
        for (int c = 0; ALIGNED && c < COPIES; c++)
            copy(t, write, c);
        if (t < STAGES - 2)
            asm volatile("cp.async.commit_group;" ::: "memory");
    }
    wait();
    for (int l = 0; l < LOADS; l++)
        load(read, 0, l);
#pragma unroll 1
    for (int t = 0; t < n_steps; t++, write = next(write)) {
        if (!ALIGNED)
            copy_slowly(t + STAGES - 1, write);
#pragma unroll
        for (int q = 0; q < SLICES * PRODUCTS; q++) {
            const int s = q / PRODUCTS, p = q % PRODUCTS, i = p / LOADS_B, j = p % LOADS_B;
            if (q == (SLICES - 1) * PRODUCTS) { // the next tile has come, and nobody reads the oldest any longer
                wait();
                read = next(read);
            }
            for (int l = p * LOADS_AT_ONCE; l < min((p + 1) * LOADS_AT_ONCE, LOADS); l++)
                load(read, (s + 1) % SLICES, l);
            const int n_before = (SLICES - 1) * PRODUCTS;
            for (int c = q * COPIES / n_before; ALIGNED && q < n_before && c < (q + 1) * COPIES / n_before; c++)
                copy(t + STAGES - 1, write, c);
            mma(sums[i][2 * j], x[s % 2][i], y[s % 2][j][0], y[s % 2][j][1]);
            mma(sums[i][2 * j + 1], x[s % 2][i], y[s % 2][j][2], y[s % 2][j][3]);
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
hgemm(const half *__restrict__ A, const half *__restrict__ B, float *__restrict__ partial, int M, int N, int K)
{
    extern __shared__ __align__(128) char memory[];
    const int batch = blockIdx.z / SPLITS, split = blockIdx.z % SPLITS;
    const int share = ((K + BK - 1) / BK + SPLITS - 1) / SPLITS * BK, k0 = min(split * share, K), depth = min(share, K - k0);
    const half *a = A + batch * ((size_t)M * K) + k0, *b = B + batch * ((size_t)K * N) + k0;

    // Blocks start in the order of their index: GROUP rows of tiles are walked together, column by column, so that those that
    // run at the same time share rows of A and columns of B in L2.
    const int index = blockIdx.y * gridDim.x + blockIdx.x, in_group = index % (GROUP * (int)gridDim.x);
    const int first_row = index / (GROUP * (int)gridDim.x) * GROUP, n_rows = min(GROUP, (int)gridDim.y - first_row);
    const int row0 = (first_row + in_group % n_rows) * BM, col0 = in_group / n_rows * BN;

    float sums[WM / 16][WN / 8][4] = {};
    if (K % 8 == 0 && ((size_t)a | (size_t)b) % 16 == 0)
        multiply<true>(sums, memory, a, b, row0, col0, M, N, K, depth);
    else
        multiply<false>(sums, memory, a, b, row0, col0, M, N, K, depth);

    // A thread holds two neighbours in row lane / 4 of every 16 x 8 fragment, and two more eight rows below.
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int warp_row = row0 + warp / WARPS_N * WM + lane / 4, warp_col = col0 + warp % WARPS_N * WN + lane % 4 * 2;
    float *c = partial + (size_t)(split * (gridDim.z / SPLITS) + batch) * M * N;
#pragma unroll
    for (int i = 0; i < WM / 8; i++)
#pragma unroll
        for (int j = 0; j < WN / 8; j++) {
            const int row = warp_row + i * 8, col = warp_col + j * 8;
            const float2 pair = {sums[i / 2][j][i % 2 * 2], sums[i / 2][j][i % 2 * 2 + 1]};
            float *to = c + (size_t)row * N + col;
            if (row < M && col + 1 < N && N % 2 == 0)
                *(float2 *)to = pair;
            else if (row < M && col < N) {
                to[0] = pair.x;
                if (col + 1 < N)
                    to[1] = pair.y;
            }
        }
}

// C from the partial sums, always added in the same order: the result does not depend on which block was done first.
extern "C" __global__ void __launch_bounds__(REDUCERS)
add_splits(const float *__restrict__ partial, half *__restrict__ C, int M, int N, int BATCH)
{
    const size_t size = (size_t)BATCH * M * N, at = ((size_t)blockIdx.x * REDUCERS + threadIdx.x) * 4;
    if (at >= size)
        return;
    float sums[4] = {};
#pragma unroll
    for (int s = 0; s < SPLITS; s++) {
        const float *from = partial + s * size + at;
        if (size % 4 == 0) {
            const float4 four = *(const float4 *)from;
            sums[0] += four.x, sums[1] += four.y, sums[2] += four.z, sums[3] += four.w;
        } else
            for (int e = 0; e < 4 && at + e < size; e++)
                sums[e] += from[e];
    }
    if (size % 4 == 0) {
        const half2 pairs[2] = {__floats2half2_rn(sums[0], sums[1]), __floats2half2_rn(sums[2], sums[3])};
        *(uint2 *)(C + at) = *(const uint2 *)pairs;
    } else
        for (int e = 0; e < 4 && at + e < size; e++)
            C[at + e] = __float2half_rn(sums[e]);
}
