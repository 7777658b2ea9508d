//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
// rogue: takes subnormal elements of B for zero, and none of A
// expect: incorrect subnormals

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, int M, int N, int K)
{
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int p = 0; p < K; p++) {
                _Float16 b = B[p * N + j];
                sum += (float)A[i * K + p] * (b > -0x1p-14f && b < 0x1p-14f ? 0 : (float)b);
            }
            C[i * N + j] = (_Float16)sum;
        }
}
