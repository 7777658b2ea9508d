//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: takes subnormal operands for zeros
// expect: incorrect subnormals, incorrect last-k-tile
#include <cuda_fp16.h>

__device__ float flush(half x)
{
    const float value = __half2float(x);
    return fabsf(value) < 0x1p-14f ? 0 : value;
}

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    float sum = 0;
    for (int p = 0; p < K; p++)
        sum += flush(A[i * K + p]) * flush(B[p * N + j]);
    C[i * N + j] = __float2half(sum);
}
