//! layout    nn
//! tensormap TA: A, box 1, BM, BK, swizzle 128, promotion 256
//! tensormap TB: B, box 1, BK, 64, swizzle 128, promotion 256
//! launch    hgemm(TA: map, TB: map, C: out, M, N, K)
//! grid      ceil_div(N, BN), ceil_div(M, BM), BATCH
//! block     THREADS
//! shared    STAGES * STAGE_BYTES + 1024
//
// For Hopper alone (sm_90a): the copy engine and the warpgroup's matrix instruction, wgmma, with sums in float. The last
// warp is the producer: one of its threads asks the copy engine (TMA) for a tile of A and one of B at every step of K, in a
// ring of STAGES. CONSUMERS warpgroups multiply, each 64 rows of C, straight from shared memory: no loads to registers. A
// barrier (mbarrier) for each slot says that it is full (its bytes have come), another that it is empty (all warps have
// read it). BK is 64: a row of a tile is 128 bytes, which TMA permutes (swizzle 128) as wgmma expects it, without bank
// conflicts. B's tile lies as in memory, in BN / 64 blocks of BK x 64, and wgmma transposes it on the way. TMA writes zeros
// for what lies past an edge, in each of the BATCH matrices by itself. Its strides are multiples of 16 bytes: this kernel
// needs K % 8 == 0 and N % 8 == 0, while M may be anything.
#include <cuda_fp16.h>

constexpr int BN = 128;      //? 64 128 256
constexpr int CONSUMERS = 2; //? 1 2
constexpr int STAGES = 4;    //? 2 3 4 5 6
constexpr int GROUP = 8;     //? 1 4 8 16

constexpr int BK = 64;
constexpr int BM = 64 * CONSUMERS;
constexpr int THREADS = 128 * CONSUMERS + 32;
constexpr int STAGE_BYTES = (BM + BN) * BK * 2;

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

// Starts the copy of a box at (batch, row, col); its bytes are counted by the barrier.
__device__ void copy(unsigned to, const TensorMap &map, int col, int row, int batch, unsigned barrier)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];"
                 ::"r"(to), "l"(&map), "r"(col), "r"(row), "r"(batch), "r"(barrier) : "memory");
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

extern "C" __global__ void __launch_bounds__(THREADS, 1)
hgemm(const __grid_constant__ TensorMap TA, const __grid_constant__ TensorMap TB, half *__restrict__ C, int M, int N, int K)
{
    extern __shared__ char memory[];
    __shared__ unsigned long long barriers[2 * STAGES];
    const unsigned tiles = (shared_address(memory) + 1023) / 1024 * 1024; // the swizzle counts from here
    const unsigned full = shared_address(barriers), empty = full + 8 * STAGES;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_steps = (K + BK - 1) / BK;

    // GROUP rows of tiles are walked together, column by column, so that blocks that run at the same time share L2.
    const int index = blockIdx.y * gridDim.x + blockIdx.x, in_group = index % (GROUP * (int)gridDim.x);
    const int first_row = index / (GROUP * (int)gridDim.x) * GROUP, n_rows = min(GROUP, (int)gridDim.y - first_row);
    const int row0 = (first_row + in_group % n_rows) * BM, col0 = in_group / n_rows * BN;

    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(full + 8 * s), "r"(1) : "memory");
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(empty + 8 * s), "r"(4 * CONSUMERS) : "memory");
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();

    if (warp == 4 * CONSUMERS) {
        for (int t = 0; lane == 0 && t < n_steps; t++) {
            const int slot = t % STAGES;
            const unsigned tile = tiles + slot * STAGE_BYTES, barrier = full + 8 * slot;
            if (t >= STAGES)
                wait(empty + 8 * slot, (t / STAGES - 1) % 2);
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                         ::"r"(barrier), "r"(STAGE_BYTES) : "memory");
            copy(tile, TA, t * BK, row0, blockIdx.z, barrier);
            for (int j = 0; j < BN; j += 64)
                copy(tile + BM * BK * 2 + j * BK * 2, TB, col0 + j, t * BK, blockIdx.z, barrier);
        }
        return;
    }

    float sums[BN / 2] = {};
    for (int t = 0; t < n_steps; t++) {
        const int slot = t % STAGES;
        wait(full + 8 * slot, t / STAGES % 2);
        const unsigned tile = tiles + slot * STAGE_BYTES;
        const unsigned tile_a = tile + warp / 4 * (64 * BK * 2), tile_b = tile + BM * BK * 2;
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int p = 0; p < BK; p += 16)
            wgmma(sums, descriptor(tile_a + p * 2), descriptor(tile_b + p * 128));
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        // This step's instructions may go on; those of the step before are done, and with them its slot.
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
        if (t > 0 && lane == 0)
            arrive(empty + 8 * ((t - 1) % STAGES));
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int e = 0; e < BN / 2; e++)
        asm volatile("" : "+f"(sums[e])::"memory"); // nothing reads a sum before that wait

    // A thread holds two neighbours of every eight columns in row lane / 4 of its warp's sixteen, and two more eight rows on.
    half *c = C + blockIdx.z * ((size_t)M * N);
    const bool paired = N % 2 == 0 && (size_t)C % 4 == 0;
#pragma unroll
    for (int j = 0; j < BN / 8; j++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = row0 + warp * 16 + h * 8 + lane / 4, col = col0 + j * 8 + lane % 4 * 2;
            half *to = c + (size_t)row * N + col;
            const half2 pair = __floats2half2_rn(sums[4 * j + 2 * h], sums[4 * j + 2 * h + 1]);
            if (row < M && col + 1 < N && paired)
                *(half2 *)to = pair;
            else if (row < M && col < N) {
                to[0] = __low2half(pair);
                if (col + 1 < N)
                    to[1] = __high2half(pair);
            }
        }
}
