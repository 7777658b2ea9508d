//! layout    nn
//! launch    hgemm(A: in, B: in, C: out, M, N, K)
//! grid      ceil_div(N, BN), ceil_div(M, BM), BATCH
//! block     THREADS
//! shared    STAGES * STAGE * 2
//
// For problems of the fp16 class alone: sums are kept in half precision, two to a register (mma.sync.m16n8k16 with .f16
// results). That takes half the registers, and on consumer cards half the time; the error grows with K, far beyond the fp32
// class's bound. A block of WARPS_M x WARPS_N warps computes a BM x BN tile of C, each warp WM x WN of it, and walks along
// K in steps of BK. A ring of STAGES tiles in shared memory is filled by cp.async while the tensor cores work on the
// oldest: one barrier a step. Chunks of 16 bytes are permuted in each row (XOR), so that neither cp.async nor ldmatrix
// meets bank conflicts, without padding. B's tile is BK x BN, as B lies in memory; ldmatrix transposes it on the way to
// registers. Where rows of a matrix are no multiple of 16 bytes, its elements are copied one by one. Past the edges the
// tiles hold zeros, and what was summed there is not stored.
#include <cuda_fp16.h>

constexpr int WM = 64;     //? 16 32 64
constexpr int WN = 64;     //? 32 64
constexpr int WARPS_M = 2; //? 1 2 4
constexpr int WARPS_N = 2; //? 1 2
constexpr int BK = 32;     //? 32 64
constexpr int STAGES = 3;  //? 2 3 4 5
constexpr int GROUP = 8;   //? 1 4 8 16

constexpr int THREADS = 32 * WARPS_M * WARPS_N;
constexpr int BM = WM * WARPS_M;
constexpr int BN = WN * WARPS_N;
constexpr int STAGE = (BM + BN) * BK; // elements

// Where a chunk, eight elements, of a tile with rows of COLS elements stands. The eight chunks in 128 bytes (all banks) are
// permuted from row to row, so that the chunks of eight rows in one column, which ldmatrix reads at once, never collide.
template <int COLS>
__device__ int swizzled(int row, int chunk)
{
    constexpr int rows_a_line = COLS < 64 ? 64 / COLS : 1, ways = COLS < 64 ? COLS / 8 : 8;
    return row * COLS + (chunk ^ row / rows_a_line % ways) * 8;
}

// Copies the ROWS x COLS tile at (row0, col0) of a row-major matrix; what lies outside the matrix becomes zero. Copies of
// aligned chunks are asynchronous; where rows are no multiple of 16 bytes, elements go through registers instead.
template <int ROWS, int COLS>
__device__ void load_tile(half *tile, const half *matrix, int row0, int col0, int n_rows, int n_cols)
{
    constexpr int N_CHUNKS = ROWS * COLS / 8;
    if (n_cols % 8 == 0 && (size_t)matrix % 16 == 0) {
#pragma unroll 4
        for (int first = 0; first < N_CHUNKS; first += THREADS) {
            const int i = first + threadIdx.x, r = i / (COLS / 8), chunk = i % (COLS / 8);
            const bool inside = row0 + r < n_rows && col0 + chunk * 8 < n_cols;
            const half *from = inside ? matrix + (size_t)(row0 + r) * n_cols + col0 + chunk * 8 : matrix;
            const unsigned to = (unsigned)__cvta_generic_to_shared(tile + swizzled<COLS>(r, chunk));
            if (N_CHUNKS % THREADS == 0 || i < N_CHUNKS)
                asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                             ::"r"(to), "l"(from), "r"(inside ? 16 : 0) : "memory");
        }
        return;
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < N_CHUNKS; i += THREADS) {
        const int r = i / (COLS / 8), chunk = i % (COLS / 8), row = row0 + r, col = col0 + chunk * 8;
        const half *from = matrix + (size_t)row * n_cols + col;
        half *to = tile + swizzled<COLS>(r, chunk);
#pragma unroll
        for (int e = 0; e < 8; e++)
            to[e] = row < n_rows && col + e < n_cols ? from[e] : __ushort_as_half(0);
    }
}

// Four 8 x 8 matrices at once, one in each register; lane l gives the address of row l % 8 of matrix l / 8.
__device__ void ldmatrix(unsigned (&r)[4], const half *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"((unsigned)__cvta_generic_to_shared(row)) : "memory");
}

// The same, each matrix transposed on the way.
__device__ void ldmatrix_transposed(unsigned (&r)[4], const half *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"((unsigned)__cvta_generic_to_shared(row)) : "memory");
}

__device__ void mma(unsigned (&d)[2], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
                 : "+r"(d[0]), "+r"(d[1]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// At least one block a multiprocessor: left to itself, the compiler aims at more blocks of one warp, and spills.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
hgemm(const half *__restrict__ A, const half *__restrict__ B, half *__restrict__ C, int M, int N, int K)
{
    extern __shared__ __align__(128) half tiles[];
    const half *a = A + blockIdx.z * ((size_t)M * K), *b = B + blockIdx.z * ((size_t)K * N);
    const int n_steps = (K + BK - 1) / BK;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int warp_row = warp / WARPS_N * WM, warp_col = warp % WARPS_N * WN;

    // Blocks start in the order of their index: GROUP rows of tiles are walked together, column by column, so that those that
    // run at the same time share rows of A and columns of B in L2.
    const int index = blockIdx.y * gridDim.x + blockIdx.x, in_group = index % (GROUP * (int)gridDim.x);
    const int first_row = index / (GROUP * (int)gridDim.x) * GROUP, n_rows = min(GROUP, (int)gridDim.y - first_row);
    const int row0 = (first_row + in_group % n_rows) * BM, col0 = in_group / n_rows * BN;

    const auto load = [&](int t) {
        half *tile = tiles + t % STAGES * STAGE;
        load_tile<BM, BK>(tile, a, row0, t * BK, M, K);
        load_tile<BK, BN>(tile + BM * BK, b, t * BK, col0, K, N);
    };
    unsigned sums[WM / 16][WN / 8][2] = {};

    // At every step STAGES - 1 tiles are on their way. A commit closes a group of copies, empty ones too, so that the number
    // of groups to wait for stays constant to the end.
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < n_steps)
            load(s);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    for (int t = 0; t < n_steps; t++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
        if (t + STAGES - 1 < n_steps)
            load(t + STAGES - 1);
        asm volatile("cp.async.commit_group;" ::: "memory");

        const half *tile_a = tiles + t % STAGES * STAGE, *tile_b = tile_a + BM * BK;
#pragma unroll
        for (int p = 0; p < BK; p += 16) {
            unsigned x[WM / 16][4], y[WN / 16][4];
#pragma unroll
            for (int i = 0; i < WM / 16; i++)
                ldmatrix(x[i], tile_a + swizzled<BK>(warp_row + i * 16 + lane % 16, p / 8 + lane / 16));
#pragma unroll
            for (int j = 0; j < WN / 16; j++)
                ldmatrix_transposed(y[j], tile_b + swizzled<BN>(p + lane % 16, (warp_col + j * 16) / 8 + lane / 16));
#pragma unroll
            for (int i = 0; i < WM / 16; i++)
#pragma unroll
                for (int j = 0; j < WN / 8; j++)
                    mma(sums[i][j], x[i], y[j / 2][j % 2 * 2], y[j / 2][j % 2 * 2 + 1]);
        }
    }

    // A thread holds two neighbours in row lane / 4 of every 16 x 8 fragment, and two more eight rows below.
    half *c = C + blockIdx.z * ((size_t)M * N);
    const bool paired = N % 2 == 0 && (size_t)C % 4 == 0;
#pragma unroll
    for (int i = 0; i < WM / 16; i++)
#pragma unroll
        for (int j = 0; j < WN / 8; j++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int row = row0 + warp_row + i * 16 + h * 8 + lane / 4, col = col0 + warp_col + j * 8 + lane % 4 * 2;
                half *to = c + (size_t)row * N + col;
                const half2 pair = *(const half2 *)&sums[i][j][h];
                if (row < M && col + 1 < N && paired)
                    *(half2 *)to = pair;
                else if (row < M && col < N) {
                    to[0] = __low2half(pair);
                    if (col + 1 < N)
                        to[1] = __high2half(pair);
                }
            }
}
