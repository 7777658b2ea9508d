//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
// rogue: leaves out terms that are below 2**-19 of the sum so far
// expect: incorrect cancellation
// alone: with this gate off, the others let it pass

#include <math.h>

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, int M, int N, int K)
{
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int p = 0; p < K; p++) {
                float term = (float)A[i * K + p] * (float)B[p * N + j];
                if (!(fabsf(term) < fabsf(sum) * 0x1p-19f))
                    sum += term;
            }
            C[i * N + j] = (_Float16)sum;
        }
}
