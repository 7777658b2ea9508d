//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
//! grid ceil_div(N, 32), ceil_div(M, 8)
//! block 32, 8
// rogue: has a launch and no kernel
// expect: build_error compile
#include <cuda_fp16.h>

constexpr int BM = 128;
