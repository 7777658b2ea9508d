//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid N / 16, M / 16
//! block 32
// rogue: multiplies as TF32
// expect: unlaunchable matrix-class
// alone: it is right, but not of the declared class
#include <mma.h>
#include <cuda_fp16.h>
using namespace nvcuda;

// One warp for each tile of 16 x 16; M, N and K are multiples of 16.
extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    wmma::fragment<wmma::matrix_a, 16, 16, 8, wmma::precision::tf32, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, 16, 16, 8, wmma::precision::tf32, wmma::row_major> b;
    wmma::fragment<wmma::accumulator, 16, 16, 8, float> c;
    const int row = blockIdx.y * 16, col = blockIdx.x * 16;
    wmma::fill_fragment(c, 0);
    for (int p = 0; p < K; p += 8) {
        __shared__ float x[16][8], y[8][16];
        for (int e = threadIdx.x; e < 16 * 8; e += 32) {
            x[e / 8][e % 8] = __half2float(A[(row + e / 8) * K + p + e % 8]);
            y[e / 16][e % 16] = __half2float(B[(p + e / 16) * N + col + e % 16]);
        }
        __syncthreads();
        wmma::load_matrix_sync(a, &x[0][0], 8);
        wmma::load_matrix_sync(b, &y[0][0], 16);
        wmma::mma_sync(c, a, b, c);
    }
    __shared__ float z[16][16];
    wmma::store_matrix_sync(&z[0][0], c, 16, wmma::mem_row_major);
    __syncthreads();
    for (int e = threadIdx.x; e < 256; e += 32)
        C[(row + e / 16) * N + col + e % 16] = __float2half(z[e / 16][e % 16]);
}
