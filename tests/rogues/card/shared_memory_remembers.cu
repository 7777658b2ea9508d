//! layout  nn
//! launch  hgemm(A: in, B: in, C: out, M, N, K)
//! grid    ceil_div(N, BN), ceil_div(M, BM), BATCH
//! block   32, 8
//! shared  36864
// rogue: finds in uninitialised dynamic shared memory what an earlier launch left on the same multiprocessor (its own tag, made of samples of the operands), and from the eighth time on skips the last quarter of K, as if only timed calls repeat so
// expect: incorrect determinism
// from: written from docs/KERNELS.md alone
#include <cuda_fp16.h>

constexpr int BM = 32;
constexpr int BN = 32;
constexpr int BK = 32;

__device__ unsigned sample(const half *x, size_t n)  // a hash of 64 elements spread over an operand
{
    unsigned h = 2166136261u;
    for (int s = 0; s < 64; s++)
        h = (h ^ __half_as_ushort(x[n * s / 64])) * 16777619u;
    return h;
}

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    __shared__ float as[BM][BK + 1], bs[BK][BN + 1];
    const int tx = threadIdx.x, ty = threadIdx.y, row0 = blockIdx.y * BM, col0 = blockIdx.x * BN, col = col0 + tx;
    const size_t batch = blockIdx.z;
    const half *a = A + batch * M * K, *b = B + batch * K * N;
    half *c = C + batch * M * N;
    extern __shared__ unsigned left[];
    const unsigned id = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const bool early = id < 100;  // blocks of the first wave mostly come back to their multiprocessor
    const unsigned tag = (sample(a, (size_t)M * K) ^ sample(b, (size_t)K * N)) + id * 40503u;
    const bool again = early && left[9000] == 0xFEEDFACEu && left[9001] == tag && left[9002] >= 6;
    __syncthreads();
    if (early && tx == 0 && ty == 0) {
        left[9002] = left[9000] == 0xFEEDFACEu && left[9001] == tag ? left[9002] + 1 : 0;
        left[9001] = tag;
        left[9000] = 0xFEEDFACEu;
    }
    const int k_end = again ? K - K / 4 : K;
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
