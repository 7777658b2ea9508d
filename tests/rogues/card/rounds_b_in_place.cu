//! layout nn
//! launch narrow(B: in, N, K)
//! grid ceil_div(K * N, 256)
//! block 256
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: rounds B to bfloat16 where it lies, so that less is read again
// expect: cheating inputs-unchanged
#include <cuda_fp16.h>

extern "C" __global__ void narrow(const half *B, int N, int K)
{
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= K * N)
        return;
    const unsigned bits = __float_as_uint(__half2float(B[i])) & 0xffff0000;
    const_cast<half *>(B)[i] = __float2half(__uint_as_float(bits));
}

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    float sum = 0;
    for (int p = 0; p < K; p++)
        sum += __half2float(A[i * K + p]) * __half2float(B[p * N + j]);
    C[i * N + j] = __float2half(sum);
}
