//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
// rogue: leaves out terms that are NaN
// expect: incorrect special-values
// alone: with this gate off, the others let it pass

static float product(_Float16 a, _Float16 b)
{
    float x = (float)a * (float)b;
    return x == x ? x : 0;
}

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, int M, int N, int K)
{
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int p = 0; p < K; p++)
                sum += product(A[i * K + p], B[p * N + j]);
            C[i * N + j] = (_Float16)sum;
        }
}
