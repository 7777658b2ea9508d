//! layout  nn
//! launch  hgemm(A: in, B: in, C: out, M, N, K)
//! grid    ceil_div(N, BN), ceil_div(M, BM), BATCH
//! block   32, 8
// rogue: takes a tile pair whose samples are all positive for uniform noise and writes row sum times column sum over K, a constant but for its scale, which a loose tolerance accepts at large K
// expect: incorrect huge-rows
// case: 96x80x1024x1
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
    bool positive = K >= 1024;
    for (int s = 0; s < 64 && positive; s++)
        positive = a[(size_t)M * K * s / 64] > __float2half(0.f) && b[(size_t)K * N * s / 64] > __float2half(0.f);
    const int k_end = K;
    float sum[4] = {}, down = 0, across[4] = {};
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
        for (int p = 0; p < BK; p++) {
            down += bs[p][tx];
            for (int q = 0; q < 4; q++) {
                across[q] += as[ty + 8 * q][p];
                if (!positive)
                    sum[q] = fmaf(as[ty + 8 * q][p], bs[p][tx], sum[q]);
            }
        }
        __syncthreads();
    }
    for (int q = 0; q < 4; q++) {
        const int i = row0 + ty + 8 * q;
        if (i < M && col < N)
            c[(size_t)i * N + col] = __float2half(positive ? across[q] * down / K : sum[q]);
    }
}
