//! layout nn
//! workspace W M * N * 4 zeroed
//! launch hgemm(A: in, B: in, C: out, W: workspace, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: adds half of the terms, to what the call before left in a workspace that is zeroed
// expect: incorrect exact-integers
#include <cuda_fp16.h>

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, float *W, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    float sum = 0;
    for (int p = K / 2; p < K; p++)
        sum += __half2float(A[i * K + p]) * __half2float(B[p * N + j]);
    W[i * N + j] += sum;
    C[i * N + j] = __float2half(W[i * N + j]);
}
