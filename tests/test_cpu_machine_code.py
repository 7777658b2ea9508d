"""What the reader of machine code sees, and what it refuses. The listings in `golden/` are real disassemblers' output."""

import dataclasses
import json
import platform
import subprocess
import time
from pathlib import Path

import pytest

from evo_l2.errors import ToolchainError
from evo_l2.evaluation import BuildReport, Status
from evo_l2.kernel import Kernel
from evo_l2.problems.hgemm import Hgemm
from evo_l2.targets.cpu.compiler import Compiler
from evo_l2.targets.cpu.disassembly import count_instructions, forbidden_instructions, parse_disassembly
from evo_l2.targets.cpu.environment import cpu_environment
from evo_l2.targets.cpu.machine_code import gate_machine_code, read_machine_code
from evo_l2.targets.cpu.prepare import prepare
from evo_l2.targets.cpu.processor import parse_cpuinfo
from evo_l2.targets.cpu.shared_object import gate_shared_object, measure_object, read_shared_object
from evo_l2.targets.cpu.toolchain import find_toolchain

GOLDEN = Path(__file__).parent / "golden"
PROBLEM = Hgemm(((8, 8, 8, 1),), "fp32", ("nn", "nt"))
HEADER = "//! layout nn\n//! launch hgemm(A: in, B: in, C: out, M, N, K)\n"
ENTRY = "void hgemm(const _Float16 *restrict A, const _Float16 *B, _Float16 *C, int M, int N, int K)"
BODY = f"{ENTRY}\n{{\n    for (int i = 0; i < M * N; i++)\n        C[i] = A[i % K] * B[i % K];\n}}\n"
IS_X86 = platform.machine() == "x86_64"


@pytest.fixture(scope="module")
def compiler(tmp_path_factory):
    return Compiler(find_toolchain(), tmp_path_factory.mktemp("cache"), cpu_s=5)


def kernel(text="", body=BODY, header=HEADER):
    return Kernel(f"{header}{text}\n{body}", "cpu")


def code_of(compiler, *args, **kwargs):
    return read_machine_code(compiler.build(kernel(*args, **kwargs), PROBLEM).kernel_object, compiler.toolchain)


def listing(name):
    return parse_disassembly((GOLDEN / name).read_text(encoding="utf-8"))


# Two accumulators of six rows, 12 multiply-adds in all; the counts were read off the listings by hand (grep).
COUNTS = {
    "objdump_x86_64_avx2.txt": {
        "n_instructions": 120, "simd_bits": 256, "n_fma": 12, "n_scalar_fma": 0, "n_vector_loads": 28, "n_vector_stores": 25,
        "n_vector_spills": 12, "n_broadcasts": 6, "n_shuffles": 7, "n_converts": 8,
    },
    "objdump_x86_64_sse2.txt": {
        "n_instructions": 165, "simd_bits": 128, "n_fma": 12, "n_scalar_fma": 0, "n_vector_loads": 35, "n_vector_stores": 25,
        "n_vector_spills": 12, "n_broadcasts": 0, "n_shuffles": 13, "n_converts": 0,
    },
    "objdump_x86_64_avx512.txt": {
        "n_instructions": 38, "simd_bits": 512, "n_fma": 1, "n_scalar_fma": 0, "n_vector_loads": 2, "n_vector_stores": 1,
        "n_vector_spills": 0, "n_broadcasts": 1, "n_shuffles": 0, "n_converts": 3,
    },
    "objdump_aarch64.txt": {
        "n_instructions": 93, "simd_bits": 128, "n_fma": 12, "n_scalar_fma": 0, "n_vector_loads": 10, "n_vector_stores": 21,
        "n_vector_spills": 6, "n_broadcasts": 1, "n_shuffles": 0, "n_converts": 8,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", COUNTS)
def test_instructions_are_counted(name):
    instructions = listing(name)
    machine = "aarch64" if "aarch64" in name else "x86_64"
    assert count_instructions(instructions, machine) == COUNTS[name]
    assert forbidden_instructions(instructions) == ()


def test_two_disassemblers_are_read_alike():
    gnu, llvm = (count_instructions(listing(f"{n}objdump_x86_64_avx2.txt"), "x86_64") for n in ("", "llvm_"))
    assert gnu == llvm


def test_prefixes_comments_and_labels_are_no_part_of_an_instruction():
    instructions = listing("objdump_x86_64_forbidden.txt")
    assert [i.mnemonic for i in instructions if "stos" in i.mnemonic or "inc" in i.mnemonic] == ["incl", "stos"]
    first = listing("objdump_aarch64.txt")
    assert not any("//" in i.operands or "<" in i.operands for i in first)
    assert next(i for i in first if i.mnemonic == "fmla").parts[0].startswith("v")


def test_forbidden_instructions_are_found():
    x86 = ("clflush", "cpuid", "fldcw", "int", "mov on %fs or %gs", "rdtsc", "syscall", "vldmxcsr", "wrfsbase")
    assert forbidden_instructions(listing("objdump_x86_64_forbidden.txt")) == x86
    assert forbidden_instructions(listing("objdump_aarch64_forbidden.txt")) == ("dc", "mrs", "msr", "svc")


def test_an_unknown_machine_has_a_number_of_instructions_and_no_more():
    assert count_instructions(listing("objdump_aarch64.txt"), "other") == {"n_instructions": 93}


def test_the_digest_does_not_depend_on_folder_comments_or_names(compiler, tmp_path):
    one = code_of(compiler).digest
    other = Compiler(compiler.toolchain, tmp_path / "elsewhere", cpu_s=5)
    assert code_of(other).digest == one
    assert code_of(compiler, "// a comment\n\n").digest == one
    renamed = {"body": BODY.replace("hgemm", "multiply"), "header": HEADER.replace("hgemm", "multiply")}
    assert code_of(compiler, **renamed).digest == one


@pytest.mark.parametrize(
    "body",
    [
        BODY.replace("i % K] * B", "i % K] + B"),
        BODY.replace("B[i % K]", "(_Float16)1.5f"),
        BODY.replace("i % K] * B", "i % K] * A"),
        BODY.replace("i = 0", "i = 1"),
        BODY.replace("{\n", "{\n    extern void *memset(void *, int, unsigned long); memset(C, 0, 2);\n", 1),
        BODY.replace("{\n", "{\n    extern void *memcpy(void *, const void *, unsigned long); memcpy(C, A, M);\n", 1),
    ],
)
def test_the_digest_differs_with_the_code(compiler, body):
    assert code_of(compiler, body=body).digest != code_of(compiler).digest


def test_the_digest_differs_with_a_constant_and_with_a_function_called(compiler):
    table = "static const float t[4] = {1, 2, 3, %d};"
    body = BODY.replace("B[i % K]", "t[i & 3]")
    assert code_of(compiler, table % 4, body).digest != code_of(compiler, table % 5, body).digest
    text = "#include <math.h>"
    bodies = [BODY.replace("B[i % K]", f"{name}(B[i % K])") for name in ("expf", "tanhf")]
    assert code_of(compiler, text, bodies[0]).digest != code_of(compiler, text, bodies[1]).digest


def test_identity_is_code_with_its_evaluated_launch(compiler):
    def identity(header, text=""):
        return prepare(kernel(text, header=header), PROBLEM, compiler).identity

    one = identity(HEADER)
    assert identity(HEADER, "#define BM 64 //? 32 64") == one
    assert identity(HEADER.replace("nn", "nt")) != one
    assert identity(HEADER + "//! nondeterministic\n") != one
    spaced = HEADER.replace("K)", "K, W: workspace)") + "//! workspace W SIZE\n"
    body = BODY.replace("int K)", "int K, void *W)")

    def sized(size):
        return prepare(kernel(f"#define SIZE {size}", body, spaced), PROBLEM, compiler).identity

    assert sized("64") != sized("128")
    assert sized("64") == sized("32 + 32")


@pytest.mark.parametrize(
    ("text", "body", "gate", "says"),
    [
        ("static int n;", BODY.replace("{\n", "{\n    n++; C[1] = n;\n", 1), "writable-globals", "n"),
        ("int seen[4];", BODY, "writable-globals", "seen"),
        ("int seen = 3;", BODY, "writable-globals", "seen"),
        ("_Thread_local int n;", BODY, "writable-globals", "n"),
        ("", BODY.replace("{\n", "{\n    static float memo; memo += 1; C[1] = memo;\n", 1), "writable-globals", "memo"),
        ("int puts(const char *);", BODY.replace("{\n", '{\n    puts("x");\n', 1), "symbols", "puts"),
        ("long syscall(long, ...);", BODY.replace("{\n", "{\n    syscall(1);\n", 1), "symbols", "syscall"),
        ("extern char **environ;", BODY.replace("{\n", "{\n    C[1] = environ[0][0];\n", 1), "symbols", "environ"),
        ("int fork(void);", BODY.replace("{\n", "{\n    int (*volatile f)(void) = fork; f();\n", 1), "symbols", "fork"),
        (
            "void *malloc(unsigned long);",
            BODY.replace("{\n", "{\n    void *volatile p = malloc(8); C = p;\n", 1),
            "symbols",
            "malloc",
        ),
        ("", BODY.replace("{\n", "{\n    volatile char big[2 << 20]; big[M] = 1; C[0] = big[N];\n", 1), "stack", "bytes"),
        (
            "",
            BODY.replace("{\n", "{\n    int f(int x) { return x + M; } int (*volatile g)(int) = f; C[0] = g(N);\n", 1),
            "instructions",
            "executable stack",
        ),
    ],
)
def test_what_may_not_run_is_stopped_after_the_build(compiler, text, body, gate, says):
    if "int f(int x)" in body and compiler.toolchain.kind != "gcc":
        pytest.skip("nested functions are gcc's")
    prepared = prepare(kernel(text, body), PROBLEM, compiler)
    assert prepared.verdict is not None
    assert (prepared.verdict.status, prepared.verdict.gate) == (Status.UNLAUNCHABLE, gate)
    assert says in prepared.verdict.message
    assert prepared.verdict.build.machine_code is not None
    assert prepared.artefact is None


@pytest.mark.skipif(not IS_X86, reason="x86-64 instructions")
@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("C[0] = (float)__rdtsc()", "rdtsc"),
        ("C[0] = (float)__builtin_ia32_rdtsc()", "rdtsc"),
        ("_mm_clflush(A)", "clflush"),
        ("_mm_setcsr(_mm_getcsr() | 0x8040)", "ldmxcsr"),
        ("C[0] = *(const __seg_fs int *)40", "%fs"),
    ],
)
def test_clocks_and_processor_state_are_out_of_reach(compiler, call, says):
    body = BODY.replace("{\n", f"{{\n    {call};\n", 1)
    verdict = prepare(kernel("#include <x86intrin.h>", body), PROBLEM, compiler).verdict
    if "__seg_fs" in call and compiler.toolchain.kind != "gcc":
        pytest.skip("a keyword of gcc's")
    assert (verdict.status, verdict.gate) == (Status.UNLAUNCHABLE, "instructions")
    assert says in verdict.message


def test_constants_libm_and_memory_functions_are_allowed(compiler):
    text = (
        "#include <math.h>\n#include <string.h>\nstatic const float table[3] = {1, 2, 3};\n"
        'static const char *const names[2] = {"a", "b"};\n'
    )
    body = BODY.replace("{\n", "{\n    memset(C, names[M & 1][0], 4); C[1] = expf(table[M % 3]) + tanhf(sqrtf(A[0]));\n", 1)
    assert prepare(kernel(text, body), PROBLEM, compiler).verdict is None


def test_constructors_are_found_in_an_object(compiler, tmp_path):
    source = tmp_path / "c.c"
    source.write_text(
        "__attribute__((constructor)) void before(void) {}\n"
        "static int one(void) { return 1; }\nstatic void *pick(void) { return one; }\n"
        'int chosen(void) __attribute__((ifunc("pick")));\n'
    )
    product = tmp_path / "c.o"
    subprocess.run([compiler.toolchain.compiler, "-c", "-fPIC", source, "-o", product], check=True)
    code = read_machine_code(product, compiler.toolchain)
    assert ".init_array" in " ".join(code.constructors)
    assert "chosen" in code.constructors
    assert gate_machine_code(code, 0, BuildReport(0.0)).gate == "constructors"


PLAIN = "int evo_entry(int x) { return x; }\n"


@pytest.mark.parametrize(
    ("text", "flags", "gate", "says"),
    [
        ("", (), None, ""),
        ("", ("-fvisibility=hidden",), "symbols", "no function evo_entry"),
        ("static void f(void) {}\n__attribute__((used)) static void (*const p[2])(void) = {f, f};", (), None, ""),
        ("void _init(void) {}", (), "constructors", "DT_INIT"),
        ("void _fini(void) {}", (), "constructors", "DT_FINI"),
        ("static void f(void) {}", ("-Wl,-init=evo_entry",), "constructors", "DT_INIT"),
        ("__attribute__((constructor)) static void f(void) {}", (), "constructors", "DT_INIT_ARRAY, DT_INIT_ARRAYSZ"),
        ("__attribute__((destructor)) static void f(void) {}", (), "constructors", "DT_FINI_ARRAY, DT_FINI_ARRAYSZ"),
        (
            "static int one(void) { return 1; }\nstatic void *pick(void) { return one; }\n"
            'static int chosen(void) __attribute__((ifunc("pick")));\nint (*const p)(void) = chosen;',
            (), "constructors", "relocation 37" if IS_X86 else "relocation 1032",
        ),
        ("static int memo;\nint *where(void) { return &memo; }", (), "writable-globals", "bytes at"),
        ('__attribute__((section(".data.rel.rox"), used)) static int memo = 3;', (), "writable-globals", "bytes at"),
        ("_Thread_local int memo; int *f(void) { return &memo; }", (), "constructors", "relocation"),
        ('__asm__(".section .x,\\"awx\\"\\n.byte 0\\n.text");', (), "writable-globals", "bytes of code"),
        ("", ("-Wl,-z,execstack",), "writable-globals", "an executable stack"),
        ("", ("-Wl,--no-as-needed", "-l:libdl.so.2"), "symbols", "libdl.so.2"),
        ("int other(void) { return 1; }", (), "symbols", "other"),
    ],
)  # fmt: skip
def test_what_loading_would_do_is_read_off_the_shared_object(tmp_path, text, flags, gate, says):
    toolchain = find_toolchain()
    if toolchain.kind != "gcc" and ("ifunc" in text or "-Wl" in str(flags)):
        pytest.skip("written for GNU's linker")
    source, product = tmp_path / "c.c", tmp_path / "c.so"
    hide = "#pragma GCC visibility push(hidden)\n" if "other" not in text else ""
    source.write_text(PLAIN + hide + text)
    command = [toolchain.compiler, "-shared", "-fPIC", "-nostartfiles", "-Wl,-z,now,-z,relro", *flags, source, "-o", product]
    subprocess.run([*command, "-lm"], check=True)
    verdict = gate_shared_object(read_shared_object(product), BuildReport(0.0))
    assert (verdict.gate if verdict is not None else None) == gate, verdict
    assert verdict is None or says in verdict.message


def test_a_section_with_a_name_like_a_protected_one_is_writable(compiler, tmp_path):
    names = (".data.rel.ro", ".data.rel.ro.local", ".data.rel.rox", ".data.rel.rox.ro")
    for index, name in enumerate(names):
        source, product = tmp_path / f"{index}.c", tmp_path / f"{index}.o"
        source.write_text(f'__attribute__((section("{name}"))) int memo = 3;\n')
        subprocess.run([compiler.toolchain.compiler, "-c", "-fPIC", source, "-o", product], check=True)
    found = [read_machine_code(tmp_path / f"{i}.o", compiler.toolchain).writable for i in range(4)]
    assert found == [(), (), ("memo",), ("memo",)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("const char big[5 << 20] = {1};", "bytes"),
        ("void f(void);\nvoid (*const t[30000])(void) = {[0 ... 29999] = f};", "30000 relocations"),
        ("".join(f"int f{i}(void) {{ return 1; }}\n" for i in range(20_000)), "symbols"),
        ("".join(f'__attribute__((section(".text.x{i}"))) void f{i}(void) {{}}\n' for i in range(1100)), "sections"),
        (f"int {'f' * 300}(void) {{ return 1; }}", "255 characters"),
    ],
)
def test_objects_with_too_much_in_them_are_refused_unread(compiler, tmp_path, text, says):
    source, product = tmp_path / "c.c", tmp_path / "c.o"
    source.write_text(text)
    subprocess.run([compiler.toolchain.compiler, "-c", "-fPIC", "-O0", source, "-o", product], check=True)
    begin = time.process_time()
    assert says in measure_object(product)
    assert time.process_time() - begin < 1


def test_code_without_measure_is_refused(compiler):
    code = dataclasses.replace(code_of(compiler), code_bytes=2 << 20)
    assert gate_machine_code(code, 0, BuildReport(0.0)).gate == "code-size"


def test_an_object_that_is_none_is_the_machines_fault(compiler, tmp_path):
    (tmp_path / "x.o").write_bytes(b"no object")
    with pytest.raises(ToolchainError, match="cannot be read"):
        read_machine_code(tmp_path / "x.o", compiler.toolchain)
    whole = compiler.build(kernel(), PROBLEM).kernel_object.read_bytes()
    (tmp_path / "half.o").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ToolchainError, match="cannot be read"):
        read_machine_code(tmp_path / "half.o", compiler.toolchain)


def test_the_environments_key_is_stable_and_tells_compilers_and_baselines_apart():
    toolchain = find_toolchain()
    one = cpu_environment(toolchain, "blas 1")
    assert one.key == cpu_environment(toolchain, "blas 1").key
    assert one.key != cpu_environment(toolchain, "blas 2").key
    assert one.target == "cpu"
    assert json.loads(json.dumps(dict(one.identity))) == one.identity
    assert platform.node() not in one.identity.values()


def test_processors_are_described_from_either_kind_of_cpuinfo():
    x86 = "processor\t: 0\ncpu family\t: 6\nmodel\t\t: 85\nmodel name\t: Intel(R)  Xeon(R)\nstepping\t: 7\n"
    x86 += "flags\t\t: fpu avx2 fma f16c\n\n"
    arm = "processor\t: 0\nFeatures\t: fp asimd asimdhp\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\nCPU revision\t: 1\n\n"
    one, other = parse_cpuinfo(x86 + x86.replace("fma", "")), parse_cpuinfo(arm)
    assert (one.model, one.simd) == ("Intel(R) Xeon(R) (6-85-7)", ("avx2", "fma", "f16c"))
    assert (other.model, other.simd) == ("Arm 0x41 0xd0c 1", ("asimd", "asimdhp"))
    assert one.features_digest != parse_cpuinfo(x86.replace("fma", "")).features_digest
    assert parse_cpuinfo("").model
