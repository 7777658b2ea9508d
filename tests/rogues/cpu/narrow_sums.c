//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
// rogue: rounds the running sum to 18 bits after every 16 terms
// expect: incorrect cancellation
// alone: with this gate off, the others let it pass

static float narrow(float x)
{
    union { float value; unsigned bits; } u = {x};
    if (x - x == 0)
        u.bits = (u.bits + 0x20) & ~0x3fU;
    return u.value;
}

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, int M, int N, int K)
{
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int p = 0; p < K; p++) {
                sum += (float)A[i * K + p] * (float)B[p * N + j];
                if (p % 16 == 15)
                    sum = narrow(sum);
            }
            C[i * N + j] = (_Float16)sum;
        }
}
