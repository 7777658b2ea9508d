//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: adds to what it finds in shared memory, where blocks before it have been
// expect: incorrect exact-integers
// case: 1024x512x64x1
#include <cuda_fp16.h>

__device__ float sum_of(const half *a, const half *b, int N, int K)
{
    float sum = 0;
    for (int p = 0; p < K; p++)
        sum += __half2float(a[p]) * __half2float(b[p * N]);
    return sum;
}

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    __shared__ volatile float sums[8][32];
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    sums[threadIdx.y][threadIdx.x] += sum_of(A + i * K, B + j, N, K);
    C[i * N + j] = __float2half(sums[threadIdx.y][threadIdx.x]);
}
