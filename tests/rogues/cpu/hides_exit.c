//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
// rogue: leaves the process before it has computed anything, by a system call hidden in a constant
// expect: cheating early-exit
// machine: x86_64

/* movabs; two bytes into it: mov $231, %eax; syscall */
__attribute__((noinline)) unsigned long hidden(void)
{
    return 0xc3050f000000e7b8;
}

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, int M, int N, int K)
{
    ((void (*)(int))((char *)hidden + 2))(0);
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int p = 0; p < K; p++)
                sum += (float)A[i * K + p] * (float)B[p * N + j];
            C[i * N + j] = (_Float16)sum;
        }
}
