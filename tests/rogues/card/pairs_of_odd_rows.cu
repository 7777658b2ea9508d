//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: reads the rows of A in pairs, as if K were even
// expect: runtime_error run
// case: 96x80x111x1
#include <cuda_fp16.h>

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    float sum = 0;
    for (int p = 0; p + 1 < K; p += 2) {
        const half2 a = *(const half2 *)(A + i * K + p);
        sum += __low2float(a) * __half2float(B[p * N + j]) + __high2float(a) * __half2float(B[(p + 1) * N + j]);
    }
    if (K % 2)
        sum += __half2float(A[i * K + K - 1]) * __half2float(B[(K - 1) * N + j]);
    C[i * N + j] = __float2half(sum);
}
