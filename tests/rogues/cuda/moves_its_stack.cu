//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: moves its stack to where an earlier launch left a count
// expect: unlaunchable local-memory
// alone: where a stack pointer comes from does not show where it is used
#include <cuda_fp16.h>

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    unsigned n_calls;
    asm volatile("{ .reg .b64 before, there, start, at; .local .b32 own[64]; stacksave.u64 before; add.u64 there, before, -4096;"
                 " stackrestore.u64 there; mov.b64 start, own; mad.wide.u32 at, %1, 4, start; ld.local.u32 %0, [at];"
                 " add.u32 %0, %0, 1; st.local.u32 [at], %0; stackrestore.u64 before; }"
                 : "=r"(n_calls) : "r"(M & 63) : "memory");
    if (i >= M || j >= N || n_calls > 100000)
        return;
    float sum = 0;
    for (int p = 0; p < K; p++)
        sum += __half2float(A[i * K + p]) * __half2float(B[p * N + j]);
    C[i * N + j] = __float2half(sum);
}
