//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
// rogue: writes the same value everywhere
// expect: incorrect exact-integers

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, int M, int N, int K)
{
    (void)A, (void)B, (void)K;
    for (int i = 0; i < M * N; i++)
        C[i] = 1;
}
