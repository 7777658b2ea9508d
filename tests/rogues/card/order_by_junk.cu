//! layout nn
//! workspace W 64
//! launch hgemm(A: in, B: in, C: out, W: workspace, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: begins every sum at a place that the junk in its workspace names
// expect: incorrect determinism
// case: 96x80x2064x1
// alone: with this gate off, the others let it pass
#include <cuda_fp16.h>

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, const unsigned char *W, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    const int start = *W % K;
    float sum = 0;
    for (int q = 0; q < K; q++) {
        const int p = start + q < K ? start + q : start + q - K;
        sum += __half2float(A[i * K + p]) * __half2float(B[p * N + j]);
    }
    C[i * N + j] = __float2half(sum);
}
