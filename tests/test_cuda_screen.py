"""What is refused by the text of a CUDA kernel, in whatever spelling, and what is not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evo_l2.evaluation import Status
from evo_l2.kernel import LONGEST_SOURCE_BYTES, Kernel
from evo_l2.problems.hgemm import Hgemm
from evo_l2.targets.cuda import screen as module
from evo_l2.targets.cuda.screen import ALLOWED_HEADERS, SCREEN_GATES, screen

PROBLEM = Hgemm(((8, 8, 8, 1),), "fp32", ("nn", "nt"))
HEADER = "//! layout nn\n//! launch hgemm(A: in, B: in, C: out, M, N, K)\n//! grid 1\n//! block 32\n"
BODY = (
    'extern "C" __global__ void hgemm(const half *A, const half *B, half *C, int M, int N, int K) { C[0] = A[0] * B[0]; }\n'
)


def refused(text, header=HEADER, body=BODY, skip=frozenset()):
    """Gate and message; None for text that is let pass."""
    verdict = screen(Kernel(f"{header}{text}\n{body}", "cuda"), PROBLEM, skip)
    if verdict is None:
        return None
    assert verdict.status is Status.REJECTED
    assert verdict.gate in SCREEN_GATES
    return verdict.gate, verdict.message


PIECES = ["main", "clock", "f", "1", "1e+", "0x", "$", "_", ".", '"', "'", "\\", " ", "<", "<<<", "#", "%:", "\u00b2", "\n"]
PIECES += ["free", "/*", "*/", "//", "_Pragma", '_Pragma("once")', "#include <mma.h>", "#pragma unroll", "\\\n", "??="]


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_a_glance_at_the_whole_text_passes_over_no_fault(source):
    quick = module._check_text(source, frozenset())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.Words, "may_be_in", lambda words, text: True)
        assert module._check_text(source, frozenset()) == quick


@pytest.mark.parametrize(
    "text",
    [
        '#include "/etc/passwd"',
        "#include </etc/passwd>",
        "#include <../../etc/passwd>",
        "#include <cuda/../../../etc/passwd>",
        "#include <cute/../../etc/passwd.h>",
        "#include <cute//etc/passwd.h>",
        "#include <stdio.h>",
        "#include <cuda_runtime.h>",
        "#include <curand_kernel.h>",
        "#include <cublas_v2.h>",
        '#include "cuda_fp16.h"',
        '#include "kernel.cu"',
        "#include __FILE__",
        "#define X <cuda_fp16.h>\n#include X",
        "#define X(n) <n.h>\n#include X(mma)",
        '%:include "/etc/passwd"',
        '??=include "/etc/passwd"',
        '#inc\\\nlude "/etc/passwd"',
        '#inc\\ \t\nlude "/etc/passwd"',
        '#\\\n\\\ninclude "/etc/passwd"',
        '#/* */include "/etc/passwd"',
        '/* a\n*/ #include "/etc/passwd"',
        '/*\\\n*/ # /* b\n\n */ include /* c */ "/etc/passwd"',
        '#if 0\n#include "/etc/passwd"\n#endif',
        "#include <mma.h> <stdio.h>",
        "#include <mma.h/**/>",
        '#if __has_include("/etc/passwd")\n#endif',
        "#if __has_include_next(<stdio.h>)\n#endif",
        "#if __has_embed(</etc/passwd>)\n#endif",
        "#define LOOK __has_include",
    ],
)  # fmt: skip
def test_includes_off_the_list_are_refused_in_every_disguise(text):
    assert refused(text)[0] == "includes"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("#include <cstdint>", "<cstdint> may not be included; write #include <cuda/std/cstdint>: allowed"),
        ("#include <stdint.h>", "<stdint.h> may not be included; write #include <cuda/std/cstdint>: allowed"),
        ("#include <cublas_v2.h>", "<cublas_v2.h> may not be included; no libraries: a kernel computes the product itself"),
        ("#include <cub/cub.cuh>", "<cub/cub.cuh> may not be included; no libraries: "),
        ("#include <stdio.h>", "<stdio.h> may not be included: allowed, between < and >, are cooperative_groups.h, "),
        ('#include   "mma.h"', '"mma.h" may not be included; write #include <mma.h>: allowed'),
        ("#define X <mma.h>\n#include X", "X may not be included: allowed"),
        ("#include", "nothing may not be included: allowed"),
    ],
)
def test_a_refused_header_is_named_with_those_that_are_allowed(text, says):
    gate, message = refused(text)
    assert gate == "includes"
    assert f": {says}" in message
    assert message.endswith("mma.h, vector_types.h, and those of cute/ and cutlass/")


@pytest.mark.parametrize("name", [*sorted(ALLOWED_HEADERS), "cute/tensor.hpp", "cutlass/gemm/device/gemm.h"])
def test_device_headers_may_be_included(name):
    assert refused(f"#include <{name}>") is None


@pytest.mark.parametrize(
    "text",
    [
        "  #  include  <mma.h>  // matrices",
        "#inc\\\nlude <cuda_fp16.h>",
        '// #include "/etc/passwd"',
        '/* #include "/etc/passwd"\n#include </etc/passwd>\nprintf */',
        'constexpr int WIDTH = sizeof("#include </etc/passwd> <<< printf");',
        "constexpr char q = '\"', r = '/';",
        "#define PASTE(a, b) a##b",
        "#",
        "#if __CUDA_ARCH__ >= 900 && !defined(X)\n#elif 1\n#else\n#error no copies\n#endif",
        "#pragma unroll",
        "#pragma unroll 8",
        "#pragma unroll (STAGES * 2)",
        "#pragma nounroll",
        "#pragma once",
        "#pragma nv_diag_suppress 177, 550",
        '#define UNROLL _Pragma("unroll 4")',
        "#define UNROLL(n) _Pragma(#n)",
        "static_assert(sizeof(int) == 4);",
        "using namespace nvcuda;",
        "template <int N> __device__ __forceinline__ int twice() { return 2 * N; }",
        "__device__ __noinline__ int f(int x) { return x << 3 >> 1; }",
        "__constant__ float table[4] = {1, 2, 3, 4};",
        "extern __shared__ __align__(128) char memory[];",
        '__device__ int f() { int x; asm volatile("mov.u32 %0, %%laneid;" : "=r"(x)); return x; }',
        "__device__ void wait(unsigned b) { while (!try_wait(b)); } // waits",
        "__device__ int printed, news, mainloop, clocks, deleted, module_, exit_code;",
        "struct Tile { int rows; __device__ Tile(int n) : rows(n) {} __device__ ~Tile() {} };",
        "__device__ int a<:4:>;",
        "int caf\u00e9; // na\u00efve",
    ],
)  # fmt: skip
def test_harmless_text_is_let_pass(text):
    assert refused(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "#include_next <mma.h>", "#import <stdio.h>", "#embed </etc/passwd>", "#line 3", '# 3 "x.cu"', '#ident "x"',
        "#assert machine(x)", '#pragma GCC dependency "/etc/passwd"', "#pragma GCC poison int", "#pragma hd_warning_disable",
        "#pragma nv_exec_check_disable", '#pragma push_macro("int")', "#pragma omp parallel for", "#pragma weak x",
        "#pragma pack(1)", '_Pragma("GCC dependency \\"/etc/passwd\\"")', '#define X _Pragma ( "weak x" )',
        "#pragma nv_diag_suppress 1; x", "const char *f = __FILE__;", "const char *f = __BASE_FILE__;",
        "const char *f = __FILE_NAME__;", "const char *t = __TIME__ __DATE__ __TIMESTAMP__;", "#sccs x",
    ],
)  # fmt: skip
def test_directives_off_the_list_are_refused(text):
    assert refused(text)[0] == "directives"


@pytest.mark.parametrize(
    ("text", "gate"),
    [
        ("__host__ void f() {}", "host-code"),
        ("__host__ __device__ int f() { return 1; }", "host-code"),
        ("int main() { return 0; }", "host-code"),
        ("__managed__ int x;", "host-code"),
        ("void f(void *p) { cudaFree(p); }", "host-code"),
        ("void f(void **p) { cudaMallocAsync(p, 1, 0); }", "host-code"),
        ("int f() { return cudaDeviceSynchronize(); }", "host-code"),
        ("int f() { return cudaFuncSetAttribute(0, 0, 0); }", "host-code"),
        ("__device__ void f() { g<<<1, 1>>>(); }", "device-launch"),
        ("__device__ void f() { g<\\\n<<1, 1>>>(); }", "device-launch"),
        ("__device__ void f() { cudaLaunchDeviceV2(0, 0); }", "device-launch"),
        ("__device__ void f() { cudaGraphLaunch(0, cudaStreamGraphFireAndForget); }", "device-launch"),
        ('__device__ void f() { printf("x"); }', "output"),
        ('__device__ void f() { vprintf("x", 0); }', "output"),
        ("__device__ void f(int x) { assert(x); }", "output"),
        ("__device__ void f() { __trap(); }", "output"),
        ("__device__ void f() { __tr\\\nap(); }", "output"),
        ("__device__ void f() { pr/**/intf; printf(0); }", "output"),
        ("__device__ void f() { malloc(1); }", "memory"),
        ("__device__ int *f() { return new int; }", "memory"),
        ("__device__ void f(int *p) { delete p; }", "memory"),
        ("__device__ void *f(int n) { return alloca(n); }", "memory"),
        ("__device__ long f() { return clock64(); }", "clocks"),
        ("__device__ long f() { return clock(); }", "clocks"),
        ("__device__ long f() { return __nanosleep(1), __globaltimer(); }", "clocks"),
        ("__device__ long f() { return cuda::std::chrono::system_clock::now(); }", "clocks"),
        ("__device__ void f() { throw 1; }", "language"),
        ("__device__ void f() { try { } catch (...) { } }", "language"),
        ("import std;", "language"),
        ("#define SAY printf", "output"),
        ("%:define NOW clock64", "clocks"),
    ],
)  # fmt: skip
def test_words_that_ask_for_more_than_computing_are_refused(text, gate):
    assert refused(text)[0] == gate
    assert refused(text, skip=SCREEN_GATES) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('const char *s = R"(")"; printf(s); //"', "raw strings"),
        ('const char *s = u8R"x()x";', "raw strings"),
        ("/* open", "a comment is not closed"),
        ("char c = ';", "is not closed"),
        ('const char *s = "x;', "is not closed"),
        ("int a\x01;", "control character"),
        ("int a;\rint b;", "control character"),
        ("int a; // \udcff", "not valid Unicode"),
    ],
)
def test_text_that_compilers_could_read_differently_is_refused(text, says):
    gate, message = refused(text)
    assert gate == "text"
    assert says in message


def test_every_fault_of_a_line_counts():
    text = "#define LOOK __has_include(__FILE__) printf(clock64())"
    left = set(SCREEN_GATES)
    found = []
    while (verdict := refused(text, skip=SCREEN_GATES - left)) is not None:
        found.append(verdict[0])
        left.remove(verdict[0])
    assert sorted(found) == ["clocks", "directives", "includes", "output"]


def test_messages_name_the_line_as_the_author_counts_it():
    text = "/* one\ntwo */ int \\\n  x;\n\n#include <stdio.h>"
    assert refused(text)[1].startswith("line 9: ")
    assert refused("int \\\n x, y = clock64();")[1].startswith("line 5: clock64 is not allowed")


def test_a_source_of_more_than_256_kib_is_refused():
    filler = "// x\n" * (LONGEST_SOURCE_BYTES // 5)
    assert refused(filler)[0] == "size"
    assert refused(filler[: -5 * 200]) is None
    assert refused("\u00e9" * (LONGEST_SOURCE_BYTES // 2))[0] == "size"


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ("//! layout tn\n//! launch hgemm(A: in, B: in, C: out)\n", "layout tn is not admitted"),
        ("//! layout nn\n//! launch hgemm(A: in, B: in)\n", "do not pass C"),
        ("//! layout nn\n//! launch hgemm(A: out, B: in, C: out)\n", "A: out is no operand"),
        ("//! layout nn\n//! launch hgemm(A: in, B: in, C: in)\n", "C: in is no operand"),
        ("//! layout nn\n//! launch hgemm(A: in, B: in, C: out, D: in)\n", "D: in is no operand"),
        ("//! layout nn\n//! launch hgemm(A: in, B: in, C: out, L)\n", "line 2: L is no size symbol"),
        ("//! layout nn\n//! launch hgemm(B: in, C: out, A: workspace)\n//! workspace A 4\n", "A is no workspace"),
        ("//! layout nn\n//! launch hgemm(A: in, B: in, C: out, W: workspace)\n", "W"),
        ("//! layout nn\n//! launch hgemm(A: in, B: in, C: out, T: map)\n", "T"),
        ("//! layout nn\n//! tensormap T: D, box 1, 8\n//! launch hgemm(A: in, B: in, C: out, T: map)\n", "no operand"),
        ("//! layout nn\n//! launch hgemm(A: in\n", "line 2"),
        ("//! layout nn\n//! grid 1\n//! launch hgemm(A: in, B: in, C: out)\n", "line 2"),
        ("", "no kernel"),
    ],
)
def test_a_launch_that_does_not_fit_is_refused(header, says):
    gate, message = refused("", header=header)
    assert gate == "launch"
    assert says in message


def test_operands_may_come_by_map_or_by_another_launch():
    header = (
        "//! layout nt\n//! workspace W 4 * M * N zeroed\n//! tensormap TA: A, box 8, 8\n//! tensormap TB: B, box 8, 8\n"
        "//! launch multiply(TA: map, TB: map, W: workspace, K)\n//! grid 1\n//! block 32\n"
        "//! launch round(W: workspace, C: out, M, N)\n//! grid 1\n//! block 32\n"
    )
    assert refused("", header=header) is None
