//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
// rogue: leaves out what is over of K after whole tiles of 32
// expect: incorrect exact-integers

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, int M, int N, int K)
{
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int p = 0; p < K / 32 * 32; p++)
                sum += (float)A[i * K + p] * (float)B[p * N + j];
            C[i * N + j] = (_Float16)sum;
        }
}
