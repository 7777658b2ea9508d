//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: counts its calls in local memory that it reaches by an ordinary address, made of a number
// expect: unlaunchable local-memory
// alone: an ordinary address does not tell where it leads
#include <cuda_fp16.h>

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    unsigned n_calls;
    asm volatile("{ .reg .b64 at; cvta.local.u64 at, 16; ld.u32 %0, [at]; }" : "=r"(n_calls)::"memory");
    asm volatile("{ .reg .b64 at; cvta.local.u64 at, 16; st.u32 [at], %0; }" ::"r"(n_calls + 1) : "memory");
    if (i >= M || j >= N || n_calls > 100000)
        return;
    float sum = 0;
    for (int p = 0; p < K; p++)
        sum += __half2float(A[i * K + p]) * __half2float(B[p * N + j]);
    C[i * N + j] = __float2half(sum);
}
