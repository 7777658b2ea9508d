//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
// rogue: reads on behind the last element of B
// expect: runtime_error run

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, int M, int N, int K)
{
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int p = 0; p < K; p++)
                sum += (float)A[i * K + p] * (float)B[p * N + j];
            C[i * N + j] = (_Float16)sum;
        }
    float beyond = 0;
    for (int i = 0; i < 4096; i++)
        beyond += (float)B[K * N + i];
    if (beyond == 12345)
        C[0] = 0;
}
