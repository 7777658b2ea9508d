"""What is refused by a kernel's text, in whatever spelling, and what is not."""

import time

import pytest

from evo_l2.evaluation import Status
from evo_l2.kernel import LONGEST_SOURCE_BYTES, Kernel
from evo_l2.problems.hgemm import Hgemm
from evo_l2.targets.cpu.screen import screen, screen_preprocessed
from evo_l2.targets.source import Line, logical_lines, preprocessed_lines

PROBLEM = Hgemm(((8, 8, 8, 1),), "fp32", ("nn", "nt"))
HEADER = "//! layout nn\n//! launch hgemm(A: in, B: in, C: out, M, N, K)\n"
BODY = "void hgemm(const _Float16 *A, const _Float16 *B, _Float16 *C, int M, int N, int K) { C[0] = A[0] * B[0]; }\n"


def refused(text, header=HEADER, body=BODY):
    """Gate and message; None for text that is let pass."""
    verdict = screen(Kernel(f"{header}{text}\n{body}", "cpu"), PROBLEM)
    if verdict is None:
        return None
    assert verdict.status is Status.REJECTED
    return verdict.gate, verdict.message


@pytest.mark.parametrize(
    "text",
    [
        '#include "/etc/passwd"',
        "#include </etc/passwd>",
        "#include <../../etc/passwd>",
        "#include <stdio.h>",
        '#include "math.h"',
        "#define X <math.h>\n#include X",
        '%:include "/etc/passwd"',
        '??=include "/etc/passwd"',
        '#inc\\\nlude "/etc/passwd"',
        '#inc\\ \t\nlude "/etc/passwd"',
        '#\\\n\\\ninclude "/etc/passwd"',
        '#/* */include "/etc/passwd"',
        '/* a\n*/ #include "/etc/passwd"',
        '/*\\\n*/ # /* b\n\n */ include /* c */ "/etc/passwd"',
        '#if 0\n#include "/etc/passwd"\n#endif',
        "#include <math.h> <stdio.h>",
        "#include <math.h/**/>",
    ],
)  # fmt: skip
def test_includes_off_the_list_are_refused_in_every_disguise(text):
    assert refused(text)[0] == "includes"


def test_a_refused_header_is_named_with_those_that_are_allowed():
    assert "<stdio.h> may not be included: allowed, between < and >, are arm_fp16.h, " in refused("#include <stdio.h>")[1]
    assert '"math.h" may not be included; write #include <math.h>: allowed' in refused('#include "math.h"')[1]


@pytest.mark.parametrize(
    "text",
    [
        "#include <math.h>",
        "  #  include  <immintrin.h>  // wide",
        "#inc\\\nlude <stdint.h>",
        '// #include "/etc/passwd"',
        '/* #include "/etc/passwd"\n#include </etc/passwd>\n*/',
        'static const char s[] = "#include </etc/passwd> asm";',
        "static const char q = '\"'; static const char r[] = \"/*\";",
        "#define PASTE(a, b) a##b",
        "#",
        "#if defined(__AVX2__) && !defined(X)\n#elif 1\n#else\n#error no vectors\n#endif",
        "#pragma GCC unroll 8",
        "#pragma GCC ivdep",
        "#pragma GCC optimize (\"O3,unroll-loops\")",
        "#pragma GCC push_options\n#pragma GCC pop_options",
        "#pragma omp simd reduction(+:sum)",
        "#pragma clang loop unroll_count(4)",
        "#pragma STDC FP_CONTRACT ON",
        '#define U _Pragma("GCC unroll 4")',
        "#define U(n) _Pragma(#n)",
        "typedef float vec __attribute__((vector_size(32), may_alias, aligned(4)));",
        "static int copy(int section) { return section; }",
        "int asmx, my_asm;",
    ],
)  # fmt: skip
def test_harmless_text_is_let_pass(text):
    assert refused(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "#include_next <stdint.h>", "#import <stdio.h>", "#embed </etc/passwd>", "#line 3", '# 3 "x.c"', "#ident \"x\"",
        "#assert machine(x)", "#pragma once", '#pragma GCC dependency "/etc/passwd"', "#pragma GCC poison int",
        "#pragma GCC push_macro(\"int\")", "#pragma weak x", "#pragma omp parallel for", "#pragma redefine_extname a b",
        '_Pragma("GCC dependency \\"/etc/passwd\\"")', '#define X _Pragma ( "weak x" )', "const char *f = __FILE__;",
        "const char *t = __TIME__ __DATE__;", '#pragma GCC optimize("/etc/x")',
    ],
)  # fmt: skip
def test_directives_off_the_list_are_refused(text):
    assert refused(text)[0] == "directives"


@pytest.mark.parametrize(
    ("text", "gate"),
    [
        ('void f(void) { asm("nop"); }', "assembly"),
        ('void f(void) { __asm__ volatile ("nop"); }', "assembly"),
        ('register long r __asm ("rsp");', "assembly"),
        ("#define X asm", "assembly"),
        ("void f(void) { as\\\nm(0); }", "assembly"),
        ("#if __has_include(<stdio.h>)\n#endif", "includes"),
        ("#if __has_embed(</etc/passwd>)\n#endif", "includes"),
        ("void f(void) { __builtin_longjmp(0, 1); }", "symbols"),
        ("void *f(void) { return __builtin_frame_address(0); }", "builtins"),
    ],
)
def test_words_that_ask_for_more_than_computing_are_refused(text, gate):
    assert refused(text)[0] == gate


@pytest.mark.parametrize(
    "text",
    [
        "#define X 1\n#include <math.h>", "#undef X\n#include <math.h>", "int x;\n#include <math.h>",
        "#include <math.h>\n#define X 1 //? 1 2\n#include <string.h>", "%:define size_t int\n%:include <string.h>",
        "#de\\\nfine X 1\n#include <math.h>", "#include <stdint.h>\nlong n = INT64_C(\n#include <float.h>\n3);",
        "#if 1\n#define X 1\n#endif\n#include <math.h>", "__attribute__((\n#include <stddef.h>\nhot)) int f(void);",
        '_Pragma("GCC ivdep")\n#include <math.h>',
    ],
)  # fmt: skip
def test_headers_come_before_macros_and_code(text):
    gate, message = refused(text)
    assert gate == "includes"
    assert "move it to the top" in message


def test_conditions_and_pragmas_may_stand_before_headers():
    text = '#pragma GCC optimize ("O3")\n#if defined(__AVX2__)\n#\n#include <immintrin.h>\n#else\n#include <math.h>\n#endif\n'
    assert refused(text + "#include <string.h>\n#define X 1\nint y;") is None


@pytest.mark.parametrize(
    "text",
    [
        "#define __THROW ;", "#undef __THROW", "#define __THROW(x) x", "#  define  _GNU_SOURCE", "%:define __attribute__(x)",
        "#de\\\nfine __T", "#define /* */ _Noreturn", "#define __", "#undef _Float16",
    ],
)  # fmt: skip
def test_names_of_the_compiler_are_not_defined(text):
    gate, message = refused(text)
    assert gate == "directives"
    assert "belong to the compiler" in message


def test_names_of_ones_own_are_defined():
    assert refused("#define _x 1\n#define X__ 2\n#define x_y(a) a\n#undef x_y\nint __builtin;") is None


@pytest.mark.parametrize("character", "\x1b\x7f\x80\x85\x9b\u061c\u200e\u2028\u202a\u202e\u2066\u2069")
@pytest.mark.parametrize("where", ["// {}\n", "//! flags -O9{}\n", "//! {}\n", "//! launch {}(\n"])
def test_what_a_terminal_obeys_is_refused_before_any_message_shows_it(character, where):
    gate, message = refused("", header=HEADER + where.replace("{}", character))
    assert gate == "text"
    assert message == f"line 3: there is a control character (U+{ord(character):04X})"


def test_letters_of_every_language_may_stand_in_comments():
    assert refused("// \u00a0\u00e9 \u6f22 \u05d0 \U0001f600\t\x0c\r\n") is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('const char *s = R"(")"; asm("nop"); //"', "raw strings"),
        ('const char *s = u8R"x()x";', "raw strings"),
        ("/* open", "a comment is not closed"),
        ("char c = ';", "is not closed"),
        ('const char *s = "x;', "is not closed"),
        ("int a\x01;", "control character"),
        ("int a;" + " " * 201, "200 blanks"),
        ("int a;\rint b;", "control character"),
    ],
)
def test_text_that_compilers_could_read_differently_is_refused(text, says):
    gate, message = refused(text)
    assert gate == "text"
    assert says in message


def test_messages_name_the_line_as_the_author_counts_it():
    text = "/* one\ntwo */ int \\\n  x;\n\n#include <stdio.h>"
    assert refused(text)[1].startswith("line 7: ")
    assert refused("int \\\n x, asm;")[1].startswith("line 3: ")


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ("//! layout tn\n//! launch hgemm(A: in, B: in, C: out)\n", "layout tn is not admitted"),
        ("//! layout nn\n//! launch hgemm(A: in, B: in)\n", "does not pass C"),
        ("//! layout nn\n//! launch hgemm(A: out, B: in, C: out)\n", "A: out is no operand"),
        ("//! layout nn\n//! launch hgemm(A: in, B: in, C: out, D: in)\n", "D: in is no operand"),
        ("//! layout nn\n//! launch hgemm(A: in, B: in, C: out, L)\n", "line 2: L is no size symbol"),
        (
            "//! layout nn\n//! launch hgemm(A: in, B: in, C: out)\n//! launch other(A: in, B: in, C: out)\n",
            "one launch line",
        ),
        ("//! layout nn\n//! launch hgemm(B: in, C: out, A: workspace)\n//! workspace A 4\n", "A is no workspace"),
        ("//! layout nn\n//! launch hgemm(A: in, B: in, C: out, W: workspace)\n//! workspace W X\n", "unknown name"),
        ("//! layout nn\n//! launch hgemm(A: in, B: in, C: out, W: workspace)\n//! workspace W -1\n", "no usable size"),
        ("//! launch hgemm(A: in\n", "line 1"),
        ("", "no kernel"),
    ],
)
def test_a_launch_that_does_not_fit_is_refused(header, says):
    gate, message = refused("", header=header)
    assert gate == "launch"
    assert says in message


@pytest.mark.parametrize(
    "flag",
    ["-fplugin=x.so", "-include", "-DX=1", "-I/etc", "@file", "-wrapper", "-O3;id", "-specs=x", "-o", "-save-temps",
     "-std=c2x", "-fno-pic", "-flto", "-x", "-Wl,-e,x", "-fstack-protector", "-fsanitize=address", "-march=i386",
     "-O3\u00a0-x", "--param=x=1"],
)  # fmt: skip
def test_flags_off_the_list_are_refused_by_name(flag):
    gate, message = refused("", header=HEADER + f"//! flags -O2 {flag}\n")
    assert gate == "flags"
    assert flag.split()[0][:60] in message


def test_flags_on_the_list_are_let_pass():
    flags = "-O1 -O2 -O3 -Ofast -ffast-math -fno-math-errno -funroll-loops -mprefer-vector-width=512 -falign-loops=64"
    assert refused("", header=HEADER + f"//! flags {flags}\n") is None


def test_a_source_that_is_too_long_or_no_text_is_refused():
    assert refused("//" + "é" * (LONGEST_SOURCE_BYTES // 2))[0] == "size"
    assert refused("// \udc80")[0] == "text"


HOSTILE = {
    "blanks": "#define A x" + " " * 200_000 + "y",
    "runs of blanks": "#define A x" + (" " * 200 + "y") * 1200,
    "comments": "#define A x" + "/**/" * 50_000 + "y",
    "blank pragmas": "#pragma GCC unroll" + " " * 200_000 + "4 4",
    "backslashes": "int a; //" + "\\ " * 100_000 + "x",
    "quotes": "char a[] = " + '"\'" ' * 50_000 + ";",
    "operators": "_Pragma(" * 25_000,
    "options": "#pragma GCC optimize(" + '"a",' * 50_000 + "x",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_text_takes_long_to_screen(name):
    begin = time.process_time()
    refused(HOSTILE[name])
    assert time.process_time() - begin < 10


@pytest.mark.parametrize("text", ["__attribute__((", "__attribute__((hot)) ", ";", "[", "(", "a ", '"', "'\"'"])
def test_no_expanded_text_takes_long_to_screen(text):
    begin = time.process_time()
    screen_preprocessed([Line(1, text * ((1 << 20) // len(text)))])
    assert time.process_time() - begin < 20


def test_comments_go_and_strings_stay():
    lines = logical_lines("int a; // x\nint /* b\n */ c; 'd' \"/* e */\"\n\n  %: f\n")
    assert lines == (Line(1, "int a;  "), Line(2, "int   c; 'd' \"/* e */\""), Line(5, "  %: f"))
    assert [line.is_directive for line in lines] == [False, False, True]
    assert lines[2].tokens == ("#", "f")


PREPROCESSED = """\
# 0 "<command-line>"
# 1 "kernel.c"

# 1 "/usr/include/math.h" 1 3 4
extern int hidden __asm__ ("x");
# 4 "kernel.c" 2
int a;

{}
"""


@pytest.mark.parametrize(
    ("text", "gate"),
    [
        ("int b;", None),
        ("#pragma GCC unroll 4", None),
        ("typedef float v __attribute__ ((__vector_size__ (4 * (2 + 2)), aligned(4)));", None),
        ("int x = a[b[0]];", None),
        ('asm("nop");', "assembly"),
        (' # 1 "/usr/include/math.h" 3', "directives"),
        (' # include "/etc/passwd"', "directives"),
        ("%:define X", "directives"),
        ("#pragma weak x", "directives"),
        ("__attribute__((constructor)) void f(void) {}", "attributes"),
        ("__attribute__((aligned(8),\n\n__destructor__)) void f(void) {}", "attributes"),
        ("int v __attribute((hot)) __attribute__((section(\"x\")));", "attributes"),
        ("[[gnu::constructor]] void f(void) {}", "attributes"),
        ("<: <:gnu::ifunc]] void f(void) {}", "attributes"),
        ("int v __attribute__((aligned(sizeof(struct { int x __attribute__((packed)); })), section(\"x\")));", "attributes"),
        ("int v __attribute__((aligned(sizeof(struct { int x __attribute__((packed)); })), hot));", None),
        ("int v __attribute__((hot(__attribute__), constructor));", "attributes"),
        ("int v __attribute__ __attribute__((constructor));", "attributes"),
        ("void f(void) { __builtin_setjmp(0); }", "symbols"),
    ],
)  # fmt: skip
def test_what_macros_made_is_screened_again(text, gate):
    verdict = screen_preprocessed(preprocessed_lines(PREPROCESSED.replace("{}", text), "kernel.c"))
    assert (verdict.gate if verdict is not None else None) == gate
    if verdict is not None:
        assert verdict.message.startswith("line 6: ")
