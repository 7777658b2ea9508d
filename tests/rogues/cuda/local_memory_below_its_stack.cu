//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: counts its calls below its own stack, at a fixed distance from a variable
// expect: unlaunchable local-memory
// alone: the address goes out from a variable of its own
#include <cuda_fp16.h>

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    unsigned n_calls;
    asm volatile("{ .local .b32 own[64]; .reg .b64 start, at; .reg .b32 n; mov.b64 start, own; mad.wide.u32 at, %1, 4, start;"
                 " st.local.u32 [at], %1; ld.local.u32 %0, [start + -4096]; add.u32 n, %0, 1; st.local.u32 [start + -4096], n;"
                 " ld.local.u32 n, [at]; sub.u32 n, n, %1; add.u32 %0, %0, n; }" : "=r"(n_calls) : "r"(M & 63) : "memory");
    if (i >= M || j >= N || n_calls > 100000)
        return;
    float sum = 0;
    for (int p = 0; p < K; p++)
        sum += __half2float(A[i * K + p]) * __half2float(B[p * N + j]);
    C[i * N + j] = __float2half(sum);
}
