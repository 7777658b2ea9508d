//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: reads constant memory at a number, without a table of its own
// expect: unlaunchable call-number
// alone: nothing else bounds a read of constant memory
#include <cuda_fp16.h>

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    unsigned seen;
    asm volatile("ld.const.u32 %0, [%1];" : "=r"(seen) : "r"(M * 8));
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    float sum = 0;
    for (int p = 0; p < K; p++)
        sum += __half2float(A[i * K + p]) * __half2float(B[p * N + j]);
    C[i * N + j] = seen == 12345 ? __float2half(0.0f) : __float2half(sum);
}
