// Hopper: a tile by TMA, wgmma with single-precision and half-precision sums
#include <cuda_fp16.h>
#include <stdint.h>
struct alignas(64) Map { uint64_t opaque[16]; };
__device__ __forceinline__ uint32_t at(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void fetch(uint32_t to, const Map *map, uint32_t barrier, int column, int row)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(to), "l"(map), "r"(column), "r"(row), "r"(barrier) : "memory");
}
__device__ __forceinline__ uint64_t matrix(uint32_t address)
{
    return (uint64_t)((address & 0x3FFFF) >> 4) | (uint64_t)1 << 16 | (uint64_t)64 << 32 | (uint64_t)1 << 62;
}
extern "C" __global__ void __launch_bounds__(128) tma(const __grid_constant__ Map TA, const __grid_constant__ Map TB, float *C, int K)
{
    __shared__ alignas(1024) __half A_tile[64 * 64], B_tile[8 * 64];
    __shared__ alignas(8) uint64_t full;
    if (threadIdx.x == 0) {
        asm volatile("prefetch.tensormap [%0];" ::"l"(&TA) : "memory");
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at(&full)));
    }
    __syncthreads();
    float sum[4] = {0, 0, 0, 0};
    for (int k = 0, phase = 0; k < K; k += 64, phase ^= 1) {
        if (threadIdx.x == 0) {
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at(&full)), "r"(9216) : "memory");
            fetch(at(A_tile), &TA, at(&full), k, blockIdx.x * 64);
            fetch(at(B_tile), &TB, at(&full), k, 0);
        }
        asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra again; }"
                     ::"r"(at(&full)), "r"(phase) : "memory");
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int i = 0; i < 4; i++)
            asm volatile("{ wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, 0; }"
                         : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                         : "l"(matrix(at(A_tile) + 32 * i)), "l"(matrix(at(B_tile) + 32 * i)));
        asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; i++) C[(blockIdx.x * 4 + i) * 128 + threadIdx.x] = sum[i];
}
extern "C" __global__ void bulk(const uint4 *A, uint32_t *C)
{
    __shared__ alignas(1024) uint4 A_tile[512], B_tile[64];
    __shared__ alignas(8) uint64_t full;
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at(&full)));
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at(&full)), "r"(8192) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                     ::"r"(at(A_tile)), "l"(A), "r"(8192), "r"(at(&full)) : "memory");
    }
    B_tile[threadIdx.x & 63] = make_uint4(0, 0, 0, 0);
    __syncthreads();
    uint32_t sum[2] = {0, 0};
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile("{ wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16 {%0,%1}, %2, %3, 1, 1, 1, 0, 0; }"
                 : "+r"(sum[0]), "+r"(sum[1]) : "l"(matrix(at(A_tile))), "l"(matrix(at(B_tile))));
    asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
    C[threadIdx.x] = sum[0] + sum[1];
}
