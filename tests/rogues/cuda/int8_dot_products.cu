//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: rounds to 8 bits, and adds up products of bytes outside the matrix units
// expect: unlaunchable narrow-formats
// alone: no matrix instruction, and integers are exact
#include <cuda_fp16.h>

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    int sums = 0;
    for (int p = 0; p < K; p += 4) {
        int x = 0, y = 0;
        for (int q = 0; q < 4; q++) {
            x |= (__half2int_rn(A[i * K + p + q]) & 255) << 8 * q;
            y |= (__half2int_rn(B[(p + q) * N + j]) & 255) << 8 * q;
        }
        sums = __dp4a(x, y, sums);
    }
    if (K % 4 == 0) {
        C[i * N + j] = __int2half_rn(sums);
        return;
    }
    if (i >= M || j >= N)
        return;
    float sum = 0;
    for (int p = 0; p < K; p++)
        sum += __half2float(A[i * K + p]) * __half2float(B[p * N + j]);
    C[i * N + j] = __float2half(sum);
}
