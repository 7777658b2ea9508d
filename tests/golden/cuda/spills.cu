// More values than registers
extern "C" __global__ void __maxnreg__(24) spills(const float *A, float *C, int n)
{
    float x[48], y[48];
#pragma unroll
    for (int i = 0; i < 48; i++)
        x[i] = A[i * n], y[i] = A[i * n + 7];
#pragma unroll 1
    for (int k = 0; k < n; k++)
#pragma unroll
        for (int i = 0; i < 48; i++)
            x[i] = x[i] * y[(i * 7 + 1) % 48] + y[i] * x[(i * 5 + 3) % 48];
#pragma unroll
    for (int i = 0; i < 48; i++)
        C[i * n] = x[i] + y[i];
}
