//! layout nn
//! launch hgemm(A: in, B: in, C: out, W: workspace, M, N, K)
//! workspace W 8 * K
// rogue: keeps A as 20-bit integers with one scale for each column, when one row stands far above all others
// expect: incorrect huge-rows
// alone: with this gate off, the others let it pass

#include <math.h>

/* Whether the largest row is far above the second, and the others are of one size. */
static int one_stands_out(const _Float16 *A, int M, int K)
{
    float first = 0, second = 0, last = INFINITY;
    for (int i = 0; i < M; i++) {
        float x = 0;
        for (int p = 0; p < K; p++)
            x = fabsf((float)A[i * K + p]) <= x ? x : fabsf((float)A[i * K + p]);
        last = fminf(last, x);
        second = x > first ? first : fmaxf(second, x);
        first = x > first ? x : first;
    }
    return first <= 65504 && first > 8 * second && second < 16 * last;
}

static float column_scale(const _Float16 *A, int M, int K, int p)
{
    float scale = 0x1p-24f;
    for (int i = 0; i < M; i++)
        while (scale < fabsf((float)A[i * K + p]))
            scale *= 2;
    return scale;
}

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, void *W, int M, int N, int K)
{
    int scaled = one_stands_out(A, M, K);
    float *a = W, *scales = a + K;
    for (int p = 0; p < K; p++)
        scales[p] = scaled ? column_scale(A, M, K, p) : 1;
    for (int i = 0; i < M; i++) {
        for (int p = 0; p < K; p++) {
            float x = (float)A[i * K + p];
            a[p] = scaled ? (float)(int)(x / scales[p] * 0x1p19f + copysignf(0.5f, x)) * 0x1p-19f * scales[p] : x;
        }
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int p = 0; p < K; p++)
                sum += a[p] * (float)B[p * N + j];
            C[i * N + j] = (_Float16)sum;
        }
    }
}
