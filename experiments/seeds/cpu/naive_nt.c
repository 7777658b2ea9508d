//! layout  nt
//! launch  hgemm(A: in, B: in, C: out, M, N, K, BATCH)
//
// The definition, word for word: every element of C is one dot product, summed in float and rounded once.
// A is (M, K), B is (N, K), C is (M, N), all row-major; BATCH such products lie one after another.
// Nothing is reused: B is read again from the cache, or from memory, for every row of A.
#include <stddef.h>

#define UNROLL 1 //? 1 2 4 8

#define PRAGMA(text) _Pragma(#text)
#define REPEAT(n) PRAGMA(GCC unroll n)

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, int M, int N, int K, int BATCH)
{
    for (int z = 0; z < BATCH; z++) {
        const _Float16 *a = A + (size_t)z * M * K, *b = B + (size_t)z * K * N;
        _Float16 *c = C + (size_t)z * M * N;
        for (int i = 0; i < M; i++)
            for (int j = 0; j < N; j++) {
                float sum = 0.0f;
                REPEAT(UNROLL)
                for (int p = 0; p < K; p++)
                    sum += (float)a[(size_t)i * K + p] * (float)b[(size_t)j * K + p];
                c[(size_t)i * N + j] = (_Float16)sum;
            }
    }
}
