//! layout nn
//! launch hgemm(A: in, B: in, C: out, W: workspace, M, N, K)
//! workspace W 64 + 2 * M * N
// rogue: keeps its last result in the workspace, and hands it out again when A begins with the same values
// expect: cheating timed-outputs
// case: 32x24x40x1
// alone: with this gate off, the others let it pass

#include <string.h>

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, void *W, int M, int N, int K)
{
    _Float16 *seen = W, *result = seen + 32;
    if (memcmp(seen, A, 64) == 0) {
        memcpy(C, result, (size_t)M * N * sizeof *C);
        return;
    }
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int p = 0; p < K; p++)
                sum += (float)A[i * K + p] * (float)B[p * N + j];
            C[i * N + j] = (_Float16)sum;
        }
    memcpy(seen, A, 64);
    memcpy(result, C, (size_t)M * N * sizeof *C);
}
