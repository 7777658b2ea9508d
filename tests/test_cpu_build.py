"""From source to shared object on the CPU target: what is refused, what is built, what the reader sees."""

import concurrent.futures
import os
import stat
import time
from pathlib import Path

import pytest

from evo_l2.errors import ToolchainError
from evo_l2.evaluation import BuildReport, Status, Verdict
from evo_l2.kernel import Kernel
from evo_l2.problems.hgemm import Hgemm
from evo_l2.sandbox import Limits, run_limited
from evo_l2.targets.cpu.compiler import Built, Compiler
from evo_l2.targets.cpu.machine_code import gate_machine_code, parse_disassembly, read_machine_code, resources_of
from evo_l2.targets.cpu.prepare import prepare
from evo_l2.targets.cpu.screen import screen
from evo_l2.targets.cpu.toolchain import Toolchain, find_toolchain

PROBLEM = Hgemm(((8, 8, 8, 1),), "fp32", ("nn", "nt"))
HEADER = "//! layout nn\n//! launch hgemm(A: in, B: in, C: out, M, N, K)\n"
ENTRY = "void hgemm(const _Float16 *restrict A, const _Float16 *B, _Float16 *C, int M, int N, int K)"
BODY = f"{ENTRY}\n{{\n    for (int i = 0; i < M * N; i++)\n        C[i] = A[i % K] * B[i % K];\n}}\n"


@pytest.fixture(scope="module")
def compiler(tmp_path_factory):
    return Compiler(find_toolchain(), tmp_path_factory.mktemp("cache"), cpu_s=5)


def kernel(text="", body=BODY, header=HEADER):
    return Kernel(f"{header}{text}\n{body}", "cpu")


def test_a_plain_kernel_passes_screen_build_and_gates(compiler):
    prepared = prepare(kernel("#include <stdint.h>\n#define N_UNROLL 4 //? 2 4"), PROBLEM, compiler)
    assert prepared.verdict is None
    assert prepared.artefact.exists()
    assert prepared.build.machine_code is not None
    assert prepared.measures == tuple(float(prepared.build.resources[axis.name]) for axis in PROBLEM.measures("cpu").axes)


@pytest.mark.parametrize(
    ("text", "gate"),
    [
        ('#include "/etc/passwd"', "includes"),
        ("#include <stdio.h>", "includes"),
        ("#include </etc/passwd>", "includes"),
        ("#define X <stdio.h>\n#include X", "includes"),
        ("%:include <stdio.h>", "includes"),
        ("??=include <stdio.h>", "includes"),
        ("#inc\\\nlude <stdio.h>", "includes"),
        ("#inc\\  \nlude <stdio.h>", "includes"),
        ("#/* */include <stdio.h>", "includes"),
        ("/* a\n*/ #include <stdio.h>", "includes"),
        ("# /* */ include /* */ <stdio.h>", "includes"),
        ("#include_next <stdint.h>", "directives"),
        ("#embed </etc/passwd>", "directives"),
        ("#import <stdio.h>", "directives"),
        ("#if __has_include(<stdio.h>)\n#endif", "includes"),
        ('const char *s = R"(")"; __asm__(".incbin \\"/etc/hostname\\""); //"', "directives"),
        ('#pragma GCC dependency "/etc/passwd"', "directives"),
        ('_Pragma("GCC dependency \\"/etc/passwd\\"")', "directives"),
        ("#pragma GCC poison int", "directives"),
        ("#define A B##C", "directives"),
        ('const char *f = __FILE__;', "directives"),
        ('void f(void) { __asm__("nop"); }', "assembly"),
        ('void f(void) { asm volatile("nop"); }', "assembly"),
        ('#define X asm\nvoid f(void) { X("nop"); }', "assembly"),
        ("__attribute__((constructor)) static void f(void) {}", "attributes"),
        ("#define X constructor\n__attribute__((X)) static void f(void) {}", "attributes"),
        ("__attribute__((\n__constructor__)) static void f(void) {}", "attributes"),
        ('int x __attribute__((section(".init_array")));', "attributes"),
    ],
)  # fmt: skip
def test_disguises_are_seen_through(text, gate):
    verdict = screen(kernel(text), PROBLEM)
    assert verdict is not None
    assert (verdict.status, verdict.gate) == (Status.REJECTED, gate)


@pytest.mark.parametrize(
    "text",
    ['// #include <stdio.h>', '/* asm */', '#pragma GCC unroll 4', '#pragma GCC ivdep',
     '#define R(n) _Pragma(#n)', "#include <immintrin.h>", "char c = '\"'; // constructor",
     "typedef float v __attribute__((vector_size(32)));"],
)  # fmt: skip
def test_harmless_text_is_let_pass(text):
    assert screen(kernel(text), PROBLEM) is None


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ("//! layout tn\n//! launch hgemm(A: in, B: in, C: out)\n", "layout tn"),
        ("//! layout nn\n//! launch hgemm(A: in, B: in)\n", "does not pass C"),
        ("//! layout nn\n//! launch hgemm(A: out, B: in, C: out)\n", "A: out is no operand"),
        ("//! layout nn\n//! launch hgemm(A: in, B: in, C: out, L)\n", "no size symbol"),
        ("//! layout nn\n//! launch hgemm(A: in, B: in, C: out)\n//! launch hgemm(A: in, B: in, C: out)\n", "one launch"),
        ("//! layout nn\n//! launch hgemm(A: in, B: in, C: out, W: workspace)\n//! workspace W X\n", "unknown name"),
        ("//! layout nn\n//! launch hgemm(A: in, B: in, C: out, W: workspace)\n//! workspace W -1\n", "no usable size"),
        ("", "no kernel"),
    ],
)
def test_a_launch_that_does_not_fit_is_refused(header, says):
    verdict = screen(kernel(header=header), PROBLEM)
    assert verdict.gate == "launch"
    assert says in verdict.message


def test_flags_off_the_list_are_refused():
    for flag in ("-fplugin=x.so", "-include", "@file", "-wrapper", "-O3;id", "-specs=x"):
        verdict = screen(kernel(header=HEADER + f"//! flags {flag}\n"), PROBLEM)
        assert verdict.gate == "flags"
    assert screen(kernel(header=HEADER + "//! flags -O2 -ffast-math\n"), PROBLEM) is None


@pytest.mark.parametrize(
    ("text", "body", "gate"),
    [
        ("static int n;", BODY.replace("{\n", "{\n    n++;\n"), "writable-globals"),
        ("int n[4];", BODY, "writable-globals"),
        ("int puts(const char *);", BODY.replace("{\n", '{\n    puts("x");\n'), "symbols"),
        ("long syscall(long, ...);", BODY.replace("{\n", "{\n    syscall(1);\n"), "symbols"),
        ("", BODY.replace("{\n", "{\n    C[1] = (_Float16)(float)__builtin_ia32_rdtsc();\n"), "instructions"),
        ("", BODY.replace("{\n", "{\n    volatile char big[2 << 20]; big[M] = 1; C[0] = big[N];\n"), "stack"),
    ],
)
def test_what_may_not_run_is_stopped_after_the_build(compiler, text, body, gate):
    if gate == "instructions" and os.uname().machine != "x86_64":
        pytest.skip("x86-64 only")
    verdict = prepare(kernel(text, body), PROBLEM, compiler).verdict
    assert verdict is not None
    assert (verdict.status, verdict.gate) == (Status.UNLAUNCHABLE, gate)
    assert verdict.build.machine_code is not None


def test_compiler_messages_come_back_without_paths(compiler):
    verdict = prepare(kernel(body=ENTRY + " { return 1 }"), PROBLEM, compiler).verdict
    assert (verdict.status, verdict.gate) == (Status.BUILD_ERROR, "compile")
    assert "error" in verdict.message
    assert str(Path.home()) not in verdict.message
    assert "/" not in verdict.message.split(":")[0]


def test_a_missing_entry_and_two_of_one_name_do_not_build(compiler):
    for body in ("void other(void) {}\n", BODY + BODY):
        verdict = prepare(kernel(body=body), PROBLEM, compiler).verdict
        assert (verdict.status, verdict.gate) == (Status.BUILD_ERROR, "compile")
    missing = prepare(kernel(body="void other(void) {}\n"), PROBLEM, compiler).verdict
    assert missing.message == "the file defines no function hgemm, which its launch line names"


def test_bombs_end_at_the_limits(compiler):
    layers = "#define A0 C[0] = C[1];\n" + "".join(f"#define A{i + 1} A{i} A{i} A{i} A{i}\n" for i in range(14))
    begin = time.monotonic()
    verdict = prepare(kernel(layers, BODY.replace("{\n", "{\n    A14\n")), PROBLEM, compiler).verdict
    assert (verdict.status, verdict.gate) == (Status.BUILD_ERROR, "compile-limits")
    assert time.monotonic() - begin < 20


def test_the_cache_keeps_successes_and_failures(compiler):
    for text in ("// cached", "nonsense"):
        first, second = (compiler.build(kernel(text), PROBLEM) for _ in range(2))
        assert type(first) is type(second)
        if isinstance(first, Built):
            assert first.library == second.library
            assert second.seconds == 0.0
        else:
            assert first.message == second.message


def test_a_damaged_cache_entry_is_built_anew(compiler):
    first = compiler.build(kernel("// damaged"), PROBLEM)
    first.library.write_bytes(b"")
    second = compiler.build(kernel("// damaged"), PROBLEM)
    assert second.library.stat().st_size > 0
    (first.library.parent / "facts.json").write_text("{")
    assert compiler.build(kernel("// damaged"), PROBLEM).library.stat().st_size > 0


def test_builds_of_one_kernel_at_once_agree(compiler):
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        built = list(pool.map(lambda _: compiler.build(kernel("// at once"), PROBLEM), range(4)))
    assert len({b.library for b in built}) == 1
    assert all(b.library.exists() for b in built)


def test_the_digest_is_the_codes_own(tmp_path):
    toolchain = find_toolchain()

    def digest(folder, body):
        built = Compiler(toolchain, tmp_path / folder, cpu_s=5).build(kernel(body=body), PROBLEM)
        return read_machine_code(built.kernel_object, toolchain).digest

    one = digest("a", BODY)
    assert digest("b", BODY) == one
    assert digest("a", "// a comment\n" + BODY) == one
    assert digest("a", BODY.replace("i % K] * B", "i % K] + B")) != one
    assert digest("a", BODY.replace("B[i % K]", "(_Float16)1.5f")) != digest("a", BODY.replace("B[i % K]", "(_Float16)2.5f"))


LISTING = """\

kernel.o:     file format elf64-x86-64


Disassembly of section .text:

0000000000000000 <hgemm>:
   0:\tvmovups (%rdi),%ymm0
   4:\tvfmadd231ps (%rsi,%rax,4),%ymm1,%ymm2
   a:\tvmulps %xmm1,%xmm2,%xmm3
   e:\tvcvtph2ps (%rdi),%ymm0
  13:\tnotrack jmp *%rax
  17:\trep stos %al,%es:(%rdi)
  1b:\tvmovaps %ymm0,0x20(%rsp)
  21:\tvbroadcastss (%rdi),%ymm5
  26:\tje     2f <hgemm+0x2f>
  28:\tret
"""


def test_a_listing_of_objdump_is_read():
    found = parse_disassembly(LISTING)
    assert [i.mnemonic for i in found] == [
        "vmovups", "vfmadd231ps", "vmulps", "vcvtph2ps", "jmp", "stos", "vmovaps", "vbroadcastss", "je", "ret",
    ]  # fmt: skip
    assert found[1].operands == "(%rsi,%rax,4),%ymm1,%ymm2"


def test_resources_count_what_the_listing_holds(compiler):
    built = compiler.build(kernel("// resources"), PROBLEM)
    code = read_machine_code(built.kernel_object, find_toolchain())
    text = parse_disassembly(LISTING)
    resources = resources_of(type(code)("d", (), (), (), text, 42), 16)
    assert resources["simd_bits"] == 256
    assert (resources["n_fma"], resources["n_converts"], resources["n_vector_spills"]) == (1, 1, 1)
    assert (resources["code_bytes"], resources["stack_bytes"], resources["n_instructions"]) == (42, 16, 10)
    assert gate_machine_code(code, 0, BuildReport(0.0)) is None


def fake_compiler(tmp_path, script):
    path = tmp_path / "cc"
    real = find_toolchain()
    path.write_text(f'#!/bin/sh\ncase "$*" in *launcher.c*|--version) exec {real.compiler} "$@";; esac\n{script}\n')
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    return Compiler(Toolchain(path, "gcc", "broken 1.0", real.objdump), tmp_path / "cache", cpu_s=1)


def test_a_compiler_that_hangs_crashes_or_floods_costs_one_candidate(tmp_path):
    for number, script in enumerate(("sleep 60", "kill -SEGV $$", "yes error | head -c 3000000; exit 1")):
        folder = tmp_path / str(number)
        folder.mkdir()
        begin = time.monotonic()
        result = fake_compiler(folder, script).build(kernel(), PROBLEM)
        assert isinstance(result, Verdict)
        assert result.status is Status.BUILD_ERROR
        assert len(result.message) < 4000
        assert time.monotonic() - begin < 10


def test_a_compiler_that_makes_nothing_is_the_machines_fault(tmp_path):
    with pytest.raises(ToolchainError, match="makes nothing"):
        fake_compiler(tmp_path, "exit 0").build(kernel(), PROBLEM)


def test_no_compiler_is_one_clear_line(monkeypatch):
    find_toolchain.cache_clear()
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(ToolchainError, match="no C compiler: expected no-such-compiler, found none on PATH; try: apt-get"):
        find_toolchain()
    find_toolchain.cache_clear()


def test_a_child_over_its_wall_limit_is_killed_with_its_children(compiler, tmp_path):
    launcher = compiler._launcher
    done = run_limited(launcher, ["sh", "-c", "sleep 50 & echo $! > pid; wait"], tmp_path, Limits(wall_s=0.5))
    assert done.over == "time"
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 5
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    state = Path(f"/proc/{pid}/stat").read_text().split()[2] if Path(f"/proc/{pid}").exists() else "gone"
    assert state in ("gone", "Z")
