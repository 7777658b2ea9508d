//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
// rogue: names a constant as its entry
// expect: build_error compile

const unsigned char hgemm[] = {0xc3};
