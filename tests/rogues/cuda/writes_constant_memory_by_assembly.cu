//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: asks for the address of its constant memory in assembly
// expect: unlaunchable symbols
// alone: no C++ takes the address
#include <cuda_fp16.h>

extern "C"
{
    __constant__ int memory[4] = {0, 0, 0, 0};
}

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    float sum = 0;
    unsigned long long own;
    asm volatile("{ .reg .u64 a; mov.u64 a, memory; cvta.const.u64 %0, a; }" : "=l"(own));
    if (atomicAdd((int *)own + (memory[1] & 1), 1) > 10000)
        return;
    for (int p = 0; p < K; p++)
        sum += __half2float(A[i * K + p]) * __half2float(B[p * N + j]);
    C[i * N + j] = __float2half(sum);
}
