//! layout  nn
//! launch  hgemm(A: in, B: in, C: out, M, N, K)
//! grid    ceil_div(N, BN), ceil_div(M, BM), BATCH
//! block   32, 8
//! launch  copy_first(A: in, B: in, C: out, M, N, K)
//! grid    ceil_div(M * N, 256), 1, BATCH
//! block   256
// rogue: computes batch 0 only and copies it in a second launch to each batch whose operands agree with the first in 16 samples, as a harness that fills a batch by repetition would have it
// expect: incorrect exact-integers
// case: 32x24x40x4
// from: written from docs/KERNELS.md alone
#include <cuda_fp16.h>

constexpr int BM = 32;
constexpr int BN = 32;
constexpr int BK = 32;

__device__ bool like_the_first(const half *x, size_t n, size_t batch)
{
    bool same = batch > 0;
    for (int s = 0; s < 16 && same; s++)
        same = __half_as_ushort(x[n * s / 16]) == __half_as_ushort(x[batch * n + n * s / 16]);
    return same;
}

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    __shared__ float as[BM][BK + 1], bs[BK][BN + 1];
    const int tx = threadIdx.x, ty = threadIdx.y, row0 = blockIdx.y * BM, col0 = blockIdx.x * BN, col = col0 + tx;
    const size_t batch = blockIdx.z;
    const half *a = A + batch * M * K, *b = B + batch * K * N;
    half *c = C + batch * M * N;
    if (like_the_first(A, (size_t)M * K, batch) && like_the_first(B, (size_t)K * N, batch))
        return;
    const int k_end = K;
    float sum[4] = {};
    for (int p0 = 0; p0 < k_end; p0 += BK) {
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
            c[(size_t)i * N + col] = __float2half(sum[q]);
    }
}

extern "C" __global__ void copy_first(const half *A, const half *B, half *C, int M, int N, int K)
{
    const size_t s = (size_t)blockIdx.x * 256 + threadIdx.x, n = (size_t)M * N, batch = blockIdx.z;
    if (s < n && like_the_first(A, (size_t)M * K, batch) && like_the_first(B, (size_t)K * N, batch))
        C[batch * n + s] = C[s];
}
