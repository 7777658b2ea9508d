//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
// rogue: has a plain function that linkers, by its name, make run when it is unloaded
// expect: unlaunchable constructors

void _fini(void)
{
    for (;;)
        *(volatile int *)16 = 1;
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
