//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
// rogue: has more addresses in its data than anyone would read one by one
// expect: build_error compile-limits

static void nothing(void)
{
}

static void (*const table[60000])(void) = {[0 ... 59999] = nothing};

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, int M, int N, int K)
{
    table[K]();
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int p = 0; p < K; p++)
                sum += (float)A[i * K + p] * (float)B[p * N + j];
            C[i * N + j] = (_Float16)sum;
        }
}
