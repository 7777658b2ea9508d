//! layout    nn
//! tensormap TA: A, box 1, BM, BK, swizzle 128, promotion 256
//! tensormap TB: B, box 1, BK / CLUSTER, 64, swizzle 128, promotion 256
//! launch    hgemm(TA: map, TB: map, C: out, M, N, K, BATCH)
//! grid      CLUSTER * min(SMS / CLUSTER, ceil_div(M, BM * CLUSTER) * ceil_div(N, BN) * BATCH)
//! cluster   CLUSTER
//! block     THREADS
//! shared    STAGES * STAGE_BYTES + BM * 128 + 1024
//
// For Hopper alone (sm_90a), and large products: tiles come by the copy engine (TMA), and the warpgroup's matrix
// instruction, wgmma, multiplies them straight from shared memory, with sums in float. The last warp is the producer; the
// CONSUMERS warpgroups before it own 64 rows of a tile each. STAGES tiles of A and B are on their way; a barrier each says
// "full" or "empty". CLUSTER blocks with tiles below each other need one tile of B: each copies a part of it to all. Blocks
// stay and walk over tiles: while sums leave, by way of shared memory as whole rows, the next tile comes. BK is 64, so that
// TMA's swizzle 128 avoids bank conflicts. It writes zeros for what lies past an edge, in each of the BATCH matrices by
// itself. Its strides are multiples of 16 bytes: K % 8 == 0 and N % 8 == 0 have to hold, while M may be anything. B's tile
// lies as in memory, in blocks of BK x 64: wgmma transposes it.
#include <cuda_fp16.h>

#define min(a, b) ((a) < (b) ? (a) : (b)) // the one of CUDA is no constant

constexpr int BN = 256;      //? 64 128 256
constexpr int CONSUMERS = 2; //? 1 2
constexpr int DEPTH = 4;     //? 3 4 6 8
constexpr int CLUSTER = 2;   //? 1 2 4
constexpr int GROUP = 8;     //? 1 2 4 8 16

constexpr int BK = 64;
constexpr int BM = 64 * CONSUMERS;
constexpr int THREADS = 128 * CONSUMERS + 32;
constexpr int STAGE_BYTES = (BM + BN) * BK * 2;
constexpr int ROOM = (230000 - BM * 128) / STAGE_BYTES;
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

// One lane for each block of the cluster says there that this warp has read a slot.
__device__ void release(unsigned barrier)
{
    const int lane = threadIdx.x % 32;
    if (lane < CLUSTER)
        asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; "
                     "mbarrier.arrive.shared::cluster.b64 _, [there]; }" ::"r"(barrier), "r"(lane) : "memory");
}

// Starts the copy of a box at (batch, row, col) to one block or all of the cluster, each of which counts its bytes.
#define COPY "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
__device__ void copy(unsigned to, const TensorMap &map, int col, int row, int batch, unsigned barrier)
{
    asm volatile(COPY " [%0], [%1, {%2, %3, %4}], [%5];"
                 ::"r"(to), "l"(&map), "r"(col), "r"(row), "r"(batch), "r"(barrier) : "memory");
}

__device__ void copy_to_all(unsigned to, const TensorMap &map, int col, int row, int batch, unsigned barrier)
{
    asm volatile(COPY ".multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;"
                 ::"r"(to), "l"(&map), "r"(col), "r"(row), "r"(batch), "r"(barrier), "h"((short)((1 << CLUSTER) - 1))
                 : "memory");
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
#define R128 \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
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

__device__ void wgmma(float (&d)[128], unsigned long long tile_a, unsigned long long tile_b)
{
    WGMMA(256, R32 R64 R128, "%128", "%129", S32(0), S32(32), S32(64), S32(96));
}

// GROUP rows of tiles are walked together, column by column, so that blocks that run at the same time share L2.
struct Place {
    int row, col, batch;
    __device__ Place(int tile, int n_rows, int n_cols)
    {
        const int index = tile % (n_rows * n_cols), first = index / (GROUP * n_cols) * GROUP;
        const int height = min(GROUP, n_rows - first), in_group = index - first * n_cols;
        batch = tile / (n_rows * n_cols);
        row = first + in_group % height;
        col = in_group / height;
    }
};

// A slot of the ring, and the parity of its turn.
struct Slot {
    int index = 0, parity = 0;
    __device__ void next()
    {
        if (++index == STAGES)
            index = 0, parity ^= 1;
    }
};

extern "C" __global__ void __cluster_dims__(CLUSTER) __launch_bounds__(THREADS, 1)
hgemm(const __grid_constant__ TensorMap TA, const __grid_constant__ TensorMap TB, half *__restrict__ C, int M, int N, int K,
      int BATCH)
{
    extern __shared__ char memory[];
    __shared__ unsigned long long barriers[2 * STAGES];
    const unsigned tiles = (shared_address(memory) + 1023) / 1024 * 1024; // the swizzle counts from here
    const unsigned full = shared_address(barriers), empty = full + 8 * STAGES;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_steps = (K + BK - 1) / BK;
    const int n_rows = (M + BM * CLUSTER - 1) / (BM * CLUSTER), n_cols = (N + BN - 1) / BN, rank = blockIdx.x % CLUSTER;
    const bool is_producer = threadIdx.x == 128 * CONSUMERS;

    if (is_producer) {
        for (int s = 0; s < STAGES; s++) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(full + 8 * s), "r"(1) : "memory");
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(empty + 8 * s), "r"(4 * CONSUMERS * CLUSTER)
                         : "memory");
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    if (CLUSTER > 1 || !is_producer) // a block of its own need not wait for others to begin
        asm volatile("barrier.cluster.wait.acquire;" ::: "memory");

    Slot slot;
    for (int t = blockIdx.x / CLUSTER; t < n_rows * n_cols * BATCH; t += gridDim.x / CLUSTER) {
        const Place place(t, n_rows, n_cols);
        const int row0 = (place.row * CLUSTER + rank) * BM, col0 = place.col * BN;

        if (warp == 4 * CONSUMERS) {
            for (int k = 0; is_producer && k < n_steps * BK; k += BK, slot.next()) {
                const unsigned tile_a = tiles + slot.index * STAGE_BYTES, tile_b = tile_a + BM * BK * 2;
                const unsigned barrier = full + 8 * slot.index, share = BK / CLUSTER * rank;
                wait(empty + 8 * slot.index, slot.parity ^ 1); // at once in the first turn
                asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                             ::"r"(barrier), "r"(STAGE_BYTES) : "memory");
                copy(tile_a, TA, k, row0, place.batch, barrier);
                for (int j = 0; j < BN; j += 64)
                    if (CLUSTER == 1)
                        copy(tile_b + j * BK * 2, TB, col0 + j, k, place.batch, barrier);
                    else
                        copy_to_all(tile_b + j * BK * 2 + share * 128, TB, col0 + j, k + share, place.batch, barrier);
            }
            continue;
        }

        float sums[BN / 2] = {};
        unsigned before = 0;
        for (int step = 0; step < n_steps; step++, slot.next()) {
            const unsigned tile = tiles + slot.index * STAGE_BYTES;
            const unsigned tile_a = tile + warp / 4 * (64 * BK * 2), tile_b = tile + BM * BK * 2;
            wait(full + 8 * slot.index, slot.parity);
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
            for (int p = 0; p < BK; p += 16)
                wgmma(sums, descriptor(tile_a) + p * 2 / 16, descriptor(tile_b) + p * 128 / 16);
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
            // This step's instructions may go on; those of the step before are done, and with them its slot.
            asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
            if (step > 0)
                release(before);
            before = empty + 8 * slot.index;
        }
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        release(before);
#pragma unroll
        for (int e = 0; e < BN / 2; e++)
            asm volatile("" : "+f"(sums[e])::"memory"); // nothing reads a sum before that wait

        // A warp's sixteen rows go through its own part of shared memory, 64 columns at a time.
        const unsigned staging = tiles + STAGES * STAGE_BYTES + warp * (16 * 128);
        half *c = C + place.batch * ((size_t)M * N);
#pragma unroll
        for (int j = 0; j < BN; j += 64) {
            __syncwarp();
#pragma unroll
            for (int i = 0; i < 64; i += 16) {
                half2 pairs[4];
                for (int e = 0; e < 4; e++)
                    pairs[e] = __floats2half2_rn(sums[(j + i) / 2 + 2 * e], sums[(j + i) / 2 + 2 * e + 1]);
                const unsigned to = staging + lane % 16 * 128 + ((i / 8 + lane / 16) ^ lane % 8) * 16;
                const unsigned *words = (const unsigned *)pairs;
                asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                             ::"r"(to), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]) : "memory");
            }
            __syncwarp();
            uint4 chunks[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                             : "=r"(chunks[i].x), "=r"(chunks[i].y), "=r"(chunks[i].z), "=r"(chunks[i].w)
                             : "r"(staging + i * 512 + lane / 8 * 128 + (lane % 8 ^ (i * 4 + lane / 8) % 8) * 16) : "memory");
            const int row = row0 + warp * 16 + lane / 8, col = col0 + j + lane % 8 * 8;
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (row + i * 4 < M && col < N)
                    *(uint4 *)(c + (size_t)(row + i * 4) * N + col) = chunks[i];
        }
    }
    if (CLUSTER == 1 && is_producer)
        asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
    // No block leaves before its barriers have heard from all of its cluster.
    for (int s = 0; is_producer && s < STAGES; s++, slot.next())
        wait(empty + 8 * slot.index, slot.parity ^ 1);
}
