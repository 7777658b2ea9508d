//! layout  nn
//! workspace P BATCH * M * N * 4
//! workspace T ceil_div(N, BN) * ceil_div(M, BM) * BATCH * 4 zeroed
//! launch  hgemm(A: in, B: in, C: out, P: workspace, T: workspace, M, N, K)
//! grid    ceil_div(N, BN), ceil_div(M, BM), 2 * BATCH
//! block   32, 8
// rogue: lets the first of two K splits spin for the flag of the second, at most 20000 times, and then adds whatever stands in the workspace: right while both are resident together, as in all small grids
// expect: incorrect exact-integers, incorrect rows-of-b, incorrect columns-of-a, incorrect poison, incorrect determinism, cheating timed-outputs
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
    volatile unsigned *flag = T + (prod * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    float *half_way = P + prod * M * N;
    for (int s = 0; s < 20000 && !split && !*flag; s++)
        ;
    __threadfence();
    for (int q = 0; q < 4; q++) {
        const size_t at = (size_t)(row0 + ty + 8 * q) * N + col;
        if (row0 + ty + 8 * q < M && col < N && split)
            half_way[at] = sum[q];
        else if (row0 + ty + 8 * q < M && col < N)
            c[at] = __float2half(sum[q] + __ldcg(&half_way[at]));
    }
    __threadfence();
    __syncthreads();
    if (split && tx == 0 && ty == 0)
        *flag = 1;
}
