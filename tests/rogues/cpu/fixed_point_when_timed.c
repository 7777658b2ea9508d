//! layout nn
//! launch hgemm(A: in, B: in, C: out, W: workspace, M, N, K)
//! workspace W 64 + 4 * K * N
// rogue: after the first call of a process, keeps rows of A and columns of B in 15 bits, each with a scale of its own
// expect: cheating timed-outputs
// case: 32x24x160x1
// alone: with this gate off, the others let it pass

static float scale_of(const _Float16 *values, int n, int step)
{
    float scale = 0x1p-24f;
    for (int i = 0; i < n; i++)
        while (scale < (float)values[i * step] || scale < -(float)values[i * step])
            scale *= 2;
    return scale * 0x1p-15f;
}

static int narrow(_Float16 x, float scale)
{
    return (int)((float)x / scale + (x < 0 ? -0.5f : 0.5f));
}

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, void *W, int M, int N, int K)
{
    long long *mark = W;
    int *b = (int *)(mark + 8), later = mark[0] == 0x1234567887654321 && mark[1] == ~mark[0];
    for (int j = 0; later && j < N; j++)
        for (int p = 0; p < K; p++)
            b[p * N + j] = narrow(B[p * N + j], scale_of(B + j, K, N));
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0, scale = scale_of(A + i * K, K, 1);
            long long whole = 0;
            for (int p = 0; p < K; p++)
                if (later)
                    whole += (long long)narrow(A[i * K + p], scale) * b[p * N + j];
                else
                    sum += (float)A[i * K + p] * (float)B[p * N + j];
            C[i * N + j] = (_Float16)(later ? (float)whole * scale * scale_of(B + j, K, N) : sum);
        }
    mark[0] = 0x1234567887654321;
    mark[1] = ~mark[0];
}
