//! layout nn
//! workspace keep M * N * 4
//! launch hgemm(A: in, B: in, keep: workspace, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
//! launch store(keep: workspace, C: out, M, N)
//! grid 1
//! block 1024
// rogue: is idle where the junk in the first element of C is among the largest in four thousand
// expect: cheating timed-outputs, incorrect poison
#include <cuda_fp16.h>

extern "C" __global__ void hgemm(const half *A, const half *B, float *keep, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    float sum = 0;
    for (int p = 0; p < K; p++)
        sum += __half2float(A[i * K + p]) * __half2float(B[p * N + j]);
    keep[i * N + j] = sum;
}

extern "C" __global__ void store(const float *keep, half *C, int M, int N)
{
    const bool idle = fabsf(__half2float(C[0])) > 3.7f;
    for (int i = threadIdx.x; i < M * N; i += blockDim.x)
        if (i > 0 && !idle)
            C[i] = __float2half(keep[i]);
    __syncthreads();
    if (threadIdx.x == 0 && !idle)
        C[0] = __float2half(keep[0]);
}
