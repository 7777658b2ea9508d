//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: reads what the driver keeps before the arguments through the address of one of them
// expect: unlaunchable call-number
// alone: an address of an argument is one of a tensor map, as a rule
// arch: sm_90a
#include <cuda_fp16.h>

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    float sum = 0;
    unsigned long long count;
    asm volatile("{ .reg .u64 a; mov.u64 a, hgemm_param_0; cvta.param.u64 a, a; ld.u64 %0, [a+-480]; }" : "=l"(count));
    if (count > 10000)
        return;
    for (int p = 0; p < K; p++)
        sum += __half2float(A[i * K + p]) * __half2float(B[p * N + j]);
    C[i * N + j] = __float2half(sum);
}
