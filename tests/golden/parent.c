//! layout  nn
//! launch  hgemm(A: in, B: in, C: out, W: workspace, M, N, K)
//! workspace W K * NR * 4
#include <stdint.h>
#define MR 4  //? 2 4 6 8
#define NR 16 //? 8 16 32
#define KB 256 //? 64 128 256 512

static void pack(const _Float16 *B, float *W, int N, int K, int j) {
    for (int k = 0; k < K; k++) {
        for (int c = 0; c < NR; c++) {
            W[k * NR + c] = j + c < N ? (float)B[k * N + j + c] : 0.0f;
        }
    }
}

static void block(const _Float16 *A, const float *W, float acc[MR][NR], int K, int k0, int k1) {
    for (int k = k0; k < k1; k++) {
        for (int r = 0; r < MR; r++) {
            float a = (float)A[r * K + k];
            for (int c = 0; c < NR; c++) {
                acc[r][c] += a * W[k * NR + c];
            }
        }
    }
}

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, float *W, int M, int N, int K) {
    for (int j = 0; j < N; j += NR) {
        pack(B, W, N, K, j);
        for (int i = 0; i < M; i += MR) {
            float acc[MR][NR] = {{0}};
            for (int k = 0; k < K; k += KB) {
                block(A + i * K, W, acc, K, k, k + KB < K ? k + KB : K);
            }
            for (int r = 0; r < MR; r++) {
                for (int c = 0; c < NR; c++) {
                    C[(i + r) * N + j + c] = (_Float16)acc[r][c];
                }
            }
        }
    }
}
