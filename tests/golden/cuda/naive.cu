// One dot product for each element; globals of every sort
#include <cuda_fp16.h>
constexpr int UNUSED = 128;
__constant__ float scales[4];
__device__ unsigned calls;
__device__ float memo[32] = {1.0f};
__device__ const float fixed[4] = {1.0f, 3.0f, 5.0f, 7.0f};
extern "C" __global__ void naive(const __half *A, const __half *B, __half *C, int M, int N, int K)
{
    float sum = scales[M & 3] + fixed[K & 3];
    for (int k = 0; k < K; k++)
        sum += __half2float(A[blockIdx.x * K + k]) * __half2float(B[k * N + threadIdx.x]);
    if (threadIdx.x == 0) memo[atomicAdd(&calls, 1u) & 31] = sum;
    C[blockIdx.x * N + threadIdx.x] = __float2half(sum + memo[K & 31]);
}
