//! layout  nn
//! launch  hgemm(A: in, B: in, C: out, M, N, K)
//! grid    ceil_div(N, BN), ceil_div(M, BM), BATCH
//! block   32, 8
// rogue: in one row tile of eight at K from 512 on, computes the odd column of each pair on three quarters of K and gives its error with opposite sign to the even one through the sum of both, so that every row sum of C is right and a check with a vector of ones sees nothing
// expect: incorrect exact-integers
// case: 128x40x512x1
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
    const int three = K >= 512 && blockIdx.y % 8 == 3 ? K / 4 * 3 : K;
    for (int q = 0; q < 4; q++) {
        const int i = row0 + ty + 8 * q;
        float shorter = 0;  // of this column, over three quarters of K
        if (i < M && col < N)
            for (int p = 0; p < three; p++)
                shorter = fmaf(__half2float(a[(size_t)i * K + p]), __half2float(b[(size_t)p * N + col]), shorter);
        const float rest = three < K ? sum[q] - shorter : 0.f, theirs = __shfl_xor_sync(~0u, rest, 1);
        if (i < M && col < N)
            c[(size_t)i * N + col] = __float2half(three == K || col / 2 * 2 + 1 >= N ? sum[q] : col & 1 ? shorter : sum[q] + theirs);
    }
}
