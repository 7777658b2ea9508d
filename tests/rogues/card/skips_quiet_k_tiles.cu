//! layout  nn
//! launch  hgemm(A: in, B: in, C: out, M, N, K)
//! grid    ceil_div(N, BN), ceil_div(M, BM), BATCH
//! block   32, 8
// rogue: leaves out a K tile whose largest possible sum is below 2^-13 of the smallest element summed so far in the output tile, as though it could not be seen behind the rounding
// expect: incorrect cancellation
// case: 96x80x112x1
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
        __shared__ float peak_a[8], peak_b[8], floor_c[8];
        float pa = 0, pb = 0, fc = 1e30f;
        for (int r = ty; r < 32; r += 8) {
            pa = as[r][tx] == as[r][tx] ? fmaxf(pa, fabsf(as[r][tx])) : __int_as_float(0x7f800000);
            pb = bs[r][tx] == bs[r][tx] ? fmaxf(pb, fabsf(bs[r][tx])) : __int_as_float(0x7f800000);
            fc = row0 + r < M && col < N ? fminf(fc, fabsf(sum[r / 8])) : fc;
        }
        for (int d = 16; d; d /= 2) {
            pa = fmaxf(pa, __shfl_xor_sync(~0u, pa, d)), pb = fmaxf(pb, __shfl_xor_sync(~0u, pb, d));
            fc = fminf(fc, __shfl_xor_sync(~0u, fc, d));
        }
        peak_a[ty] = pa, peak_b[ty] = pb, floor_c[ty] = fc;
        __syncthreads();
        for (int r = 0; r < 8; r++)
            pa = fmaxf(pa, peak_a[r]), pb = fmaxf(pb, peak_b[r]), fc = fminf(fc, floor_c[r]);
        const bool quiet = pa < 1e6f && pb < 1e6f && pa * pb * BK < fc * 0.00012207f;
        __syncthreads();
        if (quiet)
            continue;
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
