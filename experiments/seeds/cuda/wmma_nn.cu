//! layout    nn
//! launch    hgemm(A: in, B: in, C: out, M, N, K)
//! grid      ceil_div(N, BN), ceil_div(M, BM), BATCH
//! block     32 * WARPS
//! shared    (BM * (BK + PAD) + BK * (BN + PAD)) * 2 + WARPS * 1024
//
// Tensor cores by the portable interface, nvcuda::wmma, with sums in float. A block holds a BM x BN tile of C in the
// registers of WARPS_M x WARPS_N warps, each WM x WN in fragments of 16 x 16, and walks along K in steps of BK through
// shared memory. B's tile is BK x BN, as B lies in memory, and is read as row-major fragments. Rows in shared memory are
// PAD elements longer than they need be, which spreads a fragment's rows over the banks. One tile at a time: load, wait,
// multiply, wait. What overlaps is the work of different blocks on a multiprocessor. A fragment's layout is not specified,
// so sums pass through a 16 x 16 scratch tile of each warp on their way to C. Past the edges the tiles hold zeros, and what
// was summed there is not stored.
#include <cuda_fp16.h>
#include <mma.h>

constexpr int WM = 32;     //? 16 32 64
constexpr int WN = 32;     //? 16 32 64
constexpr int WARPS_M = 2; //? 1 2 4
constexpr int WARPS_N = 2; //? 1 2
constexpr int BK = 32;     //? 16 32 64
constexpr int PAD = 8;     //? 0 8 16

constexpr int WARPS = WARPS_M * WARPS_N;
constexpr int BM = WM * WARPS_M;
constexpr int BN = WN * WARPS_N;

using namespace nvcuda;

// Copies the ROWS x COLS tile at (row0, col0) of a row-major matrix to shared memory, eight elements at a time.
template <int ROWS, int COLS>
__device__ void load_tile(half *tile, const half *matrix, int row0, int col0, int n_rows, int n_cols)
{
    const bool aligned = n_cols % 8 == 0 && (size_t)matrix % 16 == 0;
    for (int i = threadIdx.x; i < ROWS * COLS / 8; i += 32 * WARPS) {
        const int r = i / (COLS / 8), c = i % (COLS / 8) * 8, row = row0 + r, col = col0 + c;
        const half *from = matrix + (size_t)row * n_cols + col;
        half *to = tile + r * (COLS + PAD) + c;
        if (aligned) {
            const bool inside = row < n_rows && col < n_cols;
            *(uint4 *)to = inside ? *(const uint4 *)from : make_uint4(0, 0, 0, 0);
        } else {
#pragma unroll
            for (int e = 0; e < 8; e++)
                to[e] = row < n_rows && col + e < n_cols ? from[e] : __ushort_as_half(0);
        }
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
hgemm(const half *__restrict__ A, const half *__restrict__ B, half *__restrict__ C, int M, int N, int K)
{
    extern __shared__ __align__(128) char memory[];
    half *tile_a = (half *)memory, *tile_b = tile_a + BM * (BK + PAD);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float *scratch = (float *)(tile_b + BK * (BN + PAD)) + warp * 256;
    const half *a = A + blockIdx.z * ((size_t)M * K), *b = B + blockIdx.z * ((size_t)K * N);
    half *c = C + blockIdx.z * ((size_t)M * N);
    const int row0 = blockIdx.y * BM, col0 = blockIdx.x * BN;
    const int warp_row = warp / WARPS_N * WM, warp_col = warp % WARPS_N * WN;

    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums[WM / 16][WN / 16];
#pragma unroll
    for (int i = 0; i < WM / 16; i++)
#pragma unroll
        for (int j = 0; j < WN / 16; j++)
            wmma::fill_fragment(sums[i][j], 0.0f);

    for (int k0 = 0; k0 < K; k0 += BK) {
        load_tile<BM, BK>(tile_a, a, row0, k0, M, K);
        load_tile<BK, BN>(tile_b, b, k0, col0, K, N);
        __syncthreads();
#pragma unroll
        for (int p = 0; p < BK; p += 16) {
            wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> x[WM / 16];
#pragma unroll
            for (int i = 0; i < WM / 16; i++)
                wmma::load_matrix_sync(x[i], tile_a + (warp_row + i * 16) * (BK + PAD) + p, BK + PAD);
#pragma unroll
            for (int j = 0; j < WN / 16; j++) {
                wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> y;
                wmma::load_matrix_sync(y, tile_b + p * (BN + PAD) + warp_col + j * 16, BN + PAD);
#pragma unroll
                for (int i = 0; i < WM / 16; i++)
                    wmma::mma_sync(sums[i][j], x[i], y, sums[i][j]);
            }
        }
        __syncthreads();
    }

#pragma unroll
    for (int i = 0; i < WM / 16; i++)
#pragma unroll
        for (int j = 0; j < WN / 16; j++) {
            wmma::store_matrix_sync(scratch, sums[i][j], 16, wmma::mem_row_major);
            __syncwarp();
            for (int e = lane; e < 256; e += 32) {
                const int row = row0 + warp_row + i * 16 + e / 16, col = col0 + warp_col + j * 16 + e % 16;
                if (row < M && col < N)
                    c[(size_t)row * N + col] = __float2half_rn(scratch[e]);
            }
            __syncwarp();
        }
}
