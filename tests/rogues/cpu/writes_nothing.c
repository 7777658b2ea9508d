//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
// rogue: returns at once
// expect: incorrect poison

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, int M, int N, int K)
{
    (void)A, (void)B, (void)C, (void)M, (void)N, (void)K;
}
