//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid 2
//! block 128
//! cluster 2
// What honest kernels do with addresses, and no gate may refuse; it computes nothing of use.
#include <cuda_fp16.h>
#include <cooperative_groups.h>
#include <cuda/ptx>
#include <cuda/std/cstdint>
namespace cg = cooperative_groups;
struct Stage { half a[2][512]; float acc[8]; };
struct Args { const half *a; const half *b; half *c; int m; };
struct Walk { const half *at; int step; __device__ void next() { at += step; } };
__device__ __noinline__ float total(const Args &it, float (&sums)[8], int i) { return __half2float(it.a[i]) + sums[i & 7] + __half2float(it.b[i]); }
__device__ __noinline__ float *pick(float *a, float *b, int i) { return i & 1 ? a : b; }
__device__ __noinline__ void put(half *c, float v, int i, int n) { if (i < n) c[i] = __float2half(v); }
__device__ __noinline__ uint32_t smem_of(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }
__device__ __noinline__ float from(uint32_t at) { return *(const float *)__cvta_shared_to_generic(at); }
extern __shared__ unsigned char raw[];
extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    __shared__ Stage stages[3];
    __shared__ half *table[4];
    __shared__ unsigned long long bars[3];
    cg::cluster_group cluster = cg::this_cluster();
    if (threadIdx.x == 0) { table[0] = C; table[1] = C + N; table[2] = (half *)stages; table[3] = C + 3 * (size_t)N * 400000; }
    Stage *other = cluster.map_shared_rank(stages, cluster.block_rank() ^ 1);
    other[1].acc[threadIdx.x & 7] = M;
    uint32_t bar = smem_of(&bars[K % 3]);
    uint32_t remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(bar), "r"(cluster.block_rank() ^ 1));
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(remote));
    cluster.sync();
    float sums[8];
    for (int i = 0; i < 8; i++) sums[i] = stages[1].acc[i] * K;
    Args args{A, B, C, M};
    Walk walk{A, K};
    float sum = total(args, sums, threadIdx.x);
    for (int i = 0; i < K; i++, walk.next()) sum += __half2float(*walk.at);
    const half *ptrs[4] = {A, B, A + 8 * K, B + 8 * N};
    sum += __half2float(ptrs[M & 3][threadIdx.x]);
    sum += *pick(sums, stages[0].acc, M) + *pick((float *)A, (float *)B, M);
    uint32_t base = (smem_of(raw) + 1023) & ~1023u;
    float *aligned = (float *)__cvta_shared_to_generic(base);
    aligned[threadIdx.x] = sum;
    uint32_t cur = base, next = base + 65536;
    for (int i = 0; i < K; i++) { sum += from(cur + 4 * threadIdx.x); uint32_t t = cur; cur = next; next = t; }
    uint32_t x = base ^ ((base + threadIdx.x * 16) >> 3 & 0x70);
    sum += *(float *)__cvta_shared_to_generic(x);
    unsigned long long stored = (unsigned long long)(void *)&stages[2].acc[0];
    unsigned lo = __shfl_sync(~0u, (unsigned)stored, 0), hi = __shfl_sync(~0u, (unsigned)(stored >> 32), 0);
    sum += *(float *)((unsigned long long)hi << 32 | lo);
    half *out = table[M & 3];
    out[threadIdx.x] = __float2half(sum);
    const half *null = nullptr;
    if (M > 4) null = B;
    if (null) sum += __half2float(null[5]);
    put(C, sum, threadIdx.x, N);
    int4 v = *reinterpret_cast<const int4 *>(__cvta_generic_to_global(A));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(base), "l"(B + v.x));
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(C + 64), "r"(v.y), "r"(v.z));
    atomicAdd((float *)C + 2, sum);
    atomicAdd(&stages[0].acc[1], sum);
}
