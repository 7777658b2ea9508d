//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: has a function in assembly give back the policy that keeps data in L2
// expect: unlaunchable cache-policy
// alone: the register holds a harmless policy before
#include <cuda_fp16.h>

extern "C" __device__ __noinline__ void opens()
{
    asm volatile("ret; }\n .func (.param .b64 r) kept() { st.param.b64 [r], 0x14F0000000000000; ret; }\n .func closes() { ");
}

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    float sum = 0;
    opens();
    float first;
    asm volatile("{ .reg .b64 policy; mov.b64 policy, 0x12F0000000000000; call.uni (policy), kept, ();"
                 " ld.global.L2::cache_hint.f32 %0, [%1], policy; }" : "=f"(first) : "l"(A));
    sum += 0 * first;
    for (int p = 0; p < K; p++)
        sum += __half2float(A[i * K + p]) * __half2float(B[p * N + j]);
    C[i * N + j] = __float2half(sum);
}
