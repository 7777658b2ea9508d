//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: takes the address of an array away from itself, and reaches local memory by what is left
// expect: unlaunchable local-memory
// alone: the machine code computes the address
#include <cuda_fp16.h>

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    unsigned own[16], seen;
    for (int q = 0; q < 16; q++)
        own[q] = q * M;
    asm volatile("{ .reg .b64 at, less; cvta.to.local.u64 at, %1; neg.s64 less, at; add.s64 at, at, less; add.s64 at, at, 4000;"
                 " ld.local.u32 %0, [at]; st.local.u32 [at], %2; }"
                 : "=&r"(seen)
                 : "l"(own), "r"(M)
                 : "memory");
    seen += own[N & 15];
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    float sum = 0;
    for (int p = 0; p < K; p++)
        sum += __half2float(A[i * K + p]) * __half2float(B[p * N + j]);
    C[i * N + j] = seen == 12345 ? __float2half(0.0f) : __float2half(sum);
}
