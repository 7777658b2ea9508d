//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: keeps the last result, and hands it out again while the inputs look the same
// expect: unlaunchable symbols
// alone: a variable looks like any other memory to a compiler
#include <cuda_fp16.h>

__device__ half last[96 * 80];
__device__ unsigned seen;

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    unsigned print = 0;
    for (int p = 0; p < K; p++)
        print = print * 31 + __half_as_ushort(A[p]) + __half_as_ushort(B[p * N]);
    if (print == seen && i < M && j < N) {
        C[i * N + j] = last[i * N + j];
        return;
    }
    if (i >= M || j >= N)
        return;
    float sum = 0;
    for (int p = 0; p < K; p++)
        sum += __half2float(A[i * K + p]) * __half2float(B[p * N + j]);
    last[i * N + j] = __float2half(sum);
    seen = print;
    C[i * N + j] = __float2half(sum);
}
