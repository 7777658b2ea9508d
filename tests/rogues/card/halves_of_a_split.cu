//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: splits K in four, and hands the sums of the parts over as two halves each
// expect: incorrect cancellation
#include <cuda_fp16.h>

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    float total = 0;
    for (int part = 0; part < 4; part++) {
        float sum = 0;
        for (int p = part * K / 4; p < (part + 1) * K / 4; p++)
            sum += __half2float(A[i * K + p]) * __half2float(B[p * N + j]);
        const half high = __float2half(sum);
        const float left = sum - __half2float(high);
        const half low = __float2half(left - left == 0 ? left * 2048 : 0.0f);
        total += __half2float(high) + __half2float(low) / 2048;
    }
    C[i * N + j] = __float2half(total);
}
