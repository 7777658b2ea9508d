//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
// rogue: adds in half precision where single is asked for
// expect: incorrect exact-integers

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, int M, int N, int K)
{
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            _Float16 sum = 0;
            for (int p = 0; p < K; p++)
                sum += A[i * K + p] * B[p * N + j];
            C[i * N + j] = sum;
        }
}
