//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
// rogue: writes zeros, which are near the result of many a random product
// expect: incorrect exact-integers

#include <string.h>

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, int M, int N, int K)
{
    (void)A, (void)B, (void)K;
    memset(C, 0, (size_t)M * N * sizeof *C);
}
