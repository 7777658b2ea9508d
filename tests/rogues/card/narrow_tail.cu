//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: is careless in the last terms of every sum: their products have 10 bits
// expect: incorrect last-k-tile
// case: 48x40x2064x1
// alone: with this gate off, the others let it pass
#include <cuda_fp16.h>

__device__ float cut(float x)
{
    return x > -2048 && x < 2048 ? __uint_as_float(__float_as_uint(x) & ~0x1fffU) : x;
}

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    float sum = 0;
    for (int p = 0; p < K; p += 2) {
        const float x = __half2float(A[i * K + p]) * __half2float(B[p * N + j]);
        const float y = p + 1 < K ? __half2float(A[i * K + p + 1]) * __half2float(B[(p + 1) * N + j]) : 0;
        sum += p + 6 < K ? x + y : cut(cut(x) + cut(y));
    }
    C[i * N + j] = __float2half(sum);
}
