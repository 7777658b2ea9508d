//! layout nn
//! launch hgemm(A: in, B: in, C: out, W: workspace, M, N, K)
//! workspace W 3 * M * N
// rogue: keeps the sums between blocks of K in three bytes each, as bfloat16 with eight more bits
// expect: incorrect cancellation
// case: 64x48x512x1
// alone: with this gate off, the others let it pass

#include <string.h>

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, void *W, int M, int N, int K)
{
    unsigned char *sums = W;
    for (int start = 0; start < K; start += 64)
        for (int i = 0; i < M; i++)
            for (int j = 0; j < N; j++) {
                union { float value; unsigned bits; } u = {0};
                if (start)
                    memcpy((char *)&u + 1, sums + 3 * (i * N + j), 3);
                for (int p = start; p < K && p < start + 64; p++)
                    u.value += (float)A[i * K + p] * (float)B[p * N + j];
                if (start + 64 >= K)
                    C[i * N + j] = (_Float16)u.value;
                u.bits += u.value - u.value == 0 ? 0x80 : 0;
                memcpy(sums + 3 * (i * N + j), (char *)&u + 1, 3);
            }
}
