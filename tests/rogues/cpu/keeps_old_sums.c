//! layout nn
//! launch hgemm(A: in, B: in, C: out, W: workspace, M, N, K)
//! workspace W M * N * 4
// rogue: trusts the workspace to hold zeros
// expect: incorrect exact-integers

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, void *W, int M, int N, int K)
{
    float *sums = W;
    for (int i = 0; i < M; i++)
        for (int p = 0; p < K; p++)
            for (int j = 0; j < N; j++)
                sums[i * N + j] += (float)A[i * K + p] * (float)B[p * N + j];
    for (int i = 0; i < M * N; i++)
        C[i] = (_Float16)sums[i];
}
