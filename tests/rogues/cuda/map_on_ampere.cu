//! layout nn
//! launch hgemm(A: in, T: map, C: out, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
//! tensormap T: B, box 16, 16
// rogue: asks for a tensor map where there is none
// expect: unlaunchable tensor-maps
#include <cuda_fp16.h>

struct alignas(64) TensorMap {
    half rows[64];
};

extern "C" __global__ void hgemm(const half *A, const __grid_constant__ TensorMap T, half *C, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    float sum = 0;
    for (int p = 0; p < K; p++)
        sum += __half2float(A[i * K + p]) * __half2float(T.rows[3]);
    C[i * N + j] = __float2half(sum);
}
