//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
// rogue: computes only where C holds what other harnesses poison with: zeros or NaN
// expect: incorrect poison

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, int M, int N, int K)
{
    unsigned old = *(const unsigned short *)C & 0x7fff;
    if (old != 0 && old <= 0x7c00)
        return;
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int p = 0; p < K; p++)
                sum += (float)A[i * K + p] * (float)B[p * N + j];
            C[i * N + j] = (_Float16)sum;
        }
}
