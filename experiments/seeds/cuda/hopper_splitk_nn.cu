//! layout    nn
//! tensormap TA: A, box 1, BM, BK, swizzle 128, promotion 128
//! tensormap TB: B, box 1, BK, 64, swizzle 128, promotion 128
//! launch    hgemm(TA: map, TB: map, C: out, M, N, K)
//! grid      SPLITS * ceil_div(N, BN), ceil_div(M, BM), BATCH
//! cluster   SPLITS
//! block     THREADS
//! shared    STAGES * STAGE_BYTES + BM * PITCH + 1024
//
// For Hopper alone (sm_90a), and products with few tiles: the SPLITS blocks of a cluster share a tile of C, and each walks
// along its part of K, as in the seed "hopper". Then every block sends its sums, floats, straight to the shared memory of
// the block that adds up their rows: one launch, no workspace, always the same order. Small products are a matter of
// latency, thin ones of bytes on their way: the producer asks for STAGES tiles first of all, and all of shared memory but
// the room for sums may be slots. PITCH keeps neighbouring rows of sums in different banks. TMA writes zeros for what lies
// past an edge, in each of the BATCH matrices by itself. Its strides are multiples of 16 bytes: K % 8 == 0 and N % 8 == 0
// have to hold, while M may be anything. B's tile lies as in memory, in blocks of BK x 64: wgmma transposes it.
#include <cuda_fp16.h>

#define min(a, b) ((a) < (b) ? (a) : (b)) // the one of CUDA is no constant

constexpr int BN = 64;       //? 64 128
constexpr int CONSUMERS = 1; //? 1 2
constexpr int DEPTH = 8;     //? 4 5 6 8 12
constexpr int SPLITS = 2;    //? 1 2 4 8

constexpr int BK = 64;
constexpr int BM = 64 * CONSUMERS;
constexpr int ROWS = BM / SPLITS; // of the tile that one block adds up
constexpr int THREADS = 128 * CONSUMERS + 32;
constexpr int STAGE_BYTES = (BM + BN) * BK * 2;
constexpr int PITCH = BN * 4 + 32; // bytes from one row of sums in shared memory to the next
constexpr int ROOM = (230000 - BM * PITCH) / STAGE_BYTES;
constexpr int STAGES = min(DEPTH, ROOM);

// As the driver's CUtensorMap: 128 bytes that only the copy engine reads.
struct alignas(64) TensorMap {
    unsigned long long opaque[16];
};

__device__ unsigned shared_address(const void *pointer)
{
    return (unsigned)__cvta_generic_to_shared(pointer);
}

__device__ void wait(unsigned barrier, int parity)
{
    unsigned done;
    do
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    while (!done);
}

__device__ void arrive(unsigned barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Starts the copy of a box at (batch, row, col); its bytes are counted by the barrier. Few blocks read a byte, all of them at
// about the same time, so that it may leave L2 first.
__device__ void copy(unsigned to, const TensorMap &map, int col, int row, int batch, unsigned barrier)
{
    asm volatile("{ .reg .b64 first; createpolicy.fractional.L2::evict_first.b64 first, 1.0; "
                 "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%2, %3, %4}], [%5], first; }"
                 ::"r"(to), "l"(&map), "r"(col), "r"(row), "r"(batch), "r"(barrier) : "memory");
}

// The address of the same place in another block of the cluster.
__device__ unsigned there(unsigned address, int block)
{
    unsigned result;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(result) : "r"(address), "r"(block));
    return result;
}

// Where wgmma finds a tile: address, distance of its blocks of 64 columns (for transposed operands alone), distance of its
// groups of eight rows (1024 bytes), swizzle 128; in units of 16 bytes.
__device__ unsigned long long descriptor(unsigned address)
{
    return (address & 0x3ffff) >> 4 | 8192ll / 16 << 16 | 1024ll / 16 << 32 | 1ll << 62;
}

// sums += A B for 64 x BN sums of a warpgroup and 16 steps of K; one instruction for each BN, as it names every register.
#define S4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define S16(i) S4(i), S4(i + 4), S4(i + 8), S4(i + 12)
#define S32(i) S16(i), S16(i + 16)
#define R32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define R64 \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA(n, registers, a, b, ...) \
    asm volatile("{ .reg .pred add; setp.eq.u32 add, 0, 0; " \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.f16.f16 {" registers "}, " \
                 a ", " b ", add, 1, 1, 0, 1; }" : __VA_ARGS__ : "l"(tile_a), "l"(tile_b))

__device__ void wgmma(float (&d)[32], unsigned long long tile_a, unsigned long long tile_b)
{
    WGMMA(64, R32, "%32", "%33", S32(0));
}

__device__ void wgmma(float (&d)[64], unsigned long long tile_a, unsigned long long tile_b)
{
    WGMMA(128, R32 R64, "%64", "%65", S32(0), S32(32));
}

extern "C" __global__ void __cluster_dims__(SPLITS) __launch_bounds__(THREADS, 1)
hgemm(const __grid_constant__ TensorMap TA, const __grid_constant__ TensorMap TB, half *__restrict__ C, int M, int N, int K)
{
    extern __shared__ char memory[];
    __shared__ unsigned long long barriers[2 * STAGES];
    const unsigned tiles = (shared_address(memory) + 1023) / 1024 * 1024; // the swizzle counts from here
    const unsigned full = shared_address(barriers), empty = full + 8 * STAGES;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, rank = blockIdx.x % SPLITS;
    const int row0 = blockIdx.y * BM, col0 = blockIdx.x / SPLITS * BN, all_steps = (K + BK - 1) / BK;
    const int first = all_steps * rank / SPLITS, n_steps = all_steps * (rank + 1) / SPLITS - first;
    const unsigned sums_at = tiles + STAGES * STAGE_BYTES;
    const bool is_producer = threadIdx.x == 128 * CONSUMERS;

    const auto fill = [&](int step) {
        const int slot = step % STAGES, k = (first + step) * BK;
        const unsigned tile_a = tiles + slot * STAGE_BYTES, tile_b = tile_a + BM * BK * 2;
        if (step >= STAGES)
            wait(empty + 8 * slot, (step / STAGES - 1) % 2);
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                     ::"r"(full + 8 * slot), "r"(STAGE_BYTES) : "memory");
        copy(tile_a, TA, k, row0, blockIdx.z, full + 8 * slot);
        for (int j = 0; j < BN; j += 64)
            copy(tile_b + j * BK * 2, TB, col0 + j, k, blockIdx.z, full + 8 * slot);
    };
    if (is_producer) {
        for (int s = 0; s < STAGES; s++) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(full + 8 * s), "r"(1) : "memory");
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(empty + 8 * s), "r"(4 * CONSUMERS) : "memory");
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        for (int step = 0; step < min(STAGES, n_steps); step++)
            fill(step);
    }
    __syncthreads();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");

    if (is_producer) {
        for (int step = STAGES; step < n_steps; step++)
            fill(step);
    } else if (warp < 4 * CONSUMERS) {
        float sums[BN / 2] = {};
        for (int step = 0; step < n_steps; step++) {
            const int slot = step % STAGES;
            const unsigned tile = tiles + slot * STAGE_BYTES;
            const unsigned tile_a = tile + warp / 4 * (64 * BK * 2), tile_b = tile + BM * BK * 2;
            wait(full + 8 * slot, step / STAGES % 2);
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
            for (int p = 0; p < BK; p += 16)
                wgmma(sums, descriptor(tile_a) + p * 2 / 16, descriptor(tile_b) + p * 128 / 16);
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
            // This step's instructions may go on; those of the step before are done, and with them its slot.
            asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
            if (step > 0 && lane == 0)
                arrive(empty + 8 * ((step - 1) % STAGES));
        }
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
        for (int e = 0; e < BN / 2; e++)
            asm volatile("" : "+f"(sums[e])::"memory"); // nothing reads a sum before that wait

        // Sums go to the block that adds up their rows, once it is known to run.
        asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int r = warp * 16 + h * 8 + lane / 4;
            const unsigned to = there(sums_at + (rank * ROWS + r % ROWS) * PITCH + lane % 4 * 8, r / ROWS);
#pragma unroll
            for (int e = 0; e < BN / 2; e += 4)
                asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};"
                             ::"r"(to + e * 8), "f"(sums[e + 2 * h]), "f"(sums[e + 2 * h + 1]) : "memory");
        }
    }
    if (warp == 4 * CONSUMERS)
        asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
    if (warp == 4 * CONSUMERS)
        return;

    // Each block adds up its part of the rows, always in the same order, and rounds once.
    const int column = threadIdx.x % (BN / 4) * 4, col = col0 + column;
    half *c = C + blockIdx.z * ((size_t)M * N);
#pragma unroll
    for (int r = threadIdx.x / (BN / 4); r < ROWS; r += 512 * CONSUMERS / BN) {
        float4 parts[SPLITS], sum = {};
#pragma unroll
        for (int s = 0; s < SPLITS; s++)
            asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                         : "=f"(parts[s].x), "=f"(parts[s].y), "=f"(parts[s].z), "=f"(parts[s].w)
                         : "r"(sums_at + (s * ROWS + r) * PITCH + column * 4));
#pragma unroll
        for (int s = 0; s < SPLITS; s++)
            sum.x += parts[s].x, sum.y += parts[s].y, sum.z += parts[s].z, sum.w += parts[s].w;
        const int row = row0 + rank * ROWS + r;
        const half2 pairs[2] = {__floats2half2_rn(sum.x, sum.y), __floats2half2_rn(sum.z, sum.w)};
        if (row < M && col < N)
            *(uint2 *)(c + (size_t)row * N + col) = *(uint2 *)pairs;
    }
}
