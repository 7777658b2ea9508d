//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid ceil_div(N, 16), ceil_div(M, 16)
//! block 16, 16
// rogue: reads tiles that other warps may not have written yet
// expect: incorrect exact-integers
// case: 256x256x2064x1
#include <cuda_fp16.h>

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    __shared__ float a[16][17], b[16][17];
    const int x = threadIdx.x, y = threadIdx.y, i = blockIdx.y * 16 + y, j = blockIdx.x * 16 + x;
    float sum = 0;
    for (int k = 0; k < K; k += 16) {
        a[y][x] = i < M && k + x < K ? __half2float(A[i * K + k + x]) : 0.0f;
        b[y][x] = j < N && k + y < K ? __half2float(B[(k + y) * N + j]) : 0.0f;
        for (int p = 0; p < 16; p++)
            sum += a[y][p] * b[p][x];
        __syncthreads();
    }
    if (i < M && j < N)
        C[i * N + j] = __float2half(sum);
}
