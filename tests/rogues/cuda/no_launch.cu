// rogue: does not say how it is launched
// expect: rejected launch
#include <cuda_fp16.h>

extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K)
{
    C[0] = A[0];
}
