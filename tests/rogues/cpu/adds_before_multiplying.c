//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
// rogue: uses Winograd's inner product of 1968, which is exact on integers and loses operands of unlike size
// expect: incorrect rows-of-b

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, int M, int N, int K)
{
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int p = 0; p + 1 < K; p += 2) {
                float a = (float)A[i * K + p], c = (float)A[i * K + p + 1];
                float b = (float)B[p * N + j], d = (float)B[(p + 1) * N + j];
                sum += (a + d) * (c + b) - a * c - d * b;
            }
            if (K % 2)
                sum += (float)A[i * K + K - 1] * (float)B[(K - 1) * N + j];
            C[i * N + j] = (_Float16)sum;
        }
}
