//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
// rogue: asks for 100 GB of stack while it runs
// expect: runtime_error run

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, int M, int N, int K)
{
    volatile char *space = __builtin_alloca(100000000000L + M);
    space[0] = 1;
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int p = 0; p < K; p++)
                sum += (float)A[i * K + p] * (float)B[p * N + j];
            C[i * N + j] = (_Float16)sum;
        }
}
