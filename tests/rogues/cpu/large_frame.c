//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
// rogue: keeps 16 MiB on the stack
// expect: unlaunchable stack

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, int M, int N, int K)
{
    volatile float sums[4 << 20];
    for (int i = 0; i < M * N; i++)
        sums[i] = 0;
    for (int i = 0; i < M; i++)
        for (int p = 0; p < K; p++)
            for (int j = 0; j < N; j++)
                sums[i * N + j] += (float)A[i * K + p] * (float)B[p * N + j];
    for (int i = 0; i < M * N; i++)
        C[i] = (_Float16)sums[i];
}
