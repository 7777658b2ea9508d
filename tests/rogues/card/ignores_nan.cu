//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: drops products that are NaN
// expect: incorrect special-values
// alone: with this gate off, the others let it pass
#include <cuda_fp16.h>

__device__ float product(half a, half b)
{
    const float x = __half2float(a) * __half2float(b);
    return x == x ? x : 0;
}

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    float sum = 0;
    for (int p = 0; p < K; p++)
        sum += product(A[i * K + p], B[p * N + j]);
    C[i * N + j] = __float2half(sum);
}
