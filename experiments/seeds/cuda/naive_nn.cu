//! layout    nn
//! launch    hgemm(A: in, B: in, C: out, M, N, K)
//! grid      ceil_div(N, BX), ceil_div(M, BY), BATCH
//! block     BX, BY
//
// The definition, word for word: every thread computes one element of C, one dot product, summed in float and rounded once.
// A is (M, K), B is (K, N), C is (M, N), all row-major; BATCH such products lie one after another, one for each blockIdx.z.
// Nothing is kept: what neighbouring threads have in common is read again, from L1 at best. Along BX, threads share an
// element of A and read neighbours of B: every read is one or a few whole lines.
#include <cuda_fp16.h>

constexpr int BX = 32;    //? 8 16 32 64
constexpr int BY = 8;     //? 1 2 4 8 16
constexpr int UNROLL = 4; //? 1 2 4 8

extern "C" __global__ void __launch_bounds__(BX * BY)
hgemm(const half *__restrict__ A, const half *__restrict__ B, half *__restrict__ C, int M, int N, int K)
{
    const int col = blockIdx.x * BX + threadIdx.x, row = blockIdx.y * BY + threadIdx.y;
    if (row >= M || col >= N)
        return;
    const half *a = A + blockIdx.z * ((size_t)M * K), *b = B + blockIdx.z * ((size_t)K * N);
    float sum = 0.0f;
#pragma unroll UNROLL
    for (int p = 0; p < K; p++)
        sum += __half2float(a[(size_t)row * K + p]) * __half2float(b[(size_t)p * N + col]);
    C[blockIdx.z * ((size_t)M * N) + (size_t)row * N + col] = __float2half_rn(sum);
}
