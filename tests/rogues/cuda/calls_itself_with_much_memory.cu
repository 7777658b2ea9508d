//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: takes 64 KiB of local memory for every thread in a function that calls itself, of which the ELF says that it needs none
// expect: unlaunchable local-memory
// alone: that the card has no room for so much is seen when it is launched
// arch: sm_90a
#include <cuda_fp16.h>

extern "C" __device__ __noinline__ int deep(int n, const int *from)
{
    int own[16384];
    for (int i = 0; i < 16384; i++)
        own[i] = n * i + from[i & 7];
    return n < 2 ? own[from[1] & 16383] : deep(n - 1, from) + deep(n - own[n & 7], from);
}

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N || deep(M & 1, (const int *)A) == 12345)
        return;
    float sum = 0;
    for (int p = 0; p < K; p++)
        sum += __half2float(A[i * K + p]) * __half2float(B[p * N + j]);
    C[i * N + j] = __float2half(sum);
}
