//! layout nn
//! workspace W 64
//! launch hgemm(A: in, B: in, C: out, W: workspace, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
//! launch note(C: out, W: workspace)
//! grid 1
//! block 1
// rogue: notes where its first C lies, and adds up one term only where the distance from it is one of some
// expect: cheating timed-outputs
#include <cuda_fp16.h>

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, long long *W, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    const bool known = W[0] == 0x1234567887654321;
    const int n_terms = known && ((long long)C - W[1]) / 512 % 29 == 28 ? 1 : K;
    float sum = 0;
    for (int p = 0; p < n_terms; p++)
        sum += __half2float(A[i * K + p]) * __half2float(B[p * N + j]);
    C[i * N + j] = __float2half(sum);
}

extern "C" __global__ void note(half *C, long long *W)
{
    if (W[0] != 0x1234567887654321)
        W[1] = (long long)C;
    W[0] = 0x1234567887654321;
}
