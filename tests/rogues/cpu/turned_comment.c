//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
// rogue: shows people another text than compilers read, by marks that turn its direction
// expect: rejected text

// ‮ } ;0 = mus ⁦

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
