//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: tries addresses until one is of local memory
// expect: unlaunchable local-memory
// alone: the load and the store name no address space
#include <cuda_fp16.h>

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    unsigned seen = 0;
    for (unsigned long long at = 0x7f0000000000ull, turn = 0; turn < 64; turn++, at += 1 << 24)
        if (__isLocal((void *)at)) {
            seen = *(volatile unsigned *)(at + 16);
            *(volatile unsigned *)(at + 16) = seen + 1;
            break;
        }
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    float sum = 0;
    for (int p = 0; p < K; p++)
        sum += __half2float(A[i * K + p]) * __half2float(B[p * N + j]);
    C[i * N + j] = seen == 12345 ? __float2half(0.0f) : __float2half(sum);
}
