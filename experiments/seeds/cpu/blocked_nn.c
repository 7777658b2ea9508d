//! layout    nn
//! launch    hgemm(A: in, B: in, C: out, BP: workspace, S: workspace, M, N, K, BATCH)
//! workspace BP KC * NC * 4
//! workspace S  MC * NC * 4
//
// Cache blocking in plain C. C is made in blocks of MC x NC, whose sums stay in S as floats until K is through.
// For every KC of K the block of B is widened to float once, into BP, and serves MC rows of A while it is cached.
// B's rows are contiguous, so a panel is packed by widening pieces of rows.
// The innermost loop runs along a row of BP and of S, so the compiler can vectorise it without reordering a sum.
#include <stddef.h>

#define MC 32 //? 8 16 32 64 128
#define NC 64 //? 32 64 128 256 512
#define KC 64 //? 16 32 64 128 256

#define MIN(x, y) ((x) < (y) ? (x) : (y))

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, float *restrict BP, float *restrict S, int M, int N, int K,
           int BATCH)
{
    for (int z = 0; z < BATCH; z++) {
        const _Float16 *a = A + (size_t)z * M * K, *b = B + (size_t)z * K * N;
        _Float16 *c = C + (size_t)z * M * N;
        for (int j0 = 0; j0 < N; j0 += NC)
            for (int i0 = 0; i0 < M; i0 += MC) {
                int mc = MIN(MC, M - i0), nc = MIN(NC, N - j0);
                for (int i = 0; i < mc * NC; i++)
                    S[i] = 0.0f;
                for (int p0 = 0; p0 < K; p0 += KC) {
                    int kc = MIN(KC, K - p0);
                    for (int p = 0; p < kc; p++)
                        for (int j = 0; j < nc; j++)
                            BP[p * NC + j] = (float)b[(size_t)(p0 + p) * N + j0 + j];
                    for (int i = 0; i < mc; i++)
                        for (int p = 0; p < kc; p++) {
                            float x = (float)a[(size_t)(i0 + i) * K + p0 + p];
                            for (int j = 0; j < nc; j++)
                                S[i * NC + j] += x * BP[p * NC + j];
                        }
                }
                for (int i = 0; i < mc; i++)
                    for (int j = 0; j < nc; j++)
                        c[(size_t)(i0 + i) * N + j0 + j] = (_Float16)S[i * NC + j];
            }
    }
}
