//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: asks for half-precision sums after some turns of a loop
// expect: unlaunchable matrix-class
// alone: the descriptor before the loop says single precision
// arch: sm_100a
#include <cuda_fp16.h>

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    float sum = 0;
    __shared__ __align__(1024) unsigned char tiles[16384];
    __shared__ unsigned columns;
    const unsigned at = (unsigned)__cvta_generic_to_shared(tiles), sums = columns;
    const unsigned long long a = at, b = at + 64;
    unsigned what = 1u << 4 | 8u << 17 | 8u << 24;
    #pragma unroll 1
    for (int p = 0; p < K; p++) {
        asm volatile("{ .reg .pred q; setp.ne.b32 q, %4, 0; tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, q; }" ::
                     "r"(sums), "l"(a), "l"(b), "r"(what), "r"(p) : "memory");
        if (p > 3)
            what = 8u << 17 | 8u << 24;
    }
    for (int p = 0; p < K; p++)
        sum += __half2float(A[i * K + p]) * __half2float(B[p * N + j]);
    C[i * N + j] = __float2half(sum);
}
