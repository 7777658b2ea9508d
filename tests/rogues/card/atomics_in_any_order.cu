//! layout  nn
//! workspace P BATCH * M * N * 4 zeroed
//! launch  hgemm(A: in, B: in, P: workspace, M, N, K)
//! grid    ceil_div(N, BN), ceil_div(M, BM), 4 * BATCH
//! block   32, 8
//! launch  narrow(P: workspace, C: out, M, N)
//! grid    ceil_div(M * N, 256), 1, BATCH
//! block   256
// rogue: adds four K splits with float atomics into a zeroed workspace without saying nondeterministic: bits differ only when the order of arrival does
// expect: incorrect determinism
// case: 512x512x2048x1
// from: written from docs/KERNELS.md alone
#include <cuda_fp16.h>

constexpr int BM = 32;
constexpr int BN = 32;
constexpr int BK = 32;

extern "C" __global__ void hgemm(const half *A, const half *B, float *P, int M, int N, int K)
{
    __shared__ float as[BM][BK + 1], bs[BK][BN + 1];
    const int tx = threadIdx.x, ty = threadIdx.y, row0 = blockIdx.y * BM, col0 = blockIdx.x * BN, col = col0 + tx;
    const size_t batch = blockIdx.z;
    const size_t prod = batch / 4, split = batch % 4;
    const half *a = A + prod * M * K, *b = B + prod * K * N;
    const int part = (K + 4 * BK - 1) / (4 * BK) * BK;
    const int k_end = min(K, ((int)split + 1) * part);
    float sum[4] = {};
    for (int p0 = (int)split * part; p0 < k_end; p0 += BK) {
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
    for (int q = 0; q < 4; q++) {
        const int i = row0 + ty + 8 * q;
        if (i < M && col < N)
            atomicAdd(&P[(prod * M + i) * N + col], sum[q]);
    }
}

extern "C" __global__ void narrow(const float *P, half *C, int M, int N)
{
    const size_t s = (size_t)blockIdx.x * 256 + threadIdx.x, n = (size_t)M * N, batch = blockIdx.z;
    if (s < n)
        C[batch * n + s] = __float2half(P[batch * n + s]);
}
