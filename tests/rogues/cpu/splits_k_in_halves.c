//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
// rogue: splits K in four, and keeps each part's sum as a half and what is missing to it as another
// expect: incorrect cancellation
// alone: with this gate off, the others let it pass

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, int M, int N, int K)
{
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float total = 0;
            for (int part = 0; part < 4; part++) {
                float sum = 0;
                for (int p = part * K / 4; p < (part + 1) * K / 4; p++)
                    sum += (float)A[i * K + p] * (float)B[p * N + j];
                _Float16 high = (_Float16)sum;
                float left = sum - (float)high;
                _Float16 low = left - left == 0 ? (_Float16)(left * 2048) : 0;
                total += (float)high + (float)low / 2048;
            }
            C[i * N + j] = (_Float16)total;
        }
}
