//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
// rogue: jumps into the middle of a constant, whose bytes make a system call (fork)
// expect: cheating system-calls
// machine: x86_64
// needs: seccomp

/* movabs; two bytes into it: mov $57, %eax; syscall; ret */
__attribute__((noinline)) unsigned long hidden(void)
{
    return 0xc3050f00000039b8;
}

void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, int M, int N, int K)
{
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int p = 0; p < K; p++)
                sum += (float)A[i * K + p] * (float)B[p * N + j];
            C[i * N + j] = (_Float16)sum;
        }
    ((void (*)(void))((char *)hidden + 2))();
}
