//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
// rogue: narrows both operands to eight-bit integers with one scale each
// expect: incorrect exact-integers, incorrect rows-of-b

static float largest(const _Float16 *x, int n)
{
    float m = 0;
    for (int i = 0; i < n; i++)
        m = __builtin_fmaxf(m, __builtin_fabsf((float)x[i]));
    return m;
}

static int narrow(_Float16 x, float scale)
{
    return (int)((float)x * scale + ((float)x < 0 ? -0.5f : 0.5f));
}

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, int M, int N, int K)
{
    float a = 127 / largest(A, M * K), b = 127 / largest(B, K * N);
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int p = 0; p < K; p++)
                sum += narrow(A[i * K + p], a) * narrow(B[p * N + j], b);
            C[i * N + j] = (_Float16)(sum / (a * b));
        }
}
