// Large arguments, a cluster, recursion with a stack, a call to the outside
#include <cuda_fp16.h>
#include <stdio.h>
#if __CUDA_ARCH__ >= 900
#define CLUSTER __cluster_dims__(2, 1, 1)
struct Big { int x[1200]; };
#else
#define CLUSTER
struct Big { int x[40]; };
#endif
__device__ __noinline__ int deep(int n)
{
    int local[20];
    for (int i = 0; i < 20; i++)
        local[i] = i * n;
    return local[n & 15] + (n > 3 ? deep(n - 1) : 0);
}
extern "C" __global__ void CLUSTER clustered(Big big, int *C)
{
    C[threadIdx.x] = big.x[threadIdx.x];
}
extern "C" __global__ void recursive(int *C, int n)
{
    C[0] = deep(n);
    printf("%d\n", n);
    if (n == 77)
        asm("trap;");
}
