//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: rounds to FP8 on the way, as if for speed
// expect: unlaunchable narrow-formats
// alone: there is no matrix instruction
// arch: sm_90a
#include <cuda_fp16.h>

__device__ float narrow(half x)
{
    unsigned short packed;
    unsigned wide;
    asm("cvt.rn.satfinite.e5m2x2.f16x2 %0, %1;" : "=h"(packed) : "r"((unsigned)__half_as_ushort(x)));
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(wide) : "h"(packed));
    return __half2float(__ushort_as_half(wide & 0xffff));
}

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    float sum = 0;
    for (int p = 0; p < K; p++)
        sum += narrow(A[i * K + p]) * narrow(B[p * N + j]);
    C[i * N + j] = __float2half(sum);
}
