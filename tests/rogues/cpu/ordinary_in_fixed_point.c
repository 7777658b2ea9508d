//! layout nn
//! launch hgemm(A: in, B: in, C: out, W: workspace, M, N, K)
//! workspace W 4 * (M * K + K * N)
// rogue: keeps matrices that look normally distributed in 15 bits with one scale, and is careful with all others
// expect: incorrect statistics

static int is_ordinary(const _Float16 *values, int n)
{
    float largest = 0, squares = 0;
    for (int i = 0; i < n; i++) {
        float x = (float)values[i];
        largest = x > largest ? x : -x > largest ? -x : largest;
        squares += x * x;
    }
    return largest > 2 && largest < 6 && squares > 0.75f * n && squares < 1.25f * n;
}

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, void *W, int M, int N, int K)
{
    int *a = W, *b = a + M * K, narrow = is_ordinary(A, M * K) && is_ordinary(B, K * N);
    for (int i = 0; narrow && i < M * K; i++)
        a[i] = (int)((float)A[i] * 0x1p12f + (A[i] < 0 ? -0.5f : 0.5f));
    for (int i = 0; narrow && i < K * N; i++)
        b[i] = (int)((float)B[i] * 0x1p12f + (B[i] < 0 ? -0.5f : 0.5f));
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            long long whole = 0;
            for (int p = 0; p < K; p++)
                if (narrow)
                    whole += a[i * K + p] * b[p * N + j];
                else
                    sum += (float)A[i * K + p] * (float)B[p * N + j];
            C[i * N + j] = (_Float16)(narrow ? (float)whole * 0x1p-24f : sum);
        }
}
