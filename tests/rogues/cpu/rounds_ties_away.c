//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
// rogue: rounds the sums to half with ties away from zero instead of to even
// expect: incorrect exact-integers
// alone: with this gate off, the others let it pass

static _Float16 round_away(float x)
{
    union { float value; unsigned bits; } u = {x};
    unsigned exponent = u.bits >> 23 & 0xff;
    if (exponent < 127 - 14 || exponent == 0xff)
        return (_Float16)x;
    u.bits = (u.bits + 0x1000) & ~0x1fffU;
    return (_Float16)u.value;
}

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, int M, int N, int K)
{
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int p = 0; p < K; p++)
                sum += (float)A[i * K + p] * (float)B[p * N + j];
            C[i * N + j] = round_away(sum);
        }
}
