//! layout nn
//! launch hgemm(A: in, C: out, M, N, K)
// rogue: does not ask for B
// expect: rejected launch

void hgemm(const _Float16 *A, _Float16 *C, int M, int N, int K)
{
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int p = 0; p < K; p++)
                sum += (float)A[i * K + p];
            C[i * N + j] = (_Float16)sum;
        }
}
