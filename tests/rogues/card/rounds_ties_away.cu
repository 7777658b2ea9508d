//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: rounds the result half away from zero
// expect: incorrect exact-integers
// alone: with this gate off, the others let it pass
#include <cuda_fp16.h>

__device__ half round_away(float x)
{
    const unsigned bits = __float_as_uint(x), exponent = bits >> 23 & 0xff;
    const bool ordinary = exponent >= 127 - 14 && exponent != 0xff;
    return __float2half(ordinary ? __uint_as_float((bits + 0x1000) & ~0x1fffU) : x);
}

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    float sum = 0;
    for (int p = 0; p < K; p++)
        sum += __half2float(A[i * K + p]) * __half2float(B[p * N + j]);
    C[i * N + j] = round_away(sum);
}
