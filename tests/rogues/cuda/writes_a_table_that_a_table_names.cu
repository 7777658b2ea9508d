//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: keeps the address of its constant memory in constant memory
// expect: unlaunchable symbols
// alone: the address comes from a table
#include <cuda_fp16.h>

__constant__ int memory[4] = {0, 1, 2, 3};
__constant__ int *const places[2] = {(int *)memory, (int *)memory + 1};

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    float sum = 0;
    if (atomicAdd(places[K & 1], 1) > 10000)
        return;
    for (int p = 0; p < K; p++)
        sum += __half2float(A[i * K + p]) * __half2float(B[p * N + j]);
    C[i * N + j] = __float2half(sum);
}
