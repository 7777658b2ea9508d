//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
// rogue: takes subnormal operands for zero
// expect: incorrect subnormals, incorrect last-k-tile

static float flush(_Float16 x)
{
    return x > -0x1p-14f && x < 0x1p-14f ? 0 : (float)x;
}

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, int M, int N, int K)
{
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int p = 0; p < K; p++)
                sum += flush(A[i * K + p]) * flush(B[p * N + j]);
            C[i * N + j] = (_Float16)sum;
        }
}
