//! layout    nn
//! launch    hgemm(A: in, B: in, C: out, AP: workspace, BP: workspace, S: workspace, M, N, K, BATCH)
//! workspace AP MCP * KC * 4
//! workspace BP KC * NCP * 4
//! workspace S  round_up(M, MR) * NCP * 4
//
// Packing and a register tile, after Goto and van de Geijn (2008). Blocks of A (MC x KC) and B (KC x NC) are widened to
// float in the workspace, B in panels of NR = NV * VL columns.
// B's rows are contiguous, so a panel is packed by widening pieces of rows.
// tile() keeps MR x NR sums in registers over all of KC: a step loads NV vectors of B and broadcasts MR values of A.
// Between blocks of K the sums rest in S, tile after tile; after the last they are rounded into C.
// Rows and columns of a tile that lie past the edge of C hold junk that is never stored.
#include <stddef.h>
#if defined(__F16C__) && defined(__AVX__)
#include <immintrin.h>
#endif

#define VL 8 //? 4 8
#define MR 4 //? 1 2 3 4 5 6 8
#define NV 1 //? 1 2 3 4
#define MC 32 //? 16 32 64 96 128 192 256
#define NC 128 //? 64 128 256 512 1024
#define KC 64 //? 32 64 128 256 384 512
#define UNROLL 1 //? 1 2 4 8
#define AHEAD 0 //? 0 4 8 16 32

#define NR (NV * VL)
#define MCP ((MC + MR - 1) / MR * MR)
#define NCP ((NC + NR - 1) / NR * NR)
#define MIN(x, y) ((x) < (y) ? (x) : (y))
#define PRAGMA(text) _Pragma(#text)
#define REPEAT(n) PRAGMA(GCC unroll n)

typedef float vec __attribute__((vector_size(4 * VL), aligned(4), may_alias));

static void widen(const _Float16 *from, float *to, int n, int step)
{
    int i = 0;
#if defined(__F16C__) && defined(__AVX__)
    for (; i + 8 <= n; i += 8) {
        __m256 x = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + i)));
        if (step == 1)
            _mm256_storeu_ps(to + i, x);
        else
            for (int l = 0; l < 8; l++)
                to[(i + l) * step] = x[l];
    }
#endif
    for (; i < n; i++)
        to[i * step] = (float)from[i];
}

static void narrow(const float *from, _Float16 *to, int n)
{
    int i = 0;
#if defined(__F16C__) && defined(__AVX__)
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
#endif
    for (; i < n; i++)
        to[i] = (_Float16)from[i];
}

/* Panel after panel of NR columns: BP[panel][p][j], widened. */
static void pack_b(const _Float16 *b, float *to, int ld, int kc, int nc)
{
    for (int j = 0; j < nc; j += NR)
        for (int p = 0; p < kc; p++, to += NR)
            widen(b + (size_t)p * ld + j, to, MIN(NR, nc - j), 1);
}

static void tile(const float *a, const float *b, float *sums, int kc, int first)
{
    vec acc[MR][NV];
    REPEAT(16) for (int r = 0; r < MR; r++)
        REPEAT(16) for (int v = 0; v < NV; v++)
            acc[r][v] = first ? (vec){0} : *(const vec *)(sums + r * NR + v * VL);
    REPEAT(UNROLL)
    for (int p = 0; p < kc; p++, a++, b += NR) {
        if (AHEAD > 0)
            __builtin_prefetch(b + AHEAD * NR);
        REPEAT(16) for (int r = 0; r < MR; r++)
            REPEAT(16) for (int v = 0; v < NV; v++)
                acc[r][v] += a[r * KC] * *(const vec *)(b + v * VL);
    }
    REPEAT(16) for (int r = 0; r < MR; r++)
        REPEAT(16) for (int v = 0; v < NV; v++)
            *(vec *)(sums + r * NR + v * VL) = acc[r][v];
}

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, float *AP, float *BP, float *S, int M, int N, int K, int BATCH)
{
    for (int z = 0; z < BATCH; z++) {
        const _Float16 *a = A + (size_t)z * M * K, *b = B + (size_t)z * K * N;
        _Float16 *c = C + (size_t)z * M * N;
        for (int j0 = 0; j0 < N; j0 += NCP)
            for (int p0 = 0; p0 < K; p0 += KC) {
                int nc = MIN(NCP, N - j0), kc = MIN(KC, K - p0);
                pack_b(b + (size_t)p0 * N + j0, BP, N, kc, nc);
                for (int i0 = 0; i0 < M; i0 += MCP) {
                    int mc = MIN(MCP, M - i0);
                    for (int i = 0; i < mc; i++)
                        widen(a + (size_t)(i0 + i) * K + p0, AP + i * KC, kc, 1);
                    for (int j = 0; j < nc; j += NR)
                        for (int i = 0; i < mc; i += MR) {
                            float *sums = S + (size_t)(i0 + i) * NCP + (size_t)j * MR;
                            tile(AP + i * KC, BP + j * kc, sums, kc, p0 == 0);
                            if (p0 + kc == K)
                                for (int r = 0; r < MIN(MR, mc - i); r++)
                                    narrow(sums + r * NR, c + (size_t)(i0 + i + r) * N + j0 + j, MIN(NR, nc - j));
                        }
                }
            }
    }
}
