//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: declares and calls the runtime's launch in assembly
// expect: build_error compile
#include <cuda_fp16.h>

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= M || j >= N)
        return;
    float sum = 0;
    for (int p = 0; p < K; p++)
        sum += __half2float(A[i * K + p]) * __half2float(B[p * N + j]);
    if (sum > 1e30f)
        asm volatile("{ .reg .b32 r; .param .b32 x; .param .b64 p; st.param.b64 [p], %0; call.uni (x), cudaLaunch" "DeviceV2, (p, p); }" ::"l"(C));
    C[i * N + j] = __float2half(sum);
}
