//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: counts its calls in local memory beside an array of its own, which makes it look like a kernel that spills
// expect: unlaunchable local-memory
// alone: its stack is its own, so that the machine code alone does not tell
#include <cuda_fp16.h>

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    float recent[64];
    for (int p = 0; p < 64; p++)
        recent[p] = __half2float(A[p * (M & 7)]);
    unsigned n_calls;
    unsigned long long at = (M & 1) + 64;
    asm volatile("ld.local.u32 %0, [%1];" : "=r"(n_calls) : "l"(at) : "memory");
    asm volatile("st.local.u32 [%1], %0;" ::"r"(n_calls + (recent[N & 63] != 1e30f)), "l"(at) : "memory");
    if (i >= M || j >= N || n_calls > 100000)
        return;
    float sum = 0;
    for (int p = 0; p < K; p++)
        sum += __half2float(A[i * K + p]) * __half2float(B[p * N + j]);
    C[i * N + j] = __float2half(sum);
}
