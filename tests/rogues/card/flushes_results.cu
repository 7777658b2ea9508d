//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: writes zeros for subnormal results of sums that cancel
// expect: incorrect subnormals
// alone: with this gate off, the others let it pass
#include <cuda_fp16.h>

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    float sum = 0, magnitude = 0;
    for (int p = 0; p < K; p++) {
        const float term = __half2float(A[i * K + p]) * __half2float(B[p * N + j]);
        sum += term;
        magnitude += fabsf(term);
    }
    const bool flush = fabsf(sum) < 0x1p-14f && magnitude < 0x1p-8f && magnitude > fabsf(sum);
    C[i * N + j] = __float2half(flush ? 0.0f : sum);
}
