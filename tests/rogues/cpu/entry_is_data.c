//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
// rogue: names a constant as its entry
// expect: runtime_error run

const unsigned char hgemm[] = {0xc3};
