"""From a kernel's source to a shared object: what builds, what does not, and whose fault that is."""

import ctypes
import dataclasses
import multiprocessing
import os
import subprocess
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest

from evo_l2.errors import StorageError, ToolchainError
from evo_l2.evaluation import Status, Verdict
from evo_l2.kernel import Kernel
from evo_l2.problems.hgemm import Hgemm
from evo_l2.targets import messages
from evo_l2.targets.cpu.compiler import Built, Compiler
from evo_l2.targets.cpu.prepare import prepare
from evo_l2.targets.cpu.toolchain import find_toolchain

PROBLEM = Hgemm(((8, 8, 8, 1),), "fp32", ("nn", "nt"))
HEADER = "//! layout nn\n//! launch hgemm(A: in, B: in, C: out, M, N, K)\n"
ENTRY = "void hgemm(const _Float16 *restrict A, const _Float16 *B, _Float16 *C, int M, int N, int K)"
BODY = f"{ENTRY}\n{{\n    for (int i = 0; i < M * N; i++)\n        C[i] = A[i % K] * B[i % K];\n}}\n"


@pytest.fixture(scope="module")
def compiler(tmp_path_factory):
    return Compiler(find_toolchain(), tmp_path_factory.mktemp("cache"), cpu_s=2, wall_s=12.0)


def kernel(text="", body=BODY, header=HEADER):
    return Kernel(f"{header}{text}\n{body}", "cpu")


def failure(compiler, text="", body=BODY, header=HEADER):
    """Status, gate and message of a kernel that must not come through."""
    verdict = prepare(kernel(text, body, header), PROBLEM, compiler).verdict
    assert verdict is not None
    return verdict.status, verdict.gate, verdict.message


def entry_of(built):
    """The harness's entry, loaded here: only for kernels of these tests."""
    function = ctypes.CDLL(str(built.library)).evo_entry
    function.restype = None
    return function


def call(built, buffers, sizes):
    pointers = (ctypes.c_void_p * len(buffers))(*(buffer.ctypes.data for buffer in buffers))
    entry_of(built)(pointers, (ctypes.c_longlong * len(sizes))(*sizes))


def test_a_kernel_comes_through_with_all_that_is_known_of_it(compiler):
    header = "//! layout nn\n//! launch hgemm(A: in, B: in, C: out, W: workspace, M, N, K)\n//! workspace W 4 * K + PAD\n"
    body = BODY.replace("int M", "float *W, int M").replace("{\n", "{\n    W[0] = 1;\n", 1)
    prepared = prepare(kernel("#define PAD 8 //? 8 16", body, header), PROBLEM, compiler)
    assert prepared.verdict is None
    assert prepared.artefact.exists()
    assert prepared.build.seconds > 0
    assert prepared.build.machine_code is not None
    assert prepared.build.resources["workspace_bytes"] == 40
    assert prepared.measures == tuple(float(prepared.build.resources[axis.name]) for axis in PROBLEM.measures("cpu").axes)


def test_arguments_reach_the_entry_in_its_own_order_and_types(compiler):
    header = "//! layout nn\n//! launch f(K, V: workspace, C: out, BATCH, B: in, M, A: in, W: workspace, N)\n"
    header += "//! workspace W 64\n//! workspace V 64\n"
    body = (
        "void f(long k, int *v, _Float16 *restrict c, unsigned char batch, const _Float16 *b, short m, _Float16 *a, void *w,"
        " size_t n)"
        "{ v[0] = (int)k; v[1] = batch; v[2] = m; v[3] = (int)n; ((int *)w)[0] = 77; c[0] = a[0]; c[1] = b[0]; }"
    )
    built = compiler.build(kernel("#include <stddef.h>", body, header), PROBLEM)
    a, b, c = np.full(4, 2, np.float16), np.full(4, 3, np.float16), np.zeros(4, np.float16)
    w, v = np.zeros(16, np.int32), np.zeros(16, np.int32)
    call(built, (a, b, c, w, v), (11, 12, -13, 14))
    assert v[:4].tolist() == [-13, 14, 11, 12]
    assert w[0] == 77
    assert c[:2].tolist() == [2, 3]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (BODY.replace("const _Float16 *B", "const float *B"), "argument 2 of 'hgemm'|passing"),
        (BODY.replace(", int K", "").replace("% K", "% M"), "too many arguments"),
        (BODY.replace("int M", "int L, int M"), "too few arguments"),
        (BODY.replace("hgemm", "other"), "the file defines no function hgemm, which its launch line names"),
        (BODY + BODY, "redefinition of 'hgemm'"),
        (BODY.replace("int M", "float *M"), "passing|operands"),
        ("const unsigned char hgemm[] = {0xc3};", "not a function"),
        (BODY + "void evo_entry(void *const *b, const long long *s) {}", "redefinition of 'evo_entry'"),
        (BODY + "void x(void) {", "error"),
        (BODY.replace("B[i % K]", "undeclared(i)"), "undeclared"),
        (BODY + "extern int nowhere(int); int y(int x) { return nowhere(x); }", "nowhere"),
    ],
)
def test_what_does_not_compile_says_why(compiler, body, says):
    status, gate, message = failure(compiler, body=body)
    assert (status, gate) == (Status.BUILD_ERROR, "compile")
    assert any(word in message for word in says.split("|"))


def test_a_wrong_signature_is_reported_at_the_launch_line(compiler):
    message = failure(compiler, body=BODY.replace("_Float16 *restrict A", "int *A"))[2]
    assert message.startswith("kernel.c:2:")
    assert "/" not in message.replace("//!", "")


def test_the_kernels_macros_do_not_reach_the_harness(compiler):
    text = (
        "#define sizes 1\n#define buffers 2\n#define long short\n#define hgemm real\n#define evo_entry mine\n#define const\n"
    )
    status, gate, _ = failure(compiler, text)
    assert (status, gate) == (Status.BUILD_ERROR, "compile")
    text = "#define sizes 1\n#define buffers 2\n#define void int\n#define const\n"
    assert isinstance(compiler.build(kernel(text, BODY.replace("}\n}", "}\n return 0; }")), PROBLEM), Built)


@pytest.mark.parametrize(
    ("text", "gate"),
    [
        ('#define P(a, b) a##b\nvoid f(void) { P(as, m)("nop"); }', "assembly"),
        ('#define P(a, b) a##b\nP(__asm, __)(".incbin \\"/etc/passwd\\"");', "assembly"),
        ("#define P(a, b) a##b\n#define A(x) __attribute__((x))\nA(P(construc, tor)) void f(void) {}", "attributes"),
        ("#define A constructor\n__attribute__((A)) void f(void) {}", "attributes"),
        ("__attribute__((destructor)) void f(void) {}", "attributes"),
        ('__attribute__((section(".init_array"))) void (*const p)(void) = 0;', "attributes"),
        ("#define D [[\nD gnu::constructor]] void f(void) {}", "attributes"),
        ('#define H #\nH include "/etc/passwd"', "directives"),
        ('#define H %:\nH 1 "/usr/include/math.h" 3\nint x;', "directives"),
        ('#define T "weak f"\n_Pragma(T)', "directives"),
    ],
)
def test_disguises_fall_once_macros_are_expanded(compiler, text, gate):
    assert failure(compiler, text)[:2] == (Status.REJECTED, gate)


def test_files_of_the_host_cannot_be_read_while_compiling(compiler, tmp_path):
    if not compiler.capabilities()["landlock"]:
        pytest.skip("this kernel has no Landlock")
    secret = tmp_path / "secret"
    secret.write_text("int leaked;\n")
    unscreened = kernel(f'#include "{secret}"')
    verdict = compiler.build(unscreened, PROBLEM)
    assert isinstance(verdict, Verdict)
    assert "leaked" not in verdict.message


BOMBS = {
    "macros that double": "#define A0 x;\n" + "".join(f"#define A{i} A{i - 1} A{i - 1}\n" for i in range(1, 40)) + "A39\n",
    "macros that multiply text": "#define A0 "
    + "int x; " * 400
    + "\n"
    + "".join(f"#define A{i} " + f"A{i - 1} " * 10 + "\n" for i in range(1, 8))
    + "A7\n",
    "a large initialiser": "const char big[1u << 30] = {[5] = 1};",
    "a large array in use": "const char big[1 << 28] = {1};\nint get(int i) { return big[i]; }",
    "a table of addresses": "void f(void);\nvoid (*const t[60000])(void) = {[0 ... 59999] = f};\nvoid f(void) {}",
    "six megabytes of constants": "const char big[6 << 20] = {1};",
    "many functions": "#define A0(n) void f##n(void) {}\n"
    + "".join(f"#define A{i}(n) " + " ".join(f"A{i - 1}(n##{j})" for j in range(10)) + "\n" for i in range(1, 5))
    + "A4(1) A4(2) A4(3)\n",
    "statements without end": "#define A0 C[M] += C[N] * C[K];\n"
    + "".join(f"#define A{i} " + f"A{i - 1} " * 8 + "\n" for i in range(1, 6))
    + "void f(_Float16 *C, int M, int N, int K) { A5 }",
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_end_at_the_limits(compiler, name):
    begin = time.monotonic()
    status, gate, message = failure(compiler, BOMBS[name])
    assert (status, gate) == (Status.BUILD_ERROR, "compile-limits")
    assert "smaller" in message
    assert time.monotonic() - begin < 20


def test_floods_of_messages_are_cut(compiler):
    for text in ("x y;\n" * 20_000, "#error " + "long " * 30_000):
        status, gate, message = failure(compiler, text)
        assert status is Status.BUILD_ERROR
        assert gate in ("compile", "compile-limits")
        assert len(message) <= messages.LONGEST_LOG


def test_a_compiler_that_falls_over_a_kernel_costs_that_kernel(compiler):
    status, gate, message = failure(compiler, "int x = " + "(" * 100_000 + "1" + ")" * 100_000 + ";")
    assert status is Status.BUILD_ERROR
    assert gate in ("compile", "compile-limits")
    assert "bug report" not in message


def test_the_cache_keeps_successes_and_failures(compiler):
    first = compiler.build(kernel("// kept"), PROBLEM)
    again = compiler.build(kernel("// kept"), PROBLEM)
    assert first.seconds > 0
    assert again == dataclasses.replace(first, seconds=0.0)
    failed = compiler.build(kernel("nonsense // kept"), PROBLEM)
    assert failed.build.seconds > 0
    assert compiler.build(kernel("nonsense // kept"), PROBLEM).build.seconds == 0.0
    assert compiler.build(kernel("nonsense // kept"), PROBLEM).message == failed.message


def test_flags_and_launch_are_part_of_what_is_cached(compiler):
    plain = compiler.build(kernel(), PROBLEM)
    assert compiler.build(kernel(header=HEADER + "//! flags -O1\n"), PROBLEM).library != plain.library
    turned = HEADER.replace("A: in, B: in", "B: in, A: in")
    assert compiler.build(kernel(header=turned), PROBLEM).library != plain.library


@pytest.mark.parametrize("damage", ["kernel.so", "kernel.o", "facts.json", None])
def test_a_damaged_entry_is_built_anew(compiler, damage):
    source = kernel(f"// damaged {damage}")
    folder = compiler.build(source, PROBLEM).library.parent
    if damage is None:
        for path in folder.iterdir():
            path.unlink()
    else:
        content = (folder / damage).read_bytes()
        (folder / damage).write_bytes(content[: len(content) // 2])
    again = compiler.build(source, PROBLEM)
    assert again.seconds > 0
    assert compiler.build(source, PROBLEM).seconds == 0.0
    assert entry_of(again) is not None


def build_in_process(cache):
    return compiler_at(cache).build(kernel("// at once"), PROBLEM).library


def compiler_at(cache):
    return Compiler(find_toolchain(), cache, cpu_s=4)


def test_threads_and_processes_may_build_one_kernel_at_once(tmp_path):
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        libraries = set(pool.map(build_in_process, [tmp_path] * 2))
    compiler = compiler_at(tmp_path)
    with ThreadPoolExecutor(3) as pool:
        threads = pool.map(lambda _: compiler.build(kernel("// in threads"), PROBLEM), range(3))
        assert len({built.library for built in threads}) == 1
    assert len(libraries) == 1
    assert libraries.pop().exists()
    assert not list((tmp_path / "kernels").glob(".build-*"))


def test_nothing_is_left_of_builds_that_were_killed(tmp_path):
    stale = tmp_path / "kernels" / ".build-old"
    stale.mkdir(parents=True)
    os.utime(stale, (0, 0))
    fresh = tmp_path / "kernels" / ".build-new"
    fresh.mkdir()
    compiler_at(tmp_path)
    assert not stale.exists()
    assert fresh.exists()


def test_a_cache_that_cannot_be_written_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cache"):
        compiler_at(tmp_path / "file")


class Breakable:
    """A compiler that works until it is told to behave otherwise: it stands for a broken machine."""

    def __init__(self, folder, **limits):
        real = find_toolchain()
        self.path = folder / "cc"
        self.folder = folder
        self.path.write_text(f'#!/bin/sh\nif [ -e {folder}/mood ]; then . {folder}/mood; fi\nexec {real.compiler} "$@"\n')
        self.path.chmod(0o755)
        toolchain = dataclasses.replace(real, compiler=self.path, read_paths=(*real.read_paths, folder))
        self.compiler = Compiler(toolchain, folder / "cache", cpu_s=2, **limits)

    def turn(self, script):
        (self.folder / "mood").write_text(script + "\n")


@pytest.mark.parametrize(
    ("script", "error", "says"),
    [
        ("kill -SEGV $$", ToolchainError, "signal 11"),
        ("sleep 30", ToolchainError, "limit of time"),
        ("while :; do :; done", ToolchainError, "limit of (processor )?time"),
        ("while :; do echo yes; done", ToolchainError, "limit of output"),
        ("yes > kernel.i; kill -XFSZ $$", ToolchainError, "limit of file size"),
        ("exit 0", ToolchainError, "no message"),
        ("echo 'cc: fatal error: cannot execute cc1' >&2; exit 1", ToolchainError, "cannot execute cc1"),
        ("echo 'kernel.s: fatal error: No space left on device' >&2; exit 1", StorageError, "No space left"),
    ],
)
def test_a_broken_compiler_is_the_machines_fault(tmp_path, script, error, says):
    broken = Breakable(tmp_path, wall_s=3.0)
    broken.turn(script)
    with pytest.raises(error, match=says):
        broken.compiler.build(kernel(), PROBLEM)
    (tmp_path / "mood").unlink()
    assert isinstance(broken.compiler.build(kernel(), PROBLEM), Built)


def test_a_compiler_that_hangs_over_one_kernel_costs_that_kernel_and_is_tried_again(tmp_path):
    moody = Breakable(tmp_path, wall_s=1.0)
    moody.turn("if grep -q slow kernel.c; then sleep 30; fi")
    verdict = moody.compiler.build(kernel("// slow"), PROBLEM)
    assert (verdict.status, verdict.gate) == (Status.BUILD_ERROR, "compile-limits")
    (tmp_path / "mood").unlink()
    assert isinstance(moody.compiler.build(kernel("// slow"), PROBLEM), Built)


def test_a_compiler_that_vanishes_is_the_machines_fault(tmp_path):
    broken = Breakable(tmp_path)
    broken.path.unlink()
    with pytest.raises(ToolchainError, match="does not start"):
        broken.compiler.build(kernel(), PROBLEM)


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (None, "none on PATH"),
        ("exit 1", "returns 1"),
        (
            "echo 'old-cc 4.2'; case $1 in -*version) exit 0;; esac; echo \"error: unknown type '_Float16'\" >&2; exit 1",
            "_Float16",
        ),
        ("echo 'odd-cc 1.0'", "does not build a small program"),
    ],
)
def test_a_machine_without_a_usable_compiler_is_one_clear_line(tmp_path, monkeypatch, script, says):
    if script is not None:
        (tmp_path / "gcc").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "gcc").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(ToolchainError, match=r"^no C compiler that can be used: expected gcc 12.*; try: .*install") as caught:
        find_toolchain()
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_compiler_that_cc_names_is_taken_and_no_other(monkeypatch):
    real = find_toolchain()
    monkeypatch.setenv("CC", str(real.compiler))
    assert find_toolchain() == real
    monkeypatch.setenv("CC", f"ccache {real.compiler}")
    assert find_toolchain().compiler == real.compiler
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(ToolchainError, match=r"CC is set.*no-such-compiler is not on PATH"):
        find_toolchain()
    monkeypatch.setenv("CC", "gcc -m32")
    with pytest.raises(ToolchainError, match="CC cannot be used"):
        find_toolchain()


def test_messages_have_errors_first_and_no_paths_of_this_machine():
    output = (
        "/build/b/kernel.c:3:1: warning: unused\n    3 | x\n/build/b/kernel.c:9:2: error: bad\n    9 | y\n"
        "kernel.c:1:1: note: declared here\n./ccAbCd12.s: Assembler messages:\nPlease submit a full bug report, with\n"
    )
    lines = messages.errors_first(output, "/build/b").splitlines()
    assert lines[:3] == ["kernel.c:9:2: error: bad", "    9 | y", "kernel.c:1:1: note: declared here"]
    assert "kernel.c:3:1: warning: unused" in lines
    assert "kernel.s: Assembler messages:" in lines
    assert not any("bug report" in line or "/tmp" in line for line in lines)
    long = messages.errors_first("kernel.c:1:1: error: x\n" * 1000, "/build/b")
    assert len(long) <= messages.LONGEST_LOG
    assert long.endswith("...")


def test_messages_hold_nothing_that_a_terminal_obeys():
    output = "kernel.c:1:1: error: a\x1b[31m \x9b \u202e\tb\r\n\x85  1 | \u2028x\n"
    assert messages.errors_first(output, "/b") == (
        "kernel.c:1:1: error: a<U+001B>[31m <U+009B> <U+202E>\tb\n<U+0085>  1 | <U+2028>x"
    )
    assert messages.some(["a\x1b", "b" * 100]) == "a<U+001B>, " + "b" * 80


@pytest.mark.parametrize("piece", ["/", "ld", "ld:", "/a", "x:1:", "a\x1b"])
def test_no_message_takes_long_to_read(piece):
    begin = time.process_time()
    for text in (piece * (200_000 // len(piece)), (piece * (990 // len(piece)) + "\n") * 200):
        assert len(messages.errors_first(text, "/b")) <= messages.LONGEST_LOG
        messages.blames_source(text)
    assert time.process_time() - begin < 5


def test_a_string_that_the_compiler_repeats_reaches_no_terminal(compiler):
    message = failure(compiler, '_Static_assert(0, "\\033[31m\\x9b");')[2]
    assert message.isprintable() or set(message) & {"\n", "\t"}
    assert not set(message) & {"\x1b", "\x9b"}


def test_a_build_leaves_no_process_behind(compiler):
    def children():
        command = ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(os.getpid())]
        lines = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
        return {line.split()[0] for line in lines if "kernel.c" in line or "launcher" in line}

    before = children()
    compiler.build(kernel("// processes"), PROBLEM)
    assert children() <= before
