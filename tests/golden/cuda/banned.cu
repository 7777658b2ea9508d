// What no kernel may use
#include <cuda_fp16.h>
#include <stdio.h>
#include <stdint.h>
extern "C" __global__ void banned(float *C, const float *A, int n)
{
    long long t = clock64();
    unsigned long long g;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(g));
    unsigned c = clock();
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    float x, y, z;
    asm volatile("ld.global.L2::cache_hint.f32 %0, [%1], %2;" : "=f"(x) : "l"(A), "l"(policy));
    asm volatile("ld.global.L1::evict_last.f32 %0, [%1];" : "=f"(y) : "l"(A + 1));
    asm volatile("ld.global.L2::256B.f32 %0, [%1];" : "=f"(z) : "l"(A + 2));
    asm volatile("prefetch.global.L2 [%0];" ::"l"(A + 64));
    asm volatile("prefetch.global.L2::evict_last [%0];" ::"l"(A + 128));
    asm volatile("prefetchu.L1 [%0];" ::"l"(A + 128));
    asm volatile("applypriority.global.L2::evict_normal [%0], 128;" ::"l"(A + 128));
    asm volatile("discard.global.L2 [%0], 128;" ::"l"(C + 128));
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], 256;" ::"l"(A + 128));
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    if (n == 3) { printf("%d %lld\n", n, t); asm volatile("trap;"); }
    if (n == 4) asm volatile("brkpt;");
    if (n == 5) { int *p = (int *)malloc(n); *p = 3; free(p); }
    unsigned sm; asm volatile("mov.u32 %0, %smid;" : "=r"(sm));
    unsigned pm; asm volatile("mov.u32 %0, %pm0;" : "=r"(pm));
    __nanosleep(100);
    C[n] = x + y + z + (float)(t + g + c + sm + pm);
}
