// FP8 products: on Hopper a warp's are done as half-precision ones after a conversion
#include <stdint.h>
extern "C" __global__ void narrow(float *C, const uint32_t *A)
{
    float s[4] = {0, 0, 0, 0}; extern __shared__ float dyn[];
    asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3]) : "r"(A[0]), "r"(A[1]), "r"(A[2]), "r"(A[3]), "r"(A[4]), "r"(A[5]));
    dyn[threadIdx.x] = s[0]; __syncthreads();
    C[0] = dyn[threadIdx.x ^ 1] + s[1] + s[2] + s[3];
}
