"""The CPU runner: what it answers to kernels that work, crash, hang, cheat and flee, and what it leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile

from evo_l2.errors import DeviceError, ToolchainError
from evo_l2.targets.cpu.runner import BufferSpec, LoadFailed, RunKind, Runner, RunnerBinary, RunResult

GCC = Path("/usr/bin/cc")
HEAD = "#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\ntypedef float v8 __attribute__((vector_size(32)));\n"
ENTRY = "void evo_entry(void *const *b, const long long *s)"
ENDLESS = 'for (;;) __asm__ volatile("");'
N = 1000
"""Floats in every buffer of these tests: neither whole pages nor a multiple of the alignment."""

Build = Callable[[str], Path]


@pytest.fixture(scope="session")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return RunnerBinary.ensure(GCC, tmp_path_factory.mktemp("cache"))


@pytest.fixture
def build(tmp_path: Path) -> Build:
    def make(body: str, *flags: str) -> Path:
        source = tmp_path / "kernel.c"
        source.write_text(HEAD + body if ENTRY.split("(")[0] in body else f"{HEAD}{ENTRY}\n{{\n{body}\n}}\n")
        library = tmp_path / "kernel.so"
        command = [str(GCC), "-O1", "-w", "-shared", "-fPIC", *flags, "-o", str(library), str(source), "-lm"]
        subprocess.run(command, check=True)
        return library

    return make


def open_runner(binary: Path, library: Path, **options: object) -> Runner:
    buffers = [BufferSpec("X", 4 * N), BufferSpec("Y", 4 * N)]
    return Runner(binary, library, buffers, 3, [BufferSpec("W", 100)], [N, 7], **options)  # type: ignore[arg-type]


def run_once(binary: Path, library: Path, **limits: float) -> RunResult:
    with open_runner(binary, library) as runner:
        return runner.run(**limits)  # type: ignore[arg-type]


SCALE = "const float *x = b[0]; float *y = b[1]; for (long long i = 0; i < s[0]; i++) y[i] = x[i] * s[1];"


def test_every_set_is_computed_once_in_place(binary: Path, build: Build) -> None:
    with open_runner(binary, build(SCALE + "((char *)b[2])[99] += 1;")) as runner:
        for index in range(3):
            runner.array(index, "X", "float32", (N,))[:] = np.arange(N) + index
            runner.array(index, "Y", "float32", (N,))[:] = -1
        result = runner.run(first_set=1, n_calls=2)
        assert result.kind is RunKind.OK
        assert result.ns is not None
        assert 0 < result.ns < 1e9
        assert (runner.array(0, "Y", "float32", (N,)) == -1).all()
        for index in (1, 2):
            np.testing.assert_array_equal(
                runner.array(index, "Y", "float32", (10, N // 10)).ravel(), 7 * (np.arange(N) + index)
            )
        assert runner.array(0, "W", "uint8", (100,))[99] == 2
        assert [runner.damaged_guard(index) for index in range(3)] == [None] * 3


def test_sets_in_a_row_are_seen_stacked(binary: Path, build: Build) -> None:
    with open_runner(binary, build(SCALE)) as runner:
        runner.stacked(1, 2, "X", "float32", (10, N // 10))[:] = np.arange(2 * N).reshape(2, 10, -1)
        runner.run(first_set=1, n_calls=2)
        np.testing.assert_array_equal(runner.array(2, "Y", "float32", (N,)), 7 * np.arange(N, 2 * N))
        np.testing.assert_array_equal(runner.stacked(1, 2, "Y", "float32", (N,)).ravel(), 7 * np.arange(2 * N))
        assert [runner.damaged_guard(index) for index in range(3)] == [None] * 3
        for first, n_sets, name in ((2, 2, "X"), (-1, 1, "X"), (0, 0, "X"), (0, 1, "Z"), (0, 2, "W")):
            with pytest.raises(KeyError):
                runner.stacked(first, n_sets, name, "float32", (1,))


def test_the_clock_counts_every_call(binary: Path, build: Build) -> None:
    with open_runner(binary, build("for (volatile long i = 0; i < 4000000; i++);")) as runner:
        one = min(runner.run(0, 1).ns or 0 for _ in range(5))
        three = min(runner.run(0, 3).ns or 0 for _ in range(5))
    assert three > 2 * one > 0


def test_the_clock_counts_no_start_and_no_end_of_the_process(binary: Path, build: Build) -> None:
    with Runner(binary, build(""), [BufferSpec("X", 64 << 20)], 1) as runner:
        walls, clocks = [], []
        for _ in range(5):
            begin = time.monotonic_ns()
            clocks.append(runner.run().ns or 0)
            walls.append(time.monotonic_ns() - begin)
    assert 0 < 4 * min(clocks) < min(walls)


def test_sizes_and_buffers_outside_are_refused(binary: Path, build: Build) -> None:
    with open_runner(binary, build("")) as runner:
        with pytest.raises(ValueError, match="sets 0 to 2"):
            runner.run(first_set=2, n_calls=2)
        with pytest.raises(KeyError):
            runner.array(3, "X", "float32", (N,))
        with pytest.raises(KeyError):
            runner.array(0, "Z", "float32", (N,))
        with pytest.raises(ValueError, match="at most 4000 bytes"):
            runner.array(0, "X", "float32", (N + 1,))


CRASHES = {
    "null": ("*(volatile int *)0 = 1;", signal.SIGSEGV, "null pointer"),
    "write past": ("volatile float *y = b[1]; y[s[0] + 8] = 1;", signal.SIGSEGV, "32 bytes after the end of Y"),
    "read past": ("volatile float *x = b[0]; (void)x[s[0] + 16];", signal.SIGSEGV, "64 bytes after the end of X"),
    "write before": ("((volatile char *)b[0])[-65] = 1;", signal.SIGSEGV, "65 bytes before the start of X"),
    "other set": ("volatile char *x = b[0]; x[(char *)b[1] - x + 4096 + 4096] = 1;", signal.SIGSEGV, "of set 1"),
    "misaligned": ("*(volatile v8 *)((char *)b[0] + 4) = (v8){0};", signal.SIGSEGV, "not aligned"),
    "far": ("*(volatile char *)0x123450000 = 1;", signal.SIGSEGV, "far outside"),
    "division": ("*(volatile int *)b[1] = 0; *(int *)b[0] = 5 / *(volatile int *)b[1];", signal.SIGFPE, "SIGFPE"),
    "trap": ("__builtin_trap();", signal.SIGILL, "SIGILL"),
    "big array": ("volatile char a[16 << 20]; a[0] = 1; a[1 << 20] = 2;", signal.SIGSEGV, "stack overflow"),
    "recursion": (
        f"int f(int n) {{ volatile char a[999]; a[0] = n; return f(n + 1) + a[0]; }} {ENTRY} {{ f(0); }}",
        signal.SIGSEGV,
        "stack overflow",
    ),
}


@pytest.mark.parametrize("name", CRASHES)
def test_a_crash_names_its_signal_and_place(name: str, binary: Path, build: Build) -> None:
    body, number, words = CRASHES[name]
    if name == "division" and os.uname().machine != "x86_64":
        pytest.skip("only x86 traps on a division by zero")
    if name == "misaligned" and os.uname().machine != "x86_64":
        pytest.skip("only x86 has vector accesses that must be aligned")
    result = run_once(binary, build(body, *(["-mavx"] if name == "misaligned" else [])))
    assert (result.kind, result.signal, result.ns) == (RunKind.SIGNAL, number, None)
    assert words in result.detail


@pytest.mark.parametrize("at", [-1, 4 * N])
def test_a_write_just_beside_a_buffer_is_found_and_said_once(at: int, binary: Path, build: Build) -> None:
    with open_runner(binary, build(f"((volatile char *)b[1])[{at}] = 3;")) as runner:
        assert runner.run(first_set=1).kind is RunKind.OK
        assert runner.damaged_guard(0) is None
        assert runner.damaged_guard(1) == "Y"
        assert runner.damaged_guard(1) is None


def test_a_write_beside_a_workspace_is_found(binary: Path, build: Build) -> None:
    with open_runner(binary, build("((volatile char *)b[2])[100] = 3;")) as runner:
        assert runner.run().kind is RunKind.OK
        assert runner.damaged_guard(2) == "W"


@pytest.mark.parametrize("where", [-4096, 4096])
def test_a_buffer_of_whole_pages_has_a_guard_page_on_both_sides(where: int, binary: Path, build: Build) -> None:
    offset = where if where < 0 else 4096
    library = build(f"((volatile char *)b[0])[{offset if offset > 0 else -1}] = 1;")
    with Runner(binary, library, [BufferSpec("X", 4096)], 1) as runner:
        assert runner.run().signal == signal.SIGSEGV


def test_an_endless_loop_ends_at_the_wall_limit(binary: Path, build: Build) -> None:
    with open_runner(binary, build(ENDLESS)) as runner:
        begin = time.monotonic()
        result = runner.run(wall_s=0.2)
        assert 0.2 <= time.monotonic() - begin < 2
        assert result.kind is RunKind.TIMEOUT
        assert "0.2 s" in result.detail


def test_an_endless_loop_ends_at_the_processor_limit(binary: Path, build: Build) -> None:
    with open_runner(binary, build(ENDLESS)) as runner:
        result = runner.run(wall_s=10, cpu_s=1)
    assert (result.kind, result.signal) == (RunKind.TIMEOUT, signal.SIGXCPU)


FORBIDDEN = {
    "fork": "fork();",
    "vfork": "if (vfork() == 0) _exit(0);",
    "open": 'extern int open(const char *, int, ...); open("/etc/passwd", 0);',
    "fopen": 'extern void *fopen(const char *, const char *); fopen("/etc/passwd", "r");',
    "socket": "extern int socket(int, int, int); socket(2, 1, 0);",
    "kill the runner": "extern int kill(int, int); kill(getppid(), 9);",
    "stop itself": "extern int raise(int); raise(19);",
    "mmap": "extern void *mmap(void *, size_t, int, int, int, long); mmap(0, 4096, 3, 34, -1, 0);",
    "protect": "extern int mprotect(void *, size_t, int); mprotect((void *)((long)b[0] & -4096), 4096, 7);",
    "print": 'write(1, "hello", 5);',
    "print on errors": 'write(2, "hello", 5);',
    "abort": "abort();",
    "allocate": "volatile char *p = malloc(100L << 30); p[0] = 1;",
    "thread": "extern int pthread_create(void *, void *, void *, void *); long t; pthread_create(&t, 0, (void *)abort, 0);",
    "handler": "extern void *signal(int, void *); signal(11, (void *)1);",
    "exec": 'execl("/bin/true", "true", (char *)0);',
    "sleep": "extern unsigned sleep(unsigned); sleep(100);",
    "limits": "extern int setrlimit(int, void *); long l[2] = {9, 9}; setrlimit(0, l);",
    "trace": "extern long ptrace(int, ...); ptrace(0, 0, 0, 0);",
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_a_system_call_is_killed_and_named(name: str, binary: Path, build: Build) -> None:
    result = run_once(binary, build(FORBIDDEN[name]), wall_s=2)
    assert (result.kind, result.signal, result.ns) == (RunKind.FORBIDDEN, signal.SIGSYS, None)
    names = {"open": "(openat)", "socket": "(socket)", "kill the runner": "(getppid)", "print": "(write)", "mmap": "(mmap)"}
    assert names.get(name, "system call") in result.detail


@pytest.mark.parametrize("how", ["_exit(0);", "_exit(1);", "exit(0);", "extern void quick_exit(int); quick_exit(0);"])
def test_an_early_exit_is_told_from_the_end(how: str, binary: Path, build: Build) -> None:
    result = run_once(binary, build(how))
    assert result.kind in (RunKind.EXITED, RunKind.FORBIDDEN)
    if how.startswith("_exit"):
        assert result.kind is RunKind.EXITED
        assert f"code {how[6]}" in result.detail


def test_an_exit_in_the_second_call_leaves_the_rest_undone(binary: Path, build: Build) -> None:
    body = "static int n; if (n++) _exit(0);" + SCALE
    with open_runner(binary, build(body)) as runner:
        for index in range(3):
            runner.array(index, "Y", "float32", (N,))[:] = -1
        assert runner.run(0, 3).kind is RunKind.EXITED
        assert (runner.array(0, "Y", "float32", (N,)) == 0).all()
        assert (runner.array(1, "Y", "float32", (N,)) == -1).all()


def test_of_all_descriptors_only_the_go_can_be_read_and_that_hangs_until_the_limit(binary: Path, build: Build) -> None:
    with open_runner(binary, build("char c; read(*(int *)b[0], &c, 1);")) as runner:
        kinds = []
        for descriptor in range(20):
            runner.array(0, "X", "int32", (1,))[0] = descriptor
            kinds.append(runner.run(wall_s=0.1).kind)
    assert kinds.count(RunKind.TIMEOUT) == 1
    assert kinds.count(RunKind.FORBIDDEN) == 19


def test_floating_point_state_reaches_no_other_call(binary: Path, build: Build) -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("written with the x86 control register")
    body = """
    float *y = b[1];
    volatile float one = 1, tiny = 1e-10f, small = 1e-38f, hundredth = 0.01f;
    y[0] = one + tiny;
    y[1] = small * hundredth;
    y[2] = __builtin_ia32_stmxcsr() & ~0x3f;
    __builtin_ia32_ldmxcsr(0x1f80 | 0x4000 | 0x8040);
    """
    with open_runner(binary, build(body)) as runner:
        for first, n_calls in ((0, 3), (0, 1)):
            assert runner.run(first, n_calls).kind is RunKind.OK
            for index in range(first, first + n_calls):
                y = runner.array(index, "Y", "float32", (N,))
                assert y[0] == 1
                assert 0 < y[1] < 1.2e-38
                assert y[2] == 0x1F80


def test_memory_of_one_command_reaches_no_other(binary: Path, build: Build) -> None:
    with open_runner(binary, build("static int n; *(int *)b[1] = ++n;")) as runner:
        for _ in range(2):
            assert runner.run(0, 2).kind is RunKind.OK
            assert runner.array(0, "Y", "int32", (1,))[0] == 1
            assert runner.array(1, "Y", "int32", (1,))[0] == 2


def test_a_runner_goes_on_after_a_crash(binary: Path, build: Build) -> None:
    with open_runner(binary, build("if (*(int *)b[0]) abort(); *(int *)b[1] = 5;")) as runner:
        runner.array(0, "X", "int32", (1,))[0] = 1
        assert runner.run(0).kind is RunKind.FORBIDDEN
        assert runner.run(1).kind is RunKind.OK
        assert runner.array(1, "Y", "int32", (1,))[0] == 5


def test_another_entry_can_be_named(binary: Path, build: Build) -> None:
    with open_runner(
        binary, build(f"void other(void *const *b) {{ *(int *)b[1] = 8; }} {ENTRY} {{}}"), entry="other"
    ) as runner:
        assert runner.run().kind is RunKind.OK
        assert runner.array(0, "Y", "int32", (1,))[0] == 8


def test_the_fault_of_a_missing_entry_is_the_kernels(binary: Path, build: Build) -> None:
    library = build(f"void other(void) {{}} static {ENTRY} {{}}")
    with pytest.raises(LoadFailed, match=r"kernel\.so: undefined symbol: evo_entry"):
        open_runner(binary, library)


def test_the_fault_of_a_broken_library_is_the_kernels(binary: Path, build: Build, tmp_path: Path) -> None:
    with pytest.raises(LoadFailed, match="undefined symbol: nowhere"):
        open_runner(binary, build(f"extern void nowhere(void); {ENTRY} {{ nowhere(); }}"))
    (tmp_path / "rubbish.so").write_bytes(b"rubbish" * 100)
    with pytest.raises(LoadFailed, match=r"rubbish\.so"):
        open_runner(binary, tmp_path / "rubbish.so")
    with pytest.raises(LoadFailed, match="No such file"):
        open_runner(binary, tmp_path / "none.so")


CONSTRUCTOR = "__attribute__((constructor)) static void early(void)"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('__asm__ volatile(".byte 255, 255, 255, 255");', "SIGILL"),
        ("abort();", "killed the process"),
        ("_exit(0);", "ended the process"),
        ("for (;;) close(3), close(4), close(5), close(6);", "did not end"),
    ],
)
def test_a_constructor_that_ends_the_runner_is_the_kernels_fault(body: str, words: str, binary: Path, build: Build) -> None:
    with pytest.raises(LoadFailed, match=words):
        open_runner(binary, build(f"{CONSTRUCTOR} {{ {body} }} {ENTRY} {{}}"))


def test_a_load_that_hangs_is_the_kernels_fault(binary: Path, build: Build) -> None:
    begin = time.monotonic()
    with pytest.raises(LoadFailed, match=r"loading kernel\.so did not end"):
        open_runner(binary, build(f"{CONSTRUCTOR} {{ {ENDLESS} }} {ENTRY} {{}}"))
    assert time.monotonic() - begin < 20


def test_a_library_is_loaded_beside_the_clock_and_not_in_its_process(binary: Path, build: Build) -> None:
    for trusted in (False, True):
        with open_runner(binary, build(""), trusted=trusted) as runner:
            assert runner.run().kind is RunKind.OK
            assert ("kernel.so" in Path(f"/proc/{runner.pid}/maps").read_text()) is trusted


def test_the_runner_keeps_its_own_table_of_functions_read_only(binary: Path) -> None:
    with binary.open("rb") as file:
        elf = ELFFile(file)
        (dynamic,) = (s for s in elf.iter_segments() if s["p_type"] == "PT_DYNAMIC")
        now = [tag for tag in dynamic.iter_tags("DT_FLAGS_1") if tag["d_val"] & 1] + [*dynamic.iter_tags("DT_BIND_NOW")]
        (relro,) = (s for s in elf.iter_segments() if s["p_type"] == "PT_GNU_RELRO")
        table = elf.get_section_by_name(".got")
        assert now
        assert relro["p_vaddr"] <= table["sh_addr"]
        assert table["sh_addr"] + table["sh_size"] <= relro["p_vaddr"] + relro["p_memsz"]


def test_a_constructor_has_no_hold_on_the_runner(binary: Path, build: Build) -> None:
    body = f"""
    extern int getppid(void); extern long ptrace(int, ...); extern int fork(void); extern int setrlimit(int, void *);
    static int got[4];
    {CONSTRUCTOR} {{
        long none[2] = {{9, 9}};
        got[0] = getppid(); got[1] = ptrace(16, 1, 0, 0); got[2] = fork(); got[3] = setrlimit(7, none);
    }}
    {ENTRY} {{ for (int i = 0; i < 4; i++) ((int *)b[1])[i] = got[i]; }}
    """
    with open_runner(binary, build(body)) as runner:
        if not runner.capabilities["seccomp"]:
            pytest.skip("this kernel has no seccomp")
        assert runner.run().kind is RunKind.OK
        assert runner.array(0, "Y", "int32", (4,)).tolist() == [-1] * 4


def test_a_constructor_reaches_neither_files_nor_network(binary: Path, build: Build, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    body = f"""
    extern int open(const char *, int, ...); extern int socket(int, int, int);
    static int file, made, net;
    {CONSTRUCTOR} {{ file = open("{secret}", 0); made = open("{tmp_path}/made", 0102, 0600); net = socket(2, 1, 0); }}
    {ENTRY} {{ int *y = b[1]; y[0] = file; y[1] = made; y[2] = net; }}
    """
    with open_runner(binary, build(body)) as runner:
        assert runner.run().kind is RunKind.OK
        assert runner.array(0, "Y", "int32", (3,)).tolist() == [-1, -1, -1]
    assert not (tmp_path / "made").exists()


def test_a_dead_runner_is_a_device_error_now_and_later(binary: Path, build: Build) -> None:
    with open_runner(binary, build("")) as runner:
        assert runner.pid is not None
        os.kill(runner.pid, signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(DeviceError, match="gone"):
                runner.run()


def test_a_program_that_is_no_runner_is_a_device_error(build: Build) -> None:
    for program in ("/bin/true", "/bin/yes", "/nowhere"):
        with pytest.raises(DeviceError):
            open_runner(Path(program), build(""))


def test_a_kernel_killed_from_outside_is_not_blamed(binary: Path, build: Build) -> None:
    with open_runner(binary, build(ENDLESS)) as runner:
        assert runner.pid is not None
        killer = threading.Thread(target=kill_child_of, args=(runner.pid,))
        killer.start()
        with pytest.raises(DeviceError, match="killed from outside"):
            runner.run(wall_s=5)
        killer.join()


def test_closing_twice_is_fine_and_views_read_as_zeros(binary: Path, build: Build) -> None:
    runner = open_runner(binary, build(""))
    view = runner.array(0, "X", "float32", (N,))
    view[:] = 3
    runner.close()
    runner.close()
    assert (view == 0).all()
    with pytest.raises(DeviceError, match="closed"):
        runner.run()


def test_too_much_memory_is_a_device_error(binary: Path, build: Build) -> None:
    with pytest.raises(DeviceError, match="no memory for the buffers"):
        Runner(binary, build(""), [BufferSpec("X", 1 << 50)], 1)


def test_buffers_of_no_bytes_have_an_address(binary: Path, build: Build) -> None:
    library = build("if (!b[0] || !b[1] || b[0] == b[1]) abort();")
    with Runner(binary, library, [BufferSpec("X", 0)], 2, [BufferSpec("W", 0)]) as runner:
        assert runner.run(0, 2).kind is RunKind.OK


def test_trusted_code_is_warmed_up_on_a_set_of_its_own(binary: Path, build: Build) -> None:
    body = "static int n; *(int *)b[1] = ++n; if (n == 1) free(malloc(50 << 20));"
    with open_runner(binary, build(body), trusted=True) as runner:
        runner.array(0, "Y", "int32", (1,))[0] = 0
        assert runner.run().kind is RunKind.OK
        assert runner.array(0, "Y", "int32", (1,))[0] == 2
        assert runner.n_sets == 3


def test_trusted_code_sees_the_environment_that_was_given_and_no_other(binary: Path, build: Build) -> None:
    body = '*(int *)b[1] = getenv("GIVEN") != 0; ((int *)b[1])[1] = getenv("PATH") != 0;'
    with open_runner(binary, build(body), trusted=True, environ={"GIVEN": "1"}) as runner:
        assert runner.run().kind is RunKind.OK
        assert runner.array(0, "Y", "int32", (2,)).tolist() == [1, 0]


def test_a_crash_of_trusted_code_while_it_warms_up_is_a_device_error(binary: Path, build: Build) -> None:
    with (
        open_runner(binary, build("abort();"), trusted=True) as runner,
        pytest.raises(DeviceError, match="ended before its call"),
    ):
        runner.run()


def test_calls_run_on_the_chosen_core(binary: Path, build: Build) -> None:
    library = build("extern int sched_getcpu(void); *(int *)b[1] = sched_getcpu();")
    for core in sorted(os.sched_getaffinity(0))[:2]:
        with open_runner(binary, library, core=core, trusted=True) as runner:
            assert runner.capabilities["pinned"] is True
            assert runner.run().kind is RunKind.OK
            assert runner.array(0, "Y", "int32", (1,))[0] == core


def test_what_confines_kernels_is_reported(binary: Path, build: Build) -> None:
    offered = RunnerBinary.capabilities(binary)
    with open_runner(binary, build("")) as runner:
        runner.run()
        in_force = runner.capabilities
    assert {key: in_force[key] for key in offered} == offered


def test_the_binary_is_compiled_once_for_a_compiler(tmp_path: Path) -> None:
    first = RunnerBinary.ensure(GCC, tmp_path / "cache")
    stamp = first.stat().st_mtime_ns
    assert RunnerBinary.ensure(GCC, tmp_path / "cache") == first
    assert first.stat().st_mtime_ns == stamp
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [first.name]


def test_a_missing_or_failing_compiler_is_a_toolchain_error(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="no usable C compiler"):
        RunnerBinary.ensure(Path("/nowhere/cc"), tmp_path)
    with pytest.raises(ToolchainError, match="does not compile"):
        RunnerBinary.ensure(Path("/bin/true"), tmp_path)
    assert list(tmp_path.iterdir()) == []


HOSTILE = [
    *FORBIDDEN.values(),
    *(body for body, _, _ in CRASHES.values() if ENTRY not in body and "v8" not in body),
    "_exit(0);",
    ENDLESS,
]


def test_200_hostile_calls_leave_no_process_descriptor_or_thread(binary: Path, build: Build) -> None:
    cases = "\n".join(f"case {i}: {{ {body} }} break;" for i, body in enumerate(HOSTILE))
    library = build(f"{ENTRY} {{ switch (*(int *)b[0]) {{ {cases} }} }}")
    with open_runner(binary, library) as runner:
        runner.run()
    before = footprint()
    n_done = 0
    while n_done < 200:
        with open_runner(binary, library) as runner:
            for i in range(min(len(HOSTILE), 200 - n_done)):
                runner.array(0, "X", "int32", (1,))[0] = i
                result = runner.run(wall_s=0.05)
                assert result.kind is not RunKind.OK, HOSTILE[i]
                n_done += 1
            assert children_of(runner.pid) == []
    assert footprint() == before


INTERRUPT = """
import signal, sys, time
from pathlib import Path
from evo_l2.errors import DeviceError
from evo_l2.targets.cpu.runner import BufferSpec, Runner
with Runner(Path(sys.argv[1]), Path(sys.argv[2]), [BufferSpec("X", 64)], 1) as runner:
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        runner.run(wall_s=0.3)
    except KeyboardInterrupt:
        time.sleep(0.5)
    try:
        runner.run(wall_s=0.3)
    except DeviceError as error:
        print(error)
"""


def test_an_answer_that_was_interrupted_is_not_taken_for_the_next(binary: Path, build: Build) -> None:
    command = [sys.executable, "-c", INTERRUPT, str(binary), str(build(ENDLESS))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    assert "interrupted" in done.stdout


WITHOUT = """
import ctypes, struct, sys
from pathlib import Path
from evo_l2.targets.cpu.runner import BufferSpec, Runner
numbers = [int(word) for word in sys.argv[3:]]
code = struct.pack("=HBBI", 0x20, 0, 0, 0)
for number in numbers:
    code += struct.pack("=HBBI", 0x15, 0, 1, number) + struct.pack("=HBBI", 6, 0, 0, 0x50000 | 38)
code += struct.pack("=HBBI", 6, 0, 0, 0x7FFF0000)
text = ctypes.create_string_buffer(code, len(code))
program = ctypes.create_string_buffer(struct.pack("=H6xQ", len(code) // 8, ctypes.addressof(text)), 16)
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()
with Runner(Path(sys.argv[1]), Path(sys.argv[2]), [BufferSpec("X", 64)], 1) as runner:
    for value in range(4):
        runner.array(0, "X", "int32", (1,))[0] = value
        print(runner.run(wall_s=0.2).kind)
    print(runner.capabilities)
"""


def test_a_system_without_landlock_seccomp_and_tracing_still_runs_kernels(binary: Path, build: Build) -> None:
    library = build(f"switch (*(int *)b[0]) {{ case 1: {ENDLESS} case 2: abort(); case 3: raise(19); }}")
    numbers = {"x86_64": (317, 444, 101), "aarch64": (277, 444, 117)}[os.uname().machine]
    command = [sys.executable, "-c", WITHOUT, str(binary), str(library), *map(str, numbers)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    *kinds, in_force = done.stdout.splitlines()
    assert kinds == ["ok", "timeout", "signal", "timeout"]
    assert "'seccomp': False" in in_force
    assert "'landlock': False" in in_force
    assert "'clock': 'includes" in in_force


DRIVER = """
import sys
from pathlib import Path
from evo_l2.targets.cpu.runner import BufferSpec, Runner
runner = Runner(Path(sys.argv[1]), Path(sys.argv[2]), [BufferSpec("X", 64)], 1)
print(runner.pid, flush=True)
runner.run(wall_s=100)
"""


def test_kill_9_of_the_harness_leaves_nothing(binary: Path, build: Build) -> None:
    library = build(ENDLESS)
    command = [sys.executable, "-c", textwrap.dedent(DRIVER), str(binary), str(library)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        runner = int(driver.stdout.readline())
        child = only_child_of(runner)
        assert alive(runner)
        assert alive(child)
        driver.kill()
        driver.wait()
    deadline = time.monotonic() + 2
    while (alive(runner) or alive(child)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not alive(runner)
    assert not alive(child)


def footprint() -> tuple[list[str], list[int], int]:
    """What the open descriptors are, the children, and the number of threads of this process."""
    targets = []
    for name in os.listdir("/proc/self/fd"):
        try:
            targets.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue
    return sorted(targets), children_of(os.getpid()), len(os.listdir("/proc/self/task"))


def children_of(pid: int | None) -> list[int]:
    """Children of a process, dead ones that were not reaped included."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[1]) == pid:
                found.append(int(entry.name))
    return sorted(found)


def only_child_of(pid: int) -> int:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        found = children_of(pid)
        if found:
            return found[0]
        time.sleep(0.005)
    raise AssertionError(f"process {pid} has no child")


def kill_child_of(pid: int) -> None:
    child = only_child_of(pid)
    time.sleep(0.05)
    os.kill(child, signal.SIGKILL)


def alive(pid: int) -> bool:
    """False also for a process that is dead and waits to be reaped by whoever adopted it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"
