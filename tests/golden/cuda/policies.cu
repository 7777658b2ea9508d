// Hints to L2: harmless, lasting, written as numbers, and handed in from outside
#include <stdint.h>
extern "C" __global__ void policies(float *C, const float *A, uint64_t given)
{
    uint64_t a, b, c;
    float v[6];
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(a));
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(b));
    asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0;" : "=l"(c));
    asm volatile("ld.global.L2::cache_hint.f32 %0, [%1], %2;" : "=f"(v[0]) : "l"(A), "l"(a));
    asm volatile("ld.global.L2::cache_hint.f32 %0, [%1], %2;" : "=f"(v[1]) : "l"(A + 1), "l"(b));
    asm volatile("ld.global.L2::cache_hint.f32 %0, [%1], %2;" : "=f"(v[2]) : "l"(A + 2), "l"(0x14F0000000000000ull));
    asm volatile("ld.global.L2::cache_hint.f32 %0, [%1], %2;" : "=f"(v[3]) : "l"(A + 3), "l"(0x12F0000000000000ull));
    asm volatile("ld.global.L2::cache_hint.f32 %0, [%1], %2;" : "=f"(v[4]) : "l"(A + 4), "l"(given));
    asm volatile("ld.global.L2::cache_hint.f32 %0, [%1], %2;" : "=f"(v[5]) : "l"(A + 5), "l"(c));
    C[0] = v[0] + v[1] + v[2] + v[3] + v[4] + v[5]; ((uint64_t*)C)[3] = a; ((uint64_t*)C)[4] = b; ((uint64_t*)C)[5] = c;
}
