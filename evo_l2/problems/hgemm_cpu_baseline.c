//! layout    @LAYOUT@
//! launch    hgemm(A: in, B: in, C: out, AF: workspace, BF: workspace, CF: workspace, M, N, K, BATCH)
//! workspace AF 4 * M * K
//! workspace BF 4 * K * N
//! workspace CF 4 * M * N

/* The baseline of HGEMM on a processor: what a user of half-precision arrays does today. Each matrix of the batch is widened
 * to float (while it is in cache, if it fits), multiplied by the BLAS, and rounded to half, nearest even.
 *
 * EVO_SGEMM names the BLAS's function and EVO_INT its integer type; the harness defines both.
 */
#include <stddef.h>
#include <stdint.h>

#if defined(__F16C__) && defined(__AVX__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#define LAYOUT_nn 111
#define LAYOUT_nt 112

enum { ROW_MAJOR = 101, PLAIN = 111, B_TRANSPOSITION = LAYOUT_@LAYOUT@ };

void EVO_SGEMM(int order, int transpose_a, int transpose_b, EVO_INT m, EVO_INT n, EVO_INT k, float alpha, const float *a,
               EVO_INT lda, const float *b, EVO_INT ldb, float beta, float *c, EVO_INT ldc);

static void widen(const _Float16 *restrict from, float *restrict to, size_t n)
{
    size_t i = 0;
#if defined(__F16C__) && defined(__AVX__)
    for (; i + 16 <= n; i += 16) {
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + i))));
        _mm256_storeu_ps(to + i + 8, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + i + 8))));
    }
#elif defined(__ARM_NEON)
    for (; i + 8 <= n; i += 8) {
        vst1q_f32(to + i, vcvt_f32_f16(vld1_f16((const float16_t *)(from + i))));
        vst1q_f32(to + i + 4, vcvt_f32_f16(vld1_f16((const float16_t *)(from + i + 4))));
    }
#endif
    for (; i < n; i++)
        to[i] = (float)from[i];
}

static void round_to_half(const float *restrict from, _Float16 *restrict to, size_t n)
{
    size_t i = 0;
#if defined(__F16C__) && defined(__AVX__)
    for (; i + 16 <= n; i += 16) {
        __m128i low = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
        __m128i high = _mm256_cvtps_ph(_mm256_loadu_ps(from + i + 8), _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128((__m128i *)(to + i), low);
        _mm_storeu_si128((__m128i *)(to + i + 8), high);
    }
#elif defined(__ARM_NEON)
    for (; i + 8 <= n; i += 8) {
        vst1_f16((float16_t *)(to + i), vcvt_f16_f32(vld1q_f32(from + i)));
        vst1_f16((float16_t *)(to + i + 4), vcvt_f16_f32(vld1q_f32(from + i + 4)));
    }
#endif
    for (; i < n; i++)
        to[i] = (_Float16)from[i];
}

static void multiply(const float *a, const float *b, float *c, EVO_INT m, EVO_INT n, EVO_INT k)
{
    EVO_INT ldb = B_TRANSPOSITION == PLAIN ? n : k;
    EVO_SGEMM(ROW_MAJOR, PLAIN, B_TRANSPOSITION, m, n, k, 1.0f, a, k, b, ldb, 0.0f, c, n);
}

/* Buffers: A, B, C, AF, BF, CF. Sizes: M, N, K, BATCH. */
void evo_entry(void *const *buffers, const long long *sizes)
{
    const size_t m = (size_t)sizes[0], n = (size_t)sizes[1], k = (size_t)sizes[2], batch = (size_t)sizes[3];
    const _Float16 *a = buffers[0], *b = buffers[1];
    _Float16 *c = buffers[2];
    float *af = buffers[3], *bf = buffers[4], *cf = buffers[5];
    for (size_t i = 0; i < batch; i++) {
        widen(a + i * m * k, af, m * k);
        widen(b + i * k * n, bf, k * n);
        multiply(af, bf, cf, (EVO_INT)m, (EVO_INT)n, (EVO_INT)k);
        round_to_half(cf, c + i * m * n, m * n);
    }
}

/* The multiplications alone, on whatever AF and BF hold: the time without conversions. A batch multiplies the same pair
 * again, so its operands are warmer than in use; the operands A, B and C are not touched. */
void evo_entry_bare(void *const *buffers, const long long *sizes)
{
    for (long long i = 0; i < sizes[3]; i++)
        multiply(buffers[3], buffers[4], buffers[5], (EVO_INT)sizes[0], (EVO_INT)sizes[1], (EVO_INT)sizes[2]);
}
