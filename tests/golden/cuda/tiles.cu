// mma.sync with ldmatrix and cp.async; edges left out
#include <cuda_fp16.h>
constexpr int BK = 32;
__device__ __noinline__ float scale(float x, int n) { return x * (float)n; }
extern "C" __global__ void __launch_bounds__(128) tiles(const __half *A, const __half *B, __half *C, int M, int N, int K)
{
    extern __shared__ __half dynamic[];
    __shared__ __half B_tile[32 * 32];
    unsigned a = (unsigned)__cvta_generic_to_shared(dynamic + threadIdx.x * 8);
    unsigned b = (unsigned)__cvta_generic_to_shared(B_tile + threadIdx.x * 8);
    float sum[4] = {0, 0, 0, 0};
    for (int k = 0; k < K; k += BK) {
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(a), "l"(A + blockIdx.x * K + k + threadIdx.x * 8));
        asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(b), "l"(B + blockIdx.y * K + k + threadIdx.x * 8));
        asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;");
        __syncthreads();
        unsigned x[4], y[2];
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(a));
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(y[0]), "=r"(y[1]) : "r"(b));
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                     : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
        __syncthreads();
    }
    if (threadIdx.x < M)
        C[threadIdx.x * N] = __float2half(scale(sum[0] + sum[1], N) + sum[2] + sum[3]);
}
