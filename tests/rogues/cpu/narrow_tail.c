//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
// rogue: cuts products and sums of two, if below 2048, to eleven bits in the last 6 of K only
// expect: incorrect last-k-tile
// case: 48x40x2064x1
// alone: with this gate off, the others let it pass

static float cut(float x)
{
    union { float value; unsigned bits; } u = {x};
    u.bits &= ~0x1fffU;
    return x > -2048 && x < 2048 ? u.value : x;
}

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, int M, int N, int K)
{
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int p = 0; p < K; p += 2) {
                float x = (float)A[i * K + p] * (float)B[p * N + j];
                float y = p + 1 < K ? (float)A[i * K + p + 1] * (float)B[(p + 1) * N + j] : 0;
                sum += p + 6 < K ? x + y : cut(cut(x) + cut(y));
            }
            C[i * N + j] = (_Float16)sum;
        }
}
