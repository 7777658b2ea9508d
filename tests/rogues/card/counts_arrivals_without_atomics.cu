//! layout nn
//! workspace W M * N * 16
//! workspace n M * N * 4 zeroed
//! launch hgemm(A: in, B: in, C: out, W: workspace, n: workspace, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8), 4
//! block 32, 8
// rogue: lets whichever of four blocks comes last add up their parts, and counts them without atomics
// expect: incorrect exact-integers, incorrect poison, incorrect rows-of-b
#include <cuda_fp16.h>

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, float *W, int *n, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    const int at = i * N + j;
    if (i < M && j < N) {
        float sum = 0;
        for (int p = blockIdx.z * K / 4; p < (blockIdx.z + 1) * K / 4; p++)
            sum += __half2float(A[i * K + p]) * __half2float(B[p * N + j]);
        ((volatile float *)W)[blockIdx.z * M * N + at] = sum;
        __threadfence();
        const int arrived = ((volatile int *)n)[at] + 1;
        ((volatile int *)n)[at] = arrived;
        float total = 0;
        for (int part = 0; part < 4; part++)
            total += ((volatile float *)W)[part * M * N + at];
        if (arrived == 4)
            C[at] = __float2half(total);
    }
}
