// Blackwell: one tcgen05 product into tensor memory, with single-precision and with half-precision sums
#include <cuda_fp16.h>
#include <stdint.h>
__device__ __forceinline__ uint32_t at(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }
template <bool HALF> __device__ __forceinline__ void product(const uint4 *A, const uint4 *B, uint32_t *C)
{
    __shared__ alignas(1024) uint4 A_tile[2048], B_tile[1024];
    __shared__ alignas(8) uint64_t done;
    __shared__ uint32_t place;
    for (int i = threadIdx.x; i < 2048; i += 128) A_tile[i] = A[i];
    for (int i = threadIdx.x; i < 1024; i += 128) B_tile[i] = B[i];
    if (threadIdx.x < 32)
        asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 64;" ::"r"(at(&place)) : "memory");
    if (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at(&done)));
    __syncthreads();
    uint32_t to = place, kind = (HALF ? 0u : 1u << 4) | 8u << 17 | 8u << 24;
    uint64_t a = (at(A_tile) >> 4) | 1ull << 46, b = (at(B_tile) >> 4) | 1ull << 46;
    if (threadIdx.x == 0) {
        asm volatile("{ .reg .pred p; setp.ne.u32 p, 0, 1; tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p; }"
                     ::"r"(to), "l"(a), "l"(b), "r"(kind) : "memory");
        asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64 [%0];" ::"r"(at(&done)) : "memory");
    }
    asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @!p bra again; }"
                 ::"r"(at(&done)) : "memory");
    uint32_t value;
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%0}, [%1];\n\ttcgen05.wait::ld.sync.aligned;" : "=r"(value) : "r"(to));
    C[threadIdx.x] = value;
    __syncthreads();
    if (threadIdx.x < 32)
        asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 64;" ::"r"(to));
}
extern "C" __global__ void __launch_bounds__(128) singles(const uint4 *A, const uint4 *B, uint32_t *C) { product<false>(A, B, C); }
extern "C" __global__ void __launch_bounds__(128) halfs(const uint4 *A, const uint4 *B, uint32_t *C) { product<true>(A, B, C); }
