//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: counts its calls in constant memory, through an address of it that looks like any other
// expect: unlaunchable symbols
// alone: constant memory is so by declaration alone
#include <cuda_fp16.h>

__constant__ int memory[4] = {0, 0, 0, 0};

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    float sum = 0;
    int *own = const_cast<int *>(memory);
    asm("" : "+l"(own));
    if (atomicAdd(own, 1) > 10000)
        return;
    for (int p = 0; p < K; p++)
        sum += __half2float(A[i * K + p]) * __half2float(B[p * N + j]);
    C[i * N + j] = __float2half(sum);
}
