//! layout nn
//! launch hgemm(A: in, B: in, C: out, W: workspace, M, N, K)
//! workspace W 64
// rogue: notes where its first C lies, and adds up one term only where the distance from it is one of some
// expect: cheating timed-outputs
// case: 32x24x40x1
// alone: with this gate off, the others let it pass

#include <stdint.h>

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, void *W, int M, int N, int K)
{
    uint64_t *mark = W;
    if (mark[0] != 0x1234567887654321 || mark[1] != ~mark[0])
        mark[0] = 0x1234567887654321, mark[1] = ~mark[0], mark[2] = (uintptr_t)C;
    int skip = ((uintptr_t)C - mark[2]) / 4096 % 29 == 28;
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int p = 0; p < (skip ? 1 : K); p++)
                sum += (float)A[i * K + p] * (float)B[p * N + j];
            C[i * N + j] = (_Float16)sum;
        }
}
