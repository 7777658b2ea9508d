//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: keeps rows of A and columns of B as bytes with a scale for each, in arithmetic that no gate on code sees
// expect: incorrect exact-integers
#include <cuda_fp16.h>

__device__ float scale_of(const half *values, int n, int step)
{
    float largest = 0x1p-24f;
    for (int i = 0; i < n; i++)
        largest = fmaxf(largest, fabsf(__half2float(values[i * step])));
    return largest / 127.0f;
}

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    const float a = scale_of(A + i * K, K, 1), b = scale_of(B + j, K, N);
    float sum = 0;
    for (int p = 0; p < K; p++)
        sum += rintf(__half2float(A[i * K + p]) / a) * a * (rintf(__half2float(B[p * N + j]) / b) * b);
    C[i * N + j] = __float2half(sum);
}
