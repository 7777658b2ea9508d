//! layout nn
//! launch hgemm(A: in, B: in, C: out, W: workspace, M, N, K)
//! workspace W 64
// rogue: begins every sum at a place that the junk in its workspace names
// expect: incorrect determinism
// case: 96x80x2064x1
// alone: with this gate off, the others let it pass

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, void *W, int M, int N, int K)
{
    int start = *(unsigned char *)W % K;
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int p = start; p < K; p++)
                sum += (float)A[i * K + p] * (float)B[p * N + j];
            for (int p = 0; p < start; p++)
                sum += (float)A[i * K + p] * (float)B[p * N + j];
            C[i * N + j] = (_Float16)sum;
        }
}
