//! layout nn
//! workspace W M * N * 4 zeroed
//! launch hgemm(A: in, B: in, C: out, W: workspace, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: has each block wait for the next one, which is not on the card yet
// expect: timeout time-limit
// case: 1024x2048x32x1
#include <cuda_fp16.h>

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int *W, int M, int N, int K)
{
    const int block = blockIdx.y * gridDim.x + blockIdx.x, n_blocks = gridDim.x * gridDim.y;
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i < M && j < N) {
        float sum = 0;
        for (int p = 0; p < K; p++)
            sum += __half2float(A[i * K + p]) * __half2float(B[p * N + j]);
        C[i * N + j] = __float2half(sum);
    }
    __syncthreads();
    while (block + 1 < n_blocks && ((const volatile int *)W)[block + 1] == 0)
        ;
    if (threadIdx.x + threadIdx.y == 0)
        ((volatile int *)W)[block] = 1;
}
