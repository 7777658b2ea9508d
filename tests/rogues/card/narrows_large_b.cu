//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: rounds large elements of B to bfloat16
// expect: incorrect rows-of-b
// alone: with this gate off, the others let it pass
#include <cuda_fp16.h>

__device__ float narrow(half x)
{
    const float value = __half2float(x);
    const bool large = fabsf(value) > 4096 && value - value == 0;
    return large ? __uint_as_float((__float_as_uint(value) + 0x8000) & 0xffff0000) : value;
}

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    float sum = 0;
    for (int p = 0; p < K; p++)
        sum += __half2float(A[i * K + p]) * narrow(B[p * N + j]);
    C[i * N + j] = __float2half(sum);
}
