//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
// rogue: writes zero for a subnormal sum of several terms that are small themselves
// expect: incorrect subnormals
// alone: with this gate off, the others let it pass

#include <math.h>

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, int M, int N, int K)
{
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0, magnitude = 0;
            for (int p = 0; p < K; p++) {
                float term = (float)A[i * K + p] * (float)B[p * N + j];
                sum += term;
                magnitude += fabsf(term);
            }
            int flush = fabsf(sum) < 0x1p-14f && magnitude < 0x1p-8f && magnitude > fabsf(sum);
            C[i * N + j] = flush ? 0 : (_Float16)sum;
        }
}
