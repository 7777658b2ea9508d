//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
// rogue: narrows elements of B above 4096 to bfloat16
// expect: incorrect rows-of-b
// alone: with this gate off, the others let it pass

static float narrow(_Float16 x)
{
    union { float value; unsigned bits; } u = {(float)x};
    if ((u.value > 4096 || u.value < -4096) && u.value - u.value == 0)
        u.bits = (u.bits + 0x8000) & 0xffff0000;
    return u.value;
}

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, int M, int N, int K)
{
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int p = 0; p < K; p++)
                sum += (float)A[i * K + p] * narrow(B[p * N + j]);
            C[i * N + j] = (_Float16)sum;
        }
}
