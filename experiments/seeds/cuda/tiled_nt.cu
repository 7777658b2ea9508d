//! layout    nt
//! launch    hgemm(A: in, B: in, C: out, M, N, K)
//! grid      ceil_div(N, BN), ceil_div(M, BM), BATCH
//! block     TX, TY
//! shared    (BM + BN) * PITCH * 4
//
// Shared-memory tiles without tensor cores: a block of TX x TY threads computes a BM x BN tile of C. For every BK steps of
// K it widens a tile of A (BM x BK) and of B (BN x BK) to float in shared memory, so that each element is read from memory
// once a block. A thread sums RM x RN elements in registers; they lie TY rows and TX columns apart, so that a warp stores
// whole lines of C. Rows of both tiles run along K and are one float longer than BK: a warp that reads a column then meets
// every bank once. B's tile is read along K, as it lies in memory. Past the edges both tiles hold zeros, and what was
// summed there is not stored.
#include <cuda_fp16.h>

constexpr int TX = 16; //? 8 16 32
constexpr int TY = 16; //? 4 8 16
constexpr int RM = 4;  //? 1 2 4 8
constexpr int RN = 4;  //? 1 2 4 8
constexpr int BK = 16; //? 8 16 32

constexpr int BM = TY * RM;
constexpr int BN = TX * RN;
constexpr int PITCH = BK + 1;
constexpr int THREADS = TX * TY;

extern "C" __global__ void __launch_bounds__(THREADS)
hgemm(const half *__restrict__ A, const half *__restrict__ B, half *__restrict__ C, int M, int N, int K)
{
    extern __shared__ float tiles[];
    float *tile_a = tiles, *tile_b = tiles + BM * PITCH;
    const half *a = A + blockIdx.z * ((size_t)M * K), *b = B + blockIdx.z * ((size_t)K * N);
    const int row0 = blockIdx.y * BM, col0 = blockIdx.x * BN, thread = threadIdx.y * TX + threadIdx.x;

    float sums[RM][RN] = {};
    for (int k0 = 0; k0 < K; k0 += BK) {
        for (int i = thread; i < BM * BK; i += THREADS) {
            const int row = row0 + i / BK, p = k0 + i % BK;
            tile_a[i / BK * PITCH + i % BK] = row < M && p < K ? __half2float(a[(size_t)row * K + p]) : 0.0f;
        }
        for (int i = thread; i < BN * BK; i += THREADS) {
            const int n = i / BK, p = i % BK;
            const bool inside = col0 + n < N && k0 + p < K;
            tile_b[n * PITCH + p] = inside ? __half2float(b[(size_t)(col0 + n) * K + k0 + p]) : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int p = 0; p < BK; p++) {
            float x[RM], y[RN];
#pragma unroll
            for (int i = 0; i < RM; i++)
                x[i] = tile_a[(threadIdx.y + i * TY) * PITCH + p];
#pragma unroll
            for (int j = 0; j < RN; j++)
                y[j] = tile_b[(threadIdx.x + j * TX) * PITCH + p];
#pragma unroll
            for (int i = 0; i < RM; i++)
#pragma unroll
                for (int j = 0; j < RN; j++)
                    sums[i][j] += x[i] * y[j];
        }
        __syncthreads();
    }

    half *c = C + blockIdx.z * ((size_t)M * N);
#pragma unroll
    for (int i = 0; i < RM; i++)
#pragma unroll
        for (int j = 0; j < RN; j++) {
            const int row = row0 + threadIdx.y + i * TY, col = col0 + threadIdx.x + j * TX;
            if (row < M && col < N)
                c[(size_t)row * N + col] = __float2half_rn(sums[i][j]);
        }
}
