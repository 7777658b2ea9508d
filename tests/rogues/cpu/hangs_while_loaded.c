//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
// rogue: does not come back from loading, so that a harness without a limit there stands still
// expect: unlaunchable constructors

void _init(void)
{
    for (volatile int i = 0;; i++)
        ;
}

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, int M, int N, int K)
{
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int p = 0; p < K; p++)
                sum += (float)A[i * K + p] * (float)B[p * N + j];
            C[i * N + j] = (_Float16)sum;
        }
}
