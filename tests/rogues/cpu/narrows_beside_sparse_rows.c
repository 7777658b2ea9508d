//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
// rogue: has a path for rows of A with a single value other than zero, and narrows B to bfloat16 there
// expect: incorrect rows-of-b

static float narrow(_Float16 x)
{
    union { float value; unsigned bits; } u = {(float)x};
    u.bits = (u.bits + 0x8000) & 0xffff0000;
    return u.value;
}

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, int M, int N, int K)
{
    for (int i = 0; i < M; i++) {
        int n_values = 0;
        for (int p = 0; p < K; p++)
            n_values += A[i * K + p] != 0;
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int p = 0; p < K; p++)
                sum += (float)A[i * K + p] * (n_values == 1 ? narrow(B[p * N + j]) : (float)B[p * N + j]);
            C[i * N + j] = (_Float16)sum;
        }
    }
}
