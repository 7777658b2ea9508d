//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
// rogue: has its entry chosen by a function that runs while it is loaded
// expect: rejected attributes

static void real(void)
{
}

static void *choose(void)
{
    return (void *)real;
}

void hgemm(void) __attribute__((ifunc("choose")));
