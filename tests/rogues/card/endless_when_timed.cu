//! layout nn
//! workspace W 64
//! launch hgemm(A: in, B: in, C: out, W: workspace, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
//! launch mark(W: workspace)
//! grid 1
//! block 1
// rogue: is right in the first call after its workspace was filled, and waits for ever in the next
// expect: timeout time-limit
#include <cuda_fp16.h>

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, long long *W, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    const bool later = W[0] == 0x1234567887654321 && W[1] == ~W[0];
    float sum = 0;
    for (int p = 0; p < K; p++)
        sum += __half2float(A[i * K + p]) * __half2float(B[p * N + j]);
    C[i * N + j] = __float2half(sum);
    while (later && *(const volatile unsigned short *)(C + i * N + j) != 0x7e5a)
        ;
}

extern "C" __global__ void mark(long long *W)
{
    W[0] = 0x1234567887654321;
    W[1] = ~W[0];
}
