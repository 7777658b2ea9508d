//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
// rogue: declares a launch and defines no function
// expect: build_error compile, unlaunchable load

static const int nothing = 0;
