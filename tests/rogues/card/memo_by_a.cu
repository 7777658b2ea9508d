//! layout nn
//! workspace W 128 + M * N * 2
//! launch hgemm(A: in, B: in, C: out, W: workspace, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
//! launch keep(A: in, C: out, W: workspace, M, N)
//! grid ceil_div(M * N, 256)
//! block 256
// rogue: keeps its last result in its workspace, and hands it out again when A begins as it did then
// expect: cheating timed-outputs
// alone: with this gate off, the others let it pass
#include <cuda_fp16.h>

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, unsigned *W, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    bool known = true;
    for (int q = 0; q < 32; q++)
        known = known && ((const unsigned *)A)[q] == W[q];
    if (known) {
        C[i * N + j] = ((const half *)(W + 32))[i * N + j];
        return;
    }
    float sum = 0;
    for (int p = 0; p < K; p++)
        sum += __half2float(A[i * K + p]) * __half2float(B[p * N + j]);
    C[i * N + j] = __float2half(sum);
}

extern "C" __global__ void keep(const half *A, half *C, unsigned *W, int M, int N)
{
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < 32)
        W[i] = ((const unsigned *)A)[i];
    if (i < M * N)
        ((half *)(W + 32))[i] = C[i];
}
