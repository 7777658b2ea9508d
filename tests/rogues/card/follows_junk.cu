//! layout nn
//! workspace W 64
//! launch hgemm(A: in, B: in, C: out, W: workspace, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: takes junk in its workspace for an address
// expect: runtime_error run
#include <cuda_fp16.h>

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, const half **W, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    const half *a = W[0];
    float sum = 0;
    for (int p = 0; p < K; p++)
        sum += __half2float(a[i * K + p]) * __half2float(B[p * N + j]);
    C[i * N + j] = __float2half(sum);
}
