//! layout nn
//! workspace W M * N * 4 zeroed
//! launch hgemm(A: in, B: in, W: workspace, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8), PARTS
//! block 32, 8
//! launch store(W: workspace, C: out, M, N)
//! grid ceil_div(M * N, 256)
//! block 256
// rogue: splits K in 32 and adds the parts by atomics, in the order in which they are done, which it does not declare
// expect: incorrect determinism
// case: 512x512x2048x1
// alone: with this gate off, the others let it pass
#include <cuda_fp16.h>

constexpr int PARTS = 32;

extern "C" __global__ void hgemm(const half *A, const half *B, float *W, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    float sum = 0;
    for (int p = blockIdx.z * K / PARTS; p < (blockIdx.z + 1) * K / PARTS; p++)
        sum += __half2float(A[i * K + p]) * __half2float(B[p * N + j]);
    atomicAdd(W + i * N + j, sum);
}

extern "C" __global__ void store(const float *W, half *C, int M, int N)
{
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < M * N)
        C[i] = __float2half(W[i]);
}
