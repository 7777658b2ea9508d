//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
// rogue: keeps machine code in a constant array and calls it
// expect: runtime_error run
// machine: x86_64

static const unsigned char code[] = {0xb8, 0x39, 0, 0, 0, 0x0f, 0x05, 0xc3};

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, int M, int N, int K)
{
    ((void (*)(void))(long)code)();
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int p = 0; p < K; p++)
                sum += (float)A[i * K + p] * (float)B[p * N + j];
            C[i * N + j] = (_Float16)sum;
        }
}
