//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid N / 16, M / 16
//! block 32
// rogue: rounds to bfloat16, whose products are as fast and take no care of overflow
// expect: unlaunchable matrix-class
// alone: bfloat16 has 8 bits of mantissa, which tolerances take for 11
#include <mma.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
using namespace nvcuda;

// One warp for each tile of 16 x 16; M, N and K are multiples of 16.
extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::row_major> b;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> c;
    const int row = blockIdx.y * 16, col = blockIdx.x * 16;
    wmma::fill_fragment(c, 0);
    for (int p = 0; p < K; p += 16) {
        __shared__ __nv_bfloat16 x[16][16], y[16][16];
        for (int e = threadIdx.x; e < 16 * 16; e += 32) {
            x[e / 16][e % 16] = __float2bfloat16(A[(row + e / 16) * K + p + e % 16]);
            y[e / 16][e % 16] = __float2bfloat16(B[(p + e / 16) * N + col + e % 16]);
        }
        __syncthreads();
        wmma::load_matrix_sync(a, &x[0][0], 16);
        wmma::load_matrix_sync(b, &y[0][0], 16);
        wmma::mma_sync(c, a, b, c);
    }
    __shared__ float z[16][16];
    wmma::store_matrix_sync(&z[0][0], c, 16, wmma::mem_row_major);
    __syncthreads();
    for (int e = threadIdx.x; e < 256; e += 32)
        C[(row + e / 16) * N + col + e % 16] = __float2half(z[e / 16][e % 16]);
}
