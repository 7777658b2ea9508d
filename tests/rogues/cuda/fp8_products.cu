//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid N / 8, M / 16
//! block 32
// rogue: rounds to FP8 for a warp's product, which the compiler turns into one of halves
// expect: unlaunchable narrow-formats
// alone: the matrix instruction alone is beyond suspicion
// arch: sm_90a
#include <cuda_fp16.h>

__device__ unsigned narrow(const half *from, int step)
{
    unsigned short low, high;
    const half2 x = __halves2half2(from[0], from[step]), y = __halves2half2(from[2 * step], from[3 * step]);
    asm("cvt.rn.satfinite.e4m3x2.f16x2 %0, %1;" : "=h"(low) : "r"(*(const unsigned *)&x));
    asm("cvt.rn.satfinite.e4m3x2.f16x2 %0, %1;" : "=h"(high) : "r"(*(const unsigned *)&y));
    return low | high << 16;
}

// One warp for each tile of 16 x 8; M, N and K are multiples of 16.
extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    const int lane = threadIdx.x, row = blockIdx.y * 16 + lane / 4, col = blockIdx.x * 8;
    float d[4] = {};
    for (int p = 0; p < K; p += 32) {
        unsigned a[4], b[2];
        for (int q = 0; q < 4; q++)
            a[q] = narrow(A + (row + q % 2 * 8) * K + p + lane % 4 * 4 + q / 2 * 16, 1);
        for (int q = 0; q < 2; q++)
            b[q] = narrow(B + (p + lane % 4 * 4 + q * 16) * N + col + lane / 4, N);
        asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
                     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
    for (int q = 0; q < 4; q++)
        C[(row + q / 2 * 8) * N + col + lane % 4 * 2 + q % 2] = __float2half(d[q]);
}
