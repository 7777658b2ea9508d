// Staged copies and half-precision sums; and an entry with integer matrices
#include <cuda_fp16.h>
#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void halves(const __half *A, const __half *B, __half *C, int M, int N, int K)
{
    __shared__ __half tile[2][256];
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> b;
    wmma::fragment<wmma::accumulator, 16, 16, 16, __half> c;
    wmma::fill_fragment(c, __float2half(0.0f));
    for (int k = 0; k < K; k += 16) {
        *(uint4 *)&tile[0][threadIdx.x * 8] = *(const uint4 *)&A[k + threadIdx.x * 8];
        *(uint4 *)&tile[1][threadIdx.x * 8] = *(const uint4 *)&B[k * N + threadIdx.x * 8];
        __syncthreads();
        wmma::load_matrix_sync(a, tile[0], 16);
        wmma::load_matrix_sync(b, tile[1], 16);
        wmma::mma_sync(c, a, b, c);
        __syncthreads();
    }
    wmma::store_matrix_sync(C, c, N, wmma::mem_row_major);
}
extern "C" __global__ void bytes(const signed char *A, const signed char *B, int *C)
{
    wmma::fragment<wmma::matrix_a, 16, 16, 16, signed char, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, signed char, wmma::row_major> b;
    wmma::fragment<wmma::accumulator, 16, 16, 16, int> c;
    wmma::fill_fragment(c, 0);
    wmma::load_matrix_sync(a, A, 16);
    wmma::load_matrix_sync(b, B, 16);
    wmma::mma_sync(c, a, b, c);
    wmma::store_matrix_sync(C, c, 16, wmma::mem_row_major);
}
