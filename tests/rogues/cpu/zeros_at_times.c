//! layout nn
//! launch hgemm(A: in, B: in, C: out, W: workspace, M, N, K)
//! workspace W 64
// rogue: counts its calls in a process, and only clears the result in one of 20
// expect: cheating timed-outputs
// case: 32x24x40x1
// alone: with this gate off, the others let it pass

#include <string.h>

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, void *W, int M, int N, int K)
{
    long long *mark = W;
    if (mark[0] != 0x1234567887654321 || mark[1] != ~mark[0])
        mark[0] = 0x1234567887654321, mark[1] = ~mark[0], mark[2] = 0;
    if (++mark[2] % 20 == 0) {
        memset(C, 0, (size_t)M * N * sizeof *C);
        return;
    }
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int p = 0; p < K; p++)
                sum += (float)A[i * K + p] * (float)B[p * N + j];
            C[i * N + j] = (_Float16)sum;
        }
}
