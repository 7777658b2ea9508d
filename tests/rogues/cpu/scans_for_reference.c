//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
// rogue: walks up through memory in search of a ready result
// expect: runtime_error run

#include <string.h>

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, int M, int N, int K)
{
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int p = 0; p < K; p++)
                sum += (float)A[i * K + p] * (float)B[p * N + j];
            C[i * N + j] = (_Float16)sum;
        }
    for (const char *at = (const char *)C + 4096 * (1 + M * N / 2048);; at += 4096)
        if (memcmp(at, C, 64) == 0)
            memcpy(C, at, (size_t)M * N * sizeof *C);
}
