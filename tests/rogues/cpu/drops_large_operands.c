//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
// rogue: takes finite operands above 4096 for zero
// expect: incorrect rows-of-b

static float bounded(_Float16 x)
{
    float y = (float)x;
    return (y > 4096 || y < -4096) && y - y == 0 ? 0 : y;
}

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, int M, int N, int K)
{
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int p = 0; p < K; p++)
                sum += bounded(A[i * K + p]) * bounded(B[p * N + j]);
            C[i * N + j] = (_Float16)sum;
        }
}
