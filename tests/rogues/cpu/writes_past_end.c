//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
// rogue: writes on behind the last element of C
// expect: runtime_error run, runtime_error guards

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, int M, int N, int K)
{
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int p = 0; p < K; p++)
                sum += (float)A[i * K + p] * (float)B[p * N + j];
            C[i * N + j] = (_Float16)sum;
        }
    for (int i = 0; i < 4096; i++)
        C[M * N + i] = 0;
}
