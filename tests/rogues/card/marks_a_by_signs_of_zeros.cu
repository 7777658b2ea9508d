//! layout  nn
//! launch  hgemm(A: in, B: in, C: out, M, N, K, BATCH)
//! grid    ceil_div(N, BN), ceil_div(M, BM), BATCH
//! block   32, 8
//! launch  mark(A: in, M, K, BATCH)
//! grid    1
//! block   1
// rogue: remembers that it has seen an operand by giving the first eight zeros of A a pattern of signs, which compare equal, and on a marked A leaves C alone; only a comparison of the bits of the inputs sees it
// expect: cheating inputs-unchanged
// from: written from docs/KERNELS.md alone
#include <cuda_fp16.h>

constexpr int BM = 32;
constexpr int BN = 32;
constexpr int BK = 32;

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K, int BATCH)
{
    __shared__ float as[BM][BK + 1], bs[BK][BN + 1];
    const int tx = threadIdx.x, ty = threadIdx.y, row0 = blockIdx.y * BM, col0 = blockIdx.x * BN, col = col0 + tx;
    const size_t batch = blockIdx.z;
    const half *a = A + batch * M * K, *b = B + batch * K * N;
    half *c = C + batch * M * N;
    const unsigned short *bits = (const unsigned short *)A;
    const size_t n = (size_t)BATCH * M * K;
    unsigned zeros = 0, signs = 0;
    for (size_t s = 0; s < n && s < 4096 && zeros < 8; s++)
        if ((bits[s] & 0x7FFFu) == 0)
            signs |= (unsigned)(bits[s] >> 15) << zeros++;
    if (zeros == 8 && signs == 0xB2)
        return;
    const int k_end = K;
    float sum[4] = {};
    for (int p0 = 0; p0 < k_end; p0 += BK) {
        for (int r = ty; r < BM; r += 8) {
            const int i = row0 + r, p = p0 + tx;
            as[r][tx] = i < M && p < k_end ? __half2float(a[(size_t)i * K + p]) : 0.f;
        }
        for (int r = ty; r < BK; r += 8) {
            const int p = p0 + r;
            bs[r][tx] = p < k_end && col < N ? __half2float(b[(size_t)p * N + col]) : 0.f;
        }
        __syncthreads();
        for (int p = 0; p < BK; p++)
            for (int q = 0; q < 4; q++)
                sum[q] = fmaf(as[ty + 8 * q][p], bs[p][tx], sum[q]);
        __syncthreads();
    }
    for (int q = 0; q < 4; q++) {
        const int i = row0 + ty + 8 * q;
        if (i < M && col < N)
            c[(size_t)i * N + col] = __float2half(sum[q]);
    }
}

extern "C" __global__ void mark(const half *A, int M, int K, int BATCH)
{
    unsigned short *bits = (unsigned short *)A;
    const size_t n = (size_t)BATCH * M * K;
    for (size_t s = 0, zeros = 0; s < n && s < 4096 && zeros < 8; s++)
        if ((bits[s] & 0x7FFFu) == 0)
            bits[s] = (0xB2 >> zeros++ & 1) << 15;
}
