//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: makes the policy out of a harmless one, by arithmetic
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
    asm volatile("{ .reg .b64 p; mov.b64 p, 0x12F0000000000000; xor.b64 p, p, 0x0600000000000000; "
                 "ld.global.L2::cache_hint.f32 %0, [%1], p; }" : "=f"(first) : "l"(A));
    sum += 0 * first;
    C[i * N + j] = __float2half(sum);
}
