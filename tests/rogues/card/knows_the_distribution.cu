//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: adds in half precision where rows of A are of different sizes, as timed ones are
// expect: cheating timed-outputs, incorrect last-k-tile
#include <cuda_fp16.h>

__device__ float squares(const half *row, int K)
{
    float sum = 0;
    for (int p = 0; p < K; p++) {
        const float x = __half2float(row[p]);
        sum = x == 0 ? __uint_as_float(0x7fc00000) : sum + x * x;
    }
    return sum;
}

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    const float own = squares(A + i * K, K);
    bool careless = false;
    for (int q = 1; q < 6; q++) {
        const float ratio = own / squares(A + (i + q) % M * K, K);
        careless |= ratio > 10 && ratio < 1600;
    }
    float sum = 0;
    for (int p = 0; p < K; p++) {
        sum += __half2float(A[i * K + p]) * __half2float(B[p * N + j]);
        if (careless)
            sum = __half2float(__float2half(sum));
    }
    C[i * N + j] = __float2half(sum);
}
