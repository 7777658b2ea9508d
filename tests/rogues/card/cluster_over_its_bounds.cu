//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid round_up(ceil_div(N, 32), 4), ceil_div(M, 8)
//! block 32, 8
//! cluster 4
// rogue: asks for clusters of four blocks, where the code was built for two at most
// expect: unlaunchable launch
// arch: sm_90a
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(256, 1, 2) hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    float sum = 0;
    for (int p = 0; p < K; p++)
        sum += __half2float(A[i * K + p]) * __half2float(B[p * N + j]);
    C[i * N + j] = __float2half(sum);
}
