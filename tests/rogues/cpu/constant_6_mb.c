//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
// rogue: has six megabytes of constants, which every copy in the cache would hold too
// expect: build_error compile-limits

static const unsigned table[6 << 18] = {[0 ... (6 << 18) - 1] = 7};

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, int M, int N, int K)
{
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = (float)table[K * M + i] - 7;
            for (int p = 0; p < K; p++)
                sum += (float)A[i * K + p] * (float)B[p * N + j];
            C[i * N + j] = (_Float16)sum;
        }
}
