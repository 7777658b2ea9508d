//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: keeps a count at an address that it sets itself
// expect: unlaunchable local-memory
// alone: nothing of its own lies there, and no gate knows what does
#include <cuda_fp16.h>

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    volatile unsigned *const count = (volatile unsigned *)0x7f1200000010ull;
    const unsigned seen = *count;
    *count = seen + 1;
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    float sum = 0;
    for (int p = 0; p < K; p++)
        sum += __half2float(A[i * K + p]) * __half2float(B[p * N + j]);
    C[i * N + j] = seen == 12345 ? __float2half(0.0f) : __float2half(sum);
}
