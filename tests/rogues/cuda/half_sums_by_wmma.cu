//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid N / 16, M / 16
//! block 32
// rogue: adds up in half by the portable interface
// expect: unlaunchable matrix-class
// alone: sums in half pass every test with short sums
#include <mma.h>
#include <cuda_fp16.h>
using namespace nvcuda;

// One warp for each tile of 16 x 16; M, N and K are multiples of 16.
extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> b;
    wmma::fragment<wmma::accumulator, 16, 16, 16, half> c;
    const int row = blockIdx.y * 16, col = blockIdx.x * 16;
    wmma::fill_fragment(c, 0);
    for (int p = 0; p < K; p += 16) {
        wmma::load_matrix_sync(a, A + row * K + p, K);
        wmma::load_matrix_sync(b, B + p * N + col, N);
        wmma::mma_sync(c, a, b, c);
    }
    wmma::store_matrix_sync(C + row * N + col, c, N, wmma::mem_row_major);
}
