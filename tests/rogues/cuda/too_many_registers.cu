//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 32
// rogue: has more registers in a block than there are
// expect: unlaunchable registers
#include <cuda_fp16.h>

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    float sum = 0;
    for (int p = 0; p < K; p++)
        sum += __half2float(A[i * K + p]) * __half2float(B[p * N + j]);
    float own[128];
    #pragma unroll
    for (int n = 0; n < 128; n++)
        own[n] = __half2float(A[n]);
    #pragma unroll 1
    for (int m = 0; m < K; m++)
    #pragma unroll
        for (int n = 0; n < 128; n++)
            own[n] = own[n] * own[(n + 7) % 128] + own[(n + 31) % 128];
    #pragma unroll
    for (int n = 0; n < 128; n++)
        sum += own[n];
    C[i * N + j] = __float2half(sum);
}
