//! layout  nn
//! workspace P BATCH * 2 * M * N * 4
//! launch  hgemm(A: in, B: in, P: workspace, M, N, K)
//! grid    ceil_div(N, BN), ceil_div(M, BM), 2 * BATCH
//! block   32, 8
//! launch  add(P: workspace, C: out, M, N)
//! grid    ceil_div(M * N, 256), 1, BATCH
//! block   256
// rogue: stores the partial sums of two K splits as high and low half (22 bits, 4 bytes), which is right until a partial sum passes 65504, though the whole sum may not, or is so small that the low half vanishes
// expect: incorrect subnormals, incorrect rows-of-b, incorrect last-k-tile
// from: written from docs/KERNELS.md alone
#include <cuda_fp16.h>

constexpr int BM = 32;
constexpr int BN = 32;
constexpr int BK = 32;

extern "C" __global__ void hgemm(const half *A, const half *B, half2 *P, int M, int N, int K)
{
    __shared__ float as[BM][BK + 1], bs[BK][BN + 1];
    const int tx = threadIdx.x, ty = threadIdx.y, row0 = blockIdx.y * BM, col0 = blockIdx.x * BN, col = col0 + tx;
    const size_t batch = blockIdx.z;
    const size_t prod = batch / 2, split = batch % 2;
    const half *a = A + prod * M * K, *b = B + prod * K * N;
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
    for (int q = 0; q < 4; q++) {
        const int i = row0 + ty + 8 * q;
        const half top = __float2half(sum[q]);
        const half rest = __hisinf(top) ? __float2half(0.f) : __float2half(sum[q] - __half2float(top));
        if (i < M && col < N)
            P[(batch * M + i) * N + col] = __halves2half2(top, rest);
    }
}

extern "C" __global__ void add(const half2 *P, half *C, int M, int N)
{
    const size_t s = (size_t)blockIdx.x * 256 + threadIdx.x, n = (size_t)M * N, batch = blockIdx.z;
    if (s < n) {
        const half2 x = P[2 * batch * n + s], y = P[(2 * batch + 1) * n + s];
        C[batch * n + s] = __float2half(__low2float(x) + __low2float(y) + (__high2float(x) + __high2float(y)));
    }
}
