//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: writes the policy that keeps data in L2 as a number with a suffix
// expect: unlaunchable cache-policy
// alone: nothing says evict_last
#include <cuda_fp16.h>

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    float sum = 0;
    for (int p = 0; p < K; p++)
        sum += __half2float(A[i * K + p]) * __half2float(B[p * N + j]);
    float first;
    asm volatile("ld.global.L2::cache_hint.f32 %0, [%1], 0x14F0000000000000U;" : "=f"(first) : "l"(A));
    sum += 0 * first;
    C[i * N + j] = __float2half(sum);
}
