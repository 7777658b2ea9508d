//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: calls a virtual function
// expect: unlaunchable symbols
// then: unlaunchable indirect-call
#include <cuda_fp16.h>

struct Same {
    __device__ virtual float of(float x) { return x; }
};
struct Twice : Same {
    __device__ float of(float x) override { return 2 * x; }
};

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    float sum = 0;
    for (int p = 0; p < K; p++)
        sum += __half2float(A[i * K + p]) * __half2float(B[p * N + j]);
    Same same;
    Twice twice;
    Same *one = K % 2 ? &twice : &same;
    sum = one->of(sum);
    C[i * N + j] = __float2half(sum);
}
