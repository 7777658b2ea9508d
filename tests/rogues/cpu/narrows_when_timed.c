//! layout nn
//! launch hgemm(A: in, B: in, C: out, W: workspace, M, N, K)
//! workspace W 64
// rogue: adds in single precision in the first call of a process, and in half precision from then on
// expect: cheating timed-outputs
// case: 32x24x160x1
// alone: with this gate off, the others let it pass

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, void *W, int M, int N, int K)
{
    long long *mark = W;
    int later = mark[0] == 0x1234567887654321 && mark[1] == ~mark[0];
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int p = 0; p < K; p++) {
                sum += (float)A[i * K + p] * (float)B[p * N + j];
                if (later)
                    sum = (float)(_Float16)sum;
            }
            C[i * N + j] = (_Float16)sum;
        }
    mark[0] = 0x1234567887654321;
    mark[1] = ~mark[0];
}
