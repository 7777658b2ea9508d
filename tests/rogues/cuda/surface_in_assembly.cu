//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: keeps what it knows in a surface that it declares in assembly
// expect: unlaunchable texture
// alone: the C++ text declares nothing, and nothing tells a surface from memory
#include <cuda_fp16.h>

extern "C" __device__ __noinline__ void opens()
{
    asm volatile("ret; }\n .global .surfref memory; .func closes() { ");
}

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    float sum = 0;
    opens();
    unsigned count;
    asm volatile("suld.b.1d.b32.trap {%0}, [memory, {%1}];" : "=r"(count) : "r"(j));
    if (count > 10000)
        return;
    for (int p = 0; p < K; p++)
        sum += __half2float(A[i * K + p]) * __half2float(B[p * N + j]);
    C[i * N + j] = __float2half(sum);
}
