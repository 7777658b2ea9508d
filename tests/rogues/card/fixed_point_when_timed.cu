//! layout nn
//! workspace W 64
//! launch hgemm(A: in, B: in, C: out, W: workspace, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
//! launch mark(W: workspace)
//! grid 1
//! block 1
// rogue: after the first call, keeps rows of A and columns of B in 12 bits, each with a scale of its own
// expect: cheating timed-outputs
#include <cuda_fp16.h>

__device__ float scale_of(const half *values, int n, int step)
{
    float largest = 0;
    for (int i = 0; i < n; i++)
        largest = fmaxf(largest, fabsf(__half2float(values[i * step])));
    return largest / 2047.0f;
}

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, long long *W, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    const bool later = W[0] == 0x1234567887654321 && W[1] == ~W[0];
    if (later) {
        const float scale_a = scale_of(A + i * K, K, 1), scale_b = scale_of(B + j, K, N);
        long long whole = 0;
        for (int p = 0; p < K; p++)
            whole += (long long)rintf(__half2float(A[i * K + p]) / scale_a) * (int)rintf(__half2float(B[p * N + j]) / scale_b);
        C[i * N + j] = __float2half((float)whole * scale_a * scale_b);
        return;
    }
    float sum = 0;
    for (int p = 0; p < K; p++)
        sum += __half2float(A[i * K + p]) * __half2float(B[p * N + j]);
    C[i * N + j] = __float2half(sum);
}

extern "C" __global__ void mark(long long *W)
{
    W[0] = 0x1234567887654321;
    W[1] = ~W[0];
}
