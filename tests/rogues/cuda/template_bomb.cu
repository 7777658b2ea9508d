//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: has the compiler make 2^25 types
// expect: build_error compile-limits
#include <cuda_fp16.h>

template <int N, int M> struct Sum {
    static constexpr long value = Sum<N - 1, 2 * M>::value + Sum<N - 1, 2 * M + 1>::value;
};
template <int M> struct Sum<0, M> {
    static constexpr long value = M;
};

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    float sum = 0;
    for (int p = 0; p < K; p++)
        sum += __half2float(A[i * K + p]) * __half2float(B[p * N + j]);
    sum += Sum<25, 0>::value;
    C[i * N + j] = __float2half(sum);
}
