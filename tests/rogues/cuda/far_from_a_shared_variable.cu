//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: goes 16 MiB from a shared variable, to where local memory lies
// expect: unlaunchable local-memory
// alone: the load and the store name no address space
#include <cuda_fp16.h>

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    __shared__ unsigned near[4];
    unsigned seen;
    asm volatile("{ .reg .b64 at; add.u64 at, %1, 16777216; ld.u32 %0, [at]; st.u32 [at], %2; }"
                 : "=&r"(seen)
                 : "l"(near), "r"(M)
                 : "memory");
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    float sum = 0;
    for (int p = 0; p < K; p++)
        sum += __half2float(A[i * K + p]) * __half2float(B[p * N + j]);
    C[i * N + j] = seen == 12345 ? __float2half(0.0f) : __float2half(sum);
}
