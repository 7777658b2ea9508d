//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid 1
//! block 128
// rogue: multiplies FP8 by the warpgroup's instruction
// expect: unlaunchable matrix-class
// then: unlaunchable narrow-formats
// arch: sm_90a
#include <cuda_fp16.h>

// Shows the instruction alone: what the descriptors point to would be tiles in shared memory.
extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    __shared__ alignas(1024) half tile[2][64 * 64];
    const unsigned long long at = (unsigned)__cvta_generic_to_shared(tile) >> 4;
    unsigned d[2] = {};
    for (int p = 0; p < K; p += 32) {
        tile[0][threadIdx.x] = A[p];
        tile[1][threadIdx.x] = B[p];
        __syncthreads();
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        asm volatile("{ .reg .pred add; setp.eq.u32 add, 0, 0; "
                     "wgmma.mma_async.sync.aligned.m64n8k32.f16.e4m3.e4m3 {%0, %1}, %2, %3, add, 1, 1; }"
                     : "+r"(d[0]), "+r"(d[1]) : "l"(at), "l"(at + 512));
        asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;" ::: "memory");
    }
    C[threadIdx.x] = __ushort_as_half(d[0] & 0xffff);
}
