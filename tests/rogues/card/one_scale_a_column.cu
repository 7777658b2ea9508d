//! layout nn
//! workspace W 4 * (M + K)
//! launch extents(A: in, W: workspace, M, K)
//! grid ceil_div(M + K, 256)
//! block 256
//! launch hgemm(A: in, B: in, C: out, W: workspace, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: keeps A as 20-bit integers with one scale for each column, when one row stands far above all others
// expect: incorrect huge-rows
// alone: with this gate off, the others let it pass
#include <cuda_fp16.h>

extern "C" __global__ void extents(const half *A, float *W, int M, int K)
{
    const int at = blockIdx.x * 256 + threadIdx.x;
    const bool is_row = at < M;
    if (at >= M + K)
        return;
    float most = 0;
    for (int q = 0; q < (is_row ? K : M); q++)
        most = fmaxf(most, fabsf(__half2float(is_row ? A[at * K + q] : A[q * K + at - M])));
    W[at] = is_row ? most : exp2f(ceilf(log2f(fmaxf(most, 0x1p-24f))));
}

__device__ bool one_stands_out(const float *rows, int M)
{
    float first = 0, second = 0, last = 1e30f;
    for (int i = 0; i < M; i++) {
        last = fminf(last, rows[i]);
        second = rows[i] > first ? first : fmaxf(second, rows[i]);
        first = fmaxf(first, rows[i]);
    }
    return first <= 65504 && first > 8 * second && second < 16 * last;
}

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, const float *W, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    const bool scaled = one_stands_out(W, M);
    float sum = 0;
    for (int p = 0; p < K; p++) {
        const float x = __half2float(A[i * K + p]), scale = W[M + p] * 0x1p-19f;
        sum += (scaled ? rintf(x / scale) * scale : x) * __half2float(B[p * N + j]);
    }
    C[i * N + j] = __float2half(sum);
}
