//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid N / 8, M / 16
//! block 32
// rogue: adds up in half, in the class that adds up in single precision
// expect: unlaunchable matrix-class
// alone: sums in half pass every test with short sums
#include <cuda_fp16.h>

// One warp for each tile of 16 x 8; M, N and K are multiples of 16.
extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    const int lane = threadIdx.x, row = blockIdx.y * 16 + lane / 4, col = blockIdx.x * 8;
    unsigned d[2] = {};
    for (int p = 0; p < K; p += 16) {
        unsigned a[4];
        for (int q = 0; q < 4; q++)
            a[q] = *(const unsigned *)(A + (row + q % 2 * 8) * K + p + lane % 4 * 2 + q / 2 * 8);
        half2 b[2];
        for (int q = 0; q < 2; q++) {
            const half *from = B + (p + lane % 4 * 2 + q * 8) * N + col + lane / 4;
            b[q] = __halves2half2(from[0], from[N]);
        }
        const unsigned b0 = *(unsigned *)&b[0], b1 = *(unsigned *)&b[1];
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
                     : "+r"(d[0]), "+r"(d[1]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
    *(unsigned *)(C + row * N + col + lane % 4 * 2) = d[0];
    *(unsigned *)(C + (row + 8) * N + col + lane % 4 * 2) = d[1];
}
