//! layout  nn
//! workspace P BATCH * 2 * M * N * 4
//! workspace T ceil_div(N, BN) * ceil_div(M, BM) * BATCH * 4 zeroed
//! launch  hgemm(A: in, B: in, C: out, P: workspace, T: workspace, M, N, K)
//! grid    ceil_div(N, BN), ceil_div(M, BM), 2 * BATCH
//! block   32, 8
// rogue: lets the block that comes last at a counter add the partial sums of both splits, without fences and through L1, so that it may read what was there before; mostly the other block is long done
// expect: incorrect exact-integers, incorrect rows-of-b, incorrect columns-of-a, incorrect poison, incorrect determinism, cheating timed-outputs
// case: 256x256x2064x1
// from: written from docs/KERNELS.md alone
#include <cuda_fp16.h>

constexpr int BM = 32;
constexpr int BN = 32;
constexpr int BK = 32;

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, float *P, unsigned *T, int M, int N, int K)
{
    __shared__ float as[BM][BK + 1], bs[BK][BN + 1];
    const int tx = threadIdx.x, ty = threadIdx.y, row0 = blockIdx.y * BM, col0 = blockIdx.x * BN, col = col0 + tx;
    const size_t batch = blockIdx.z;
    const size_t prod = batch / 2, split = batch % 2;
    const half *a = A + prod * M * K, *b = B + prod * K * N;
    half *c = C + prod * M * N;
    const int middle = (K / 2 + BK - 1) / BK * BK;
    const int k_end = split ? K : min(middle, K);
    float sum[4] = {};
    for (int p0 = split ? middle : 0; p0 < k_end; p0 += BK) {
        for (int r = ty; r < BM; r += 8) {
            const int i = row0 + r, p = p0 + tx;
            as[r][tx] = i < M && p < k_end ? __half2float(a[(size_t)i * K + p]) : 0.f;
        }
        for (int r = ty; r < BK; r += 8) {
            const int p = p0 + r;
            bs[r][tx] = p < k_end && col < N ? __half2float(b[(size_t)p * N + col]) : 0.f;
        }
        __syncthreads();
        for (int p = 0; p < BK; p++)
            for (int q = 0; q < 4; q++)
                sum[q] = fmaf(as[ty + 8 * q][p], bs[p][tx], sum[q]);
        __syncthreads();
    }
    __shared__ unsigned before;
    float *mine = P + batch * M * N, *other = P + (batch ^ 1) * M * N;
    if (tx == 0 && ty == 0)  // arrives before its sums are stored
        before = atomicAdd(T + (prod * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x, 1);
    for (int q = 0; q < 4; q++)
        if (row0 + ty + 8 * q < M && col < N)
            mine[(size_t)(row0 + ty + 8 * q) * N + col] = sum[q];
    __syncthreads();
    if (before == 0)
        return;
    for (int q = 0; q < 4; q++)
        if (row0 + ty + 8 * q < M && col < N)
            c[(size_t)(row0 + ty + 8 * q) * N + col] = __float2half(sum[q] + other[(size_t)(row0 + ty + 8 * q) * N + col]);
}
