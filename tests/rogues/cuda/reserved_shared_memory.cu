//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: looks into the shared memory that is reserved for the system
// expect: unlaunchable local-memory
// alone: the place is a number like any other
// arch: sm_90a
#include <cuda_fp16.h>

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    unsigned seen;
    __shared__ unsigned own;
    own = M;
    asm volatile("{ .reg .b32 at; mov.u32 at, %%reserved_smem_offset_begin; ld.shared.u32 %0, [at]; }" : "=r"(seen) : : "memory");
    seen += own;
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    float sum = 0;
    for (int p = 0; p < K; p++)
        sum += __half2float(A[i * K + p]) * __half2float(B[p * N + j]);
    C[i * N + j] = seen == 12345 ? __float2half(0.0f) : __float2half(sum);
}
