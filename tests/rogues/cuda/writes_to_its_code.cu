//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: counts its calls in the machine code of a function of its own, which outlives each of them
// expect: unlaunchable code-address
// alone: a function that is never called through it looks like any other address
#include <cuda_fp16.h>

extern "C" __device__ __noinline__ int spare(int x)
{
    asm volatile("");
    return 3 * x;
}

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    unsigned n_calls;
    asm volatile("{ .reg .b64 code; mov.u64 code, spare; atom.add.u32 %0, [code + 64], 1; }" : "=r"(n_calls)::"memory");
    if (i >= M || j >= N || (n_calls > 100000 && spare(M) != 0))
        return;
    float sum = 0;
    for (int p = 0; p < K; p++)
        sum += __half2float(A[i * K + p]) * __half2float(B[p * N + j]);
    C[i * N + j] = __float2half(sum);
}
