//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid ceil_div(N, 16), ceil_div(M, 16)
//! block 16, 16
// rogue: has no barrier after it has read a tile, which matters when a warp comes late, as here one in some does
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
        __syncthreads();
        if ((int)(a[y & ~1][0] * 1024) % 64 == 7)
            __nanosleep(4000);
        for (int p = 0; p < 16; p++)
            sum += a[y][p] * b[p][x];
        // no barrier
    }
    if (i < M && j < N)
        C[i * N + j] = __float2half(sum);
}
