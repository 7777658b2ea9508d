//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: picks the function that it calls by a number
// expect: unlaunchable indirect-call
// then: unlaunchable code-address
#include <cuda_fp16.h>

typedef float (*Function)(float);
__device__ __noinline__ float same(float x) { return x; }
__device__ __noinline__ float other(float x) { return 2 * x; }

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    float sum = 0;
    for (int p = 0; p < K; p++)
        sum += __half2float(A[i * K + p]) * __half2float(B[p * N + j]);
    const Function function = K % 2 ? other : same;
    sum = function(sum);
    C[i * N + j] = __float2half(sum);
}
