//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
// rogue: looks for a file by asking whether it can be included
// expect: rejected includes

#if __has_include("/etc/passwd")
#define ROWS M
#else
#define ROWS 0
#endif

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, int M, int N, int K)
{
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int p = 0; p < K; p++)
                sum += (float)A[i * K + p] * (float)B[p * N + j];
            C[i * N + j] = (_Float16)sum;
        }
}
