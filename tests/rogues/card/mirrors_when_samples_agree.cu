//! layout  nt
//! launch  hgemm(A: in, B: in, C: out, M, N, K)
//! grid    ceil_div(N, BN), ceil_div(M, BM), BATCH
//! block   32, 8
// rogue: takes A and B of layout nt for the same matrix when 32 samples agree (C is symmetric then), computes tiles on and above the diagonal only, and writes each twice
// expect: incorrect huge-rows
// case: 64x64x112x1
// from: written from docs/KERNELS.md alone
#include <cuda_fp16.h>

constexpr int BM = 32;
constexpr int BN = 32;
constexpr int BK = 32;

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    __shared__ float as[BM][BK + 1], bs[BK][BN + 1];
    const int tx = threadIdx.x, ty = threadIdx.y, row0 = blockIdx.y * BM, col0 = blockIdx.x * BN, col = col0 + tx;
    const size_t batch = blockIdx.z;
    const half *a = A + batch * M * K, *b = B + batch * K * N;
    half *c = C + batch * M * N;
    bool same = M == N;
    for (int s = 0; s < 32; s++)
        same = same && __half_as_ushort(a[(size_t)M * K * s / 32]) == __half_as_ushort(b[(size_t)M * K * s / 32]);
    if (same && blockIdx.x < blockIdx.y)
        return;
    const int k_end = K;
    float sum[4] = {};
    for (int p0 = 0; p0 < k_end; p0 += BK) {
        for (int r = ty; r < BM; r += 8) {
            const int i = row0 + r, p = p0 + tx;
            as[r][tx] = i < M && p < k_end ? __half2float(a[(size_t)i * K + p]) : 0.f;
        }
        for (int r = ty; r < BN; r += 8) {
            const int j = col0 + r, p = p0 + tx;
            bs[tx][r] = p < k_end && j < N ? __half2float(b[(size_t)j * K + p]) : 0.f;
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
        if (same && blockIdx.x > blockIdx.y && i < M && col < N)
            c[(size_t)col * N + i] = __float2half(sum[q]);
    }
}
