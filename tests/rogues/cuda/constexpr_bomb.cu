//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: has the compiler count to 2^40
// expect: build_error compile
#include <cuda_fp16.h>

constexpr long count(long n)
{
    long sum = 0;
    for (long i = 0; i < n; i++)
        sum += i * sum;
    return sum;
}
constexpr long counted = count(1l << 40);

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    float sum = 0;
    for (int p = 0; p < K; p++)
        sum += __half2float(A[i * K + p]) * __half2float(B[p * N + j]);
    sum += counted;
    C[i * N + j] = __float2half(sum);
}
