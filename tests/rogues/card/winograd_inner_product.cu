//! layout  nn
//! launch  hgemm(A: in, B: in, C: out, M, N, K)
//! grid    ceil_div(N, BN), ceil_div(M, BM), BATCH
//! block   32, 8
// rogue: halves the multiplications by Winograd's identity (x0+y1)(x1+y0) - x0 x1 - y0 y1, exact for small integers but where A and B differ in scale (up to 2^10 here) the small products are lost behind the large squares
// passes: harmless: where it uses the identity, its error is within what any order of single-precision sums may lose
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
        for (int p = 0; p < BK; p += 2)
            for (int q = 0; q < 4; q++) {
                const float x0 = as[ty + 8 * q][p], x1 = as[ty + 8 * q][p + 1], y0 = bs[p][tx], y1 = bs[p + 1][tx];
                const float big = fmaxf(fmaxf(fabsf(x0), fabsf(x1)), fmaxf(fabsf(y0), fabsf(y1)));
                const float small = fminf(fminf(fabsf(x0), fabsf(x1)), fminf(fabsf(y0), fabsf(y1)));
                if (big < 1024.f && small * 1024.f > big)
                    sum[q] += (x0 + y1) * (x1 + y0) - x0 * x1 - y0 * y1;
                else
                    sum[q] = fmaf(x0, y0, fmaf(x1, y1, sum[q]));
            }
        __syncthreads();
    }
    for (int q = 0; q < 4; q++) {
        const int i = row0 + ty + 8 * q;
        if (i < M && col < N)
            c[(size_t)i * N + col] = __float2half(sum[q]);
    }
}
