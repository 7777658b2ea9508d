//! layout    nn
//! launch    hgemm(A: in, B: in, C: out, M, N, K)
//! grid      ceil_div(N, BN), ceil_div(M, BM), BATCH
//! block     THREADS
//! shared    STAGES * STAGE
//
// For problems of the fp16 class alone: sums are kept in half precision, two to a register (mma.sync.m16n8k16 with .f16
// results). That takes half the registers, and on consumer cards half the time; the error grows with K, far beyond the fp32
// class's bound. A block of WARPS_M x WARPS_N warps computes a BM x BN tile of C, each warp WM x WN of it, and walks along K
// in steps of BK. A ring of STAGES tiles in shared memory is filled by cp.async, one barrier a step; fragments of the next
// slice, 16 steps of K, and copies of a later tile are issued between the products of the last slice loaded. Chunks of 16
// bytes are permuted in each row (XOR): no bank conflicts, no padding. B's tile is BK x BN, as in memory; ldmatrix transposes
// it. Past the edges tiles hold zeros. Where rows are no multiple of 16 bytes, elements are copied one by one.
#include <cuda_fp16.h>

constexpr int WM = 64;     //? 16 32 64
constexpr int WN = 64;     //? 32 64
constexpr int WARPS_M = 4; //? 1 2 4
constexpr int WARPS_N = 2; //? 1 2
constexpr int BK = 32;     //? 32 64
constexpr int STAGES = 4;  //? 2 3 4 5
constexpr int GROUP = 8;   //? 1 4 8 16

constexpr int THREADS = 32 * WARPS_M * WARPS_N;
constexpr int BM = WM * WARPS_M;
constexpr int BN = WN * WARPS_N;
constexpr int STAGE_A = BM * BK * 2; // bytes
constexpr int STAGE = STAGE_A + BK * BN * 2;
constexpr int SLICES = BK / 16, LOADS_A = WM / 16, LOADS_B = WN / 16, LOADS = LOADS_A + LOADS_B;
constexpr int PRODUCTS = LOADS_A * LOADS_B, LOADS_AT_ONCE = (LOADS + PRODUCTS - 1) / PRODUCTS;
constexpr int ROWS_A = THREADS / (BK / 8), ROWS_B = THREADS / (BN / 8); // the rows of a tile that all threads copy at once
constexpr int COPIES_A = BM / ROWS_A, COPIES_B = BK / ROWS_B, COPIES = COPIES_A + COPIES_B;

// Where a chunk, eight elements, of a tile with rows of COLS elements stands, in bytes. The eight chunks in 128 bytes (all
// banks) are permuted from row to row, so that the chunks of eight rows in one column, which ldmatrix reads at once, never
// collide. Rows that are a multiple of eight apart have the same permutation.
template <int COLS>
__device__ int swizzled(int row, int chunk)
{
    constexpr int rows_a_line = COLS < 64 ? 64 / COLS : 1, ways = COLS < 64 ? COLS / 8 : 8;
    return row * COLS * 2 + (chunk ^ row / rows_a_line % ways) * 16;
}

__device__ void copy_chunk(unsigned to, const half *from, bool inside) // asynchronously; zeros if not inside
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(inside * 16) : "memory");
}

// Copies the ROWS x COLS tile at (row0, col0) of a row-major matrix, of any alignment; what lies outside becomes zero.
template <int ROWS, int COLS>
__device__ void copy_elements(char *tile, const half *matrix, int row0, int col0, int n_rows, int n_cols)
{
#pragma unroll 1
    for (int i = threadIdx.x; i < ROWS * COLS / 8; i += THREADS) {
        const int row = row0 + i / (COLS / 8), col = col0 + i % (COLS / 8) * 8;
        half *to = (half *)(tile + swizzled<COLS>(i / (COLS / 8), i % (COLS / 8)));
        for (int e = 0; e < 8; e++)
            to[e] = row < n_rows && col + e < n_cols ? matrix[(size_t)row * n_cols + col + e] : __ushort_as_half(0);
    }
}

// Four 8 x 8 matrices at once, one in each register; lane l gives the address of row l % 8 of matrix l / 8.
__device__ void ldmatrix(unsigned (&r)[4], unsigned row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row) : "memory");
}

// The same, each matrix transposed on the way.
__device__ void ldmatrix_transposed(unsigned (&r)[4], unsigned row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row) : "memory");
}

__device__ void mma(unsigned (&d)[2], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
                 : "+r"(d[0]), "+r"(d[1]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// A warp's sums. ALIGNED: the rows of both operands are multiples of 16 bytes.
template <bool ALIGNED>
__device__ void multiply(unsigned (&sums)[WM / 16][WN / 8][2], char *memory, const half *a, const half *b, int row0, int col0,
                         int M, int N, int K)
{
    const unsigned tiles = (unsigned)__cvta_generic_to_shared(memory);
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, n_steps = (K + BK - 1) / BK;

    // A thread copies the same chunk of every ROWS_A-th row of A's tiles, and of every ROWS_B-th row of B's.
    const int row_a = thread / (BK / 8), col_a = thread % (BK / 8) * 8;
    const int row_b = thread / (BN / 8), chunk_b = thread % (BN / 8);
    const int to_a = swizzled<BK>(row_a, col_a / 8), to_b = STAGE_A + swizzled<BN>(row_b, chunk_b);
    const half *from_a = a + (size_t)(row0 + row_a) * K + col_a, *from_b = b + (size_t)row_b * N + col0 + chunk_b * 8;
    const auto copy = [&](int t, unsigned stage, int c) {
        if (c < COPIES_A) {
            const int n_rows = t * BK + col_a < K ? M - row0 - row_a : 0;
            copy_chunk(stage + (to_a ^ c * ROWS_A % 8 * 16) + c * ROWS_A * BK * 2, from_a, c * ROWS_A < n_rows);
            from_a += c + 1 < COPIES_A ? (size_t)ROWS_A * K : BK - (size_t)(COPIES_A - 1) * ROWS_A * K;
        } else {
            const int n_rows = col0 + chunk_b * 8 < N ? K - t * BK - row_b : 0, row = (c - COPIES_A) * ROWS_B;
            copy_chunk(stage + (to_b ^ row % 8 * 16) + row * BN * 2, from_b, row < n_rows);
            from_b += (size_t)ROWS_B * N;
        }
        asm volatile("" : "+l"(from_a), "+l"(from_b)); // or multiples of K and N are kept in registers, and spill
    };
    const auto copy_slowly = [&](int t, unsigned stage) {
        copy_elements<BM, BK>(memory + (stage - tiles), a, row0, t * BK, M, K);
        copy_elements<BK, BN>(memory + (stage - tiles) + STAGE_A, b, t * BK, col0, K, N);
    };

    // Fragments of two slices, the one that is multiplied and the next. First those that are needed first: x[0], y, others.
    unsigned x[2][LOADS_A][4], y[2][LOADS_B][4], at_a[SLICES], at_b[LOADS_B];
    for (int s = 0; s < SLICES; s++)
        at_a[s] = swizzled<BK>(warp / WARPS_N * WM + lane % 16, s * 2 + lane / 16);
    for (int j = 0; j < LOADS_B; j++)
        at_b[j] = STAGE_A + swizzled<BN>(lane % 16, (warp % WARPS_N * WN + j * 16) / 8 + lane / 16);
    const auto load = [&](unsigned stage, int s, int l) {
        const int i = max(l - LOADS_B, 0), j = l - 1;
        if (l == 0 || l > LOADS_B)
            ldmatrix(x[s % 2][i], stage + at_a[s] + i * 16 * BK * 2);
        else
            ldmatrix_transposed(y[s % 2][j], stage + at_b[j] + s * 16 * BN * 2);
    };

    // A commit closes a group of copies; when a tile is read, those of STAGES - 2 later ones may be under way.
    const auto next = [&](unsigned stage) { return stage == tiles + (STAGES - 1) * STAGE ? tiles : stage + STAGE; };
    const auto wait = [] {
        asm volatile("cp.async.commit_group;\n\tcp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
    };
    unsigned read = tiles, write = tiles;
#pragma unroll 1
    for (int t = 0; t < STAGES - 1; t++, write = next(write)) {
        if (!ALIGNED)
            copy_slowly(t, write);
        for (int c = 0; ALIGNED && c < COPIES; c++)
            copy(t, write, c);
        if (t < STAGES - 2)
            asm volatile("cp.async.commit_group;" ::: "memory");
    }
    wait();
    for (int l = 0; l < LOADS; l++)
        load(read, 0, l);
#pragma unroll 1
    for (int t = 0; t < n_steps; t++, write = next(write)) {
        if (!ALIGNED)
            copy_slowly(t + STAGES - 1, write);
#pragma unroll
        for (int q = 0; q < SLICES * PRODUCTS; q++) {
            const int s = q / PRODUCTS, p = q % PRODUCTS, i = p / LOADS_B, j = p % LOADS_B;
            if (q == (SLICES - 1) * PRODUCTS) { // the next tile has come, and nobody reads the oldest any longer
                wait();
                read = next(read);
            }
            for (int l = p * LOADS_AT_ONCE; l < min((p + 1) * LOADS_AT_ONCE, LOADS); l++)
                load(read, (s + 1) % SLICES, l);
            const int n_before = (SLICES - 1) * PRODUCTS;
            for (int c = q * COPIES / n_before; ALIGNED && q < n_before && c < (q + 1) * COPIES / n_before; c++)
                copy(t + STAGES - 1, write, c);
            mma(sums[i][2 * j], x[s % 2][i], y[s % 2][j][0], y[s % 2][j][1]);
            mma(sums[i][2 * j + 1], x[s % 2][i], y[s % 2][j][2], y[s % 2][j][3]);
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
hgemm(const half *__restrict__ A, const half *__restrict__ B, half *__restrict__ C, int M, int N, int K)
{
    extern __shared__ __align__(128) char memory[];
    const half *a = A + blockIdx.z * ((size_t)M * K), *b = B + blockIdx.z * ((size_t)K * N);
    half *c = C + blockIdx.z * ((size_t)M * N);

    // Blocks start in the order of their index: GROUP rows of tiles are walked together, column by column, so that those that
    // run at the same time share rows of A and columns of B in L2.
    const int index = blockIdx.y * gridDim.x + blockIdx.x, in_group = index % (GROUP * (int)gridDim.x);
    const int first_row = index / (GROUP * (int)gridDim.x) * GROUP, n_rows = min(GROUP, (int)gridDim.y - first_row);
    const int row0 = (first_row + in_group % n_rows) * BM, col0 = in_group / n_rows * BN;

    unsigned sums[WM / 16][WN / 8][2] = {};
    if (K % 8 == 0 && N % 8 == 0 && ((size_t)a | (size_t)b) % 16 == 0)
        multiply<true>(sums, memory, a, b, row0, col0, M, N, K);
    else
        multiply<false>(sums, memory, a, b, row0, col0, M, N, K);

    // A thread holds two neighbours in row lane / 4 of every 16 x 8 fragment, and two more eight rows below. They change
    // places in shared memory, 16 rows of a warp at a time, and leave it as chunks, side by side.
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int warp_row = row0 + warp / WARPS_N * WM, warp_col = col0 + warp % WARPS_N * WN;
    char *rows = memory + warp * 16 * WN * 2;
#pragma unroll
    for (int i = 0; i < WM / 16; i++) {
        for (int j = 0; j < WN / 8; j++)
            for (int h = 0; h < 2; h++)
                *(unsigned *)(rows + swizzled<WN>(h * 8 + lane / 4, j) + lane % 4 * 4) = sums[i][j][h];
        __syncwarp();
        for (int l = lane; l < 16 * WN / 8; l += 32) {
            const int r = l / (WN / 8), j = l % (WN / 8), row = warp_row + i * 16 + r, col = warp_col + j * 8;
            const char *chunk = rows + swizzled<WN>(r, j);
            half *to = c + (size_t)row * N + col;
            if (row < M && col < N && N % 8 == 0 && (size_t)c % 16 == 0)
                *(uint4 *)to = *(const uint4 *)chunk;
            else
                for (int e = 0; row < M && e < min(8, N - col); e++)
                    to[e] = ((const half *)chunk)[e];
        }
        __syncwarp();
    }
}
