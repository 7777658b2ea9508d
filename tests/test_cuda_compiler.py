"""From CUDA source to cubin without a card: what builds, what does not, and whose fault that is."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import time

import pytest
from elftools.elf.elffile import ELFFile

from evo_l2.build_cache import BuildCache, BuildOutcome
from evo_l2.errors import ConfigurationError, StorageError, ToolchainError
from evo_l2.evaluation import Status, Verdict
from evo_l2.kernel import Kernel
from evo_l2.problems.hgemm import Hgemm
from evo_l2.products import is_product, read_product
from evo_l2.targets.cuda.inspection import inspect
from evo_l2.targets.cuda.toolchain.compiler import CudaBuilt, CudaCompiler, check_flags
from evo_l2.targets.cuda.toolchain.nvcc import errors_first, resource_lines
from evo_l2.targets.messages import LONGEST_LOG

HEADER = "//! layout nn\n//! launch scale(A: in, C: out)\n//! grid 1\n//! block 128\n"
BODY = (
    "#include <cuda_fp16.h>\n"
    'extern "C" __global__ void scale(const half *A, half *C) { C[threadIdx.x] = A[threadIdx.x] * A[0]; }\n'
)
CPU_S = 4
MORE_REGISTERS = """
extern "C" __global__ void many(const float *a, float *c) {
    float x[96];
    #pragma unroll
    for (int i = 0; i < 96; i++) x[i] = a[threadIdx.x * 96 + i];
    #pragma unroll 1
    for (int n = 0; n < 9; n++)
        #pragma unroll
        for (int i = 0; i < 96; i++) x[i] = x[i] * x[(i + 7) % 96] + x[(i + 31) % 96];
    #pragma unroll
    for (int i = 0; i < 96; i++) c[threadIdx.x * 96 + i] = x[i];
}
"""


@pytest.fixture(scope="module", params=["nvcc", "nvrtc"])
def compiler(request, cuda_wheels, tmp_path_factory):
    with CudaCompiler(cuda_wheels, tmp_path_factory.mktemp("cache"), builder=request.param, cpu_s=CPU_S) as made:
        yield made


def kernel(text="", body=BODY, header=HEADER):
    return Kernel(f"{header}{text}\n{body}", "cuda")


def failure(compiler, text="", body=BODY, header=HEADER):
    """Status, gate and message of a kernel that must not come through."""
    verdict = compiler.build(kernel(text, body, header))
    assert isinstance(verdict, Verdict)
    return verdict.status, verdict.gate, verdict.message


def section(built, name):
    with built.cubin.open("rb") as file:
        found = ELFFile(file).get_section_by_name(name)
        return None if found is None else found.data()


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90a", "sm_100a"])
def test_a_kernel_is_built_for_each_architecture(compiler, arch):
    built = compiler.build(kernel(), arch)
    assert isinstance(built, CudaBuilt)
    assert f".target {arch}" in built.ptx.read_text()
    assert f"'scale' for '{arch}'" in built.log
    assert "registers" in built.log
    assert "0 bytes spill stores" in built.log
    assert section(built, ".text.scale")
    assert section(built, ".debug_line")
    assert built.builder == compiler.builder == f"{compiler.builder.split()[0]} {compiler.toolkit.version}"


def test_other_architectures_are_one_clear_line(compiler):
    for arch in ("sm_999", "sm_80; rm -rf /", "compute_80", ""):
        with pytest.raises(ConfigurationError, match=r"no such architecture: expected one of .*sm_80 .*sm_90a"):
            compiler.build(kernel(), arch)


def test_the_cubin_is_the_same_in_every_folder_and_process(compiler, tmp_path):
    body = BODY + (
        "namespace { __device__ __noinline__ int own(int x) { return x * x + 3; } }\n"
        "static __device__ __noinline__ int other(int x) { return x / 7; }\n"
        '#include <mma.h>\nextern "C" __global__ void g(int *a) {\n'
        "    nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> f;\n"
        "    nvcuda::wmma::fill_fragment(f, 1.0f);\n    a[0] = own(a[1]) + other(a[2]) + (int)f.x[0];\n}\n"
    )
    name = compiler.builder.split()[0]
    first = compiler.build(kernel(body=body))
    with CudaCompiler(compiler.toolkit, tmp_path / "a much longer name", builder=name) as elsewhere:
        second = elsewhere.build(kernel(body=body))
    assert first.ptx.read_bytes() == second.ptx.read_bytes()
    assert first.cubin.read_bytes() == second.cubin.read_bytes()
    if name == "nvcc":
        assert str(tmp_path.parent).encode() not in second.cubin.read_bytes()
        assert '"kernel.cu"' in second.ptx.read_text()


def test_the_number_of_registers_is_part_of_the_build(compiler):
    header = HEADER.replace("scale", "many")
    free = compiler.build(kernel(body=MORE_REGISTERS, header=header))
    bound = compiler.build(kernel("constexpr int R = 20;", MORE_REGISTERS, header + "//! registers 2 * R\n"))
    assert "Used 40 registers" in bound.log
    assert " 0 bytes spill stores" in free.log
    assert " 0 bytes spill stores" not in bound.log
    assert failure(compiler, header=HEADER + "//! registers M\n")[:2] == (Status.REJECTED, "launch")
    assert failure(compiler, header=HEADER + "//! registers 400\n")[0] is Status.UNLAUNCHABLE


def test_flags_change_what_is_built(compiler):
    body = 'extern "C" __global__ void scale(float *a) { a[0] = a[1] / a[2]; }'
    plain = compiler.build(kernel(body=body))
    fast = compiler.build(kernel(body=body, header=HEADER + "//! flags --use_fast_math\n"))
    assert "div.rn.f32" in plain.ptx.read_text()
    assert "div.approx.ftz.f32" in fast.ptx.read_text()
    cached = compiler.build(kernel(body=body, header=HEADER + "//! flags -Xptxas -dlcm=cg,-O1 -std=c++20 --fmad=false\n"))
    assert isinstance(cached, CudaBuilt)
    assert section(cached, ".text.scale") != section(plain, ".text.scale")


@pytest.mark.parametrize(
    "flag",
    [
        "-I/etc", "--include-path=/etc", "-include=/etc/passwd", "-Xcompiler=-B/tmp", "-DX", "-o", "-Xptxas", "-Xptxas=-o,x",
        "--options-file=x", "-maxrregcount=20", "-arch=sm_90", "-G", "--run", "-lcuda", "-O3\n-o", "kernel.cu", "-rdc=true",
        "--use_fast_math;", "-Xptxas=--input-as-string=x", "--std=c++98", "@file",
    ],
)  # fmt: skip
def test_flags_that_do_more_than_optimise_are_refused(flag):
    verdict = check_flags((flag,))
    assert (verdict.status, verdict.gate) == (Status.REJECTED, "flags")
    assert "\n" not in verdict.message.replace(flag, "")


def test_the_gate_on_flags_stands_before_the_compiler(compiler):
    assert failure(compiler, header=HEADER + "//! flags -I/etc\n")[:2] == (Status.REJECTED, "flags")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (BODY + "__device__ int g() {\n return undeclared; }", r"kernel\.cu\(9\): error: .*\"undeclared\" is undefined"),
        (BODY + "struct S {", r"error: expected a \"}\""),
        (BODY.replace("scale", "other"), r"no kernel scale, which its launch line names; write: extern \"C\""),
        (BODY.replace('extern "C" ', ""), r"without extern its name is another"),
        ("", r"no kernel scale"),
        ("int x;", r"no kernel scale"),
        (BODY.replace("__global__", "__device__"), r"no kernel scale"),
        (BODY + BODY, r"kernel\.cu\(\d+\): error: .*already been defined"),
        (BODY + '__global__ void g(int *a) {\n asm("foo.bar %0;" :: "r"(a[0]));\n}', r"kernel\.cu\(9\): .*'foo'.*foo\.bar"),
        (BODY + '__global__ void g() {\n asm(".include \\"/etc/passwd\\";");\n}', r"kernel\.cu\(9\): error: Parsing error"),
        (BODY + "__global__ void g(int *a) { __shared__ int s[99999]; s[a[0]] = 1; a[1] = s[a[2]]; }", r"much shared"),
        ("#include <nowhere.h>\n" + BODY, r"kernel\.cu[:(]6.*error: .*nowhere\.h"),
        ("#error stop here\n" + BODY, r"stop here"),
        (BODY + "constexpr long f(long n) { long s = 0; for (long i = 0; i < n; i++) s += i * s; return s; }"
         "constexpr long a = f(1l << 40);", r"must have a constant value"),
    ],
)  # fmt: skip
def test_what_does_not_compile_says_why(compiler, body, says):
    verdict = compiler.build(kernel(body=body))
    assert isinstance(verdict, Verdict)
    assert (verdict.status, verdict.gate) == (Status.BUILD_ERROR, "compile")
    assert re.search(says, verdict.message), verdict.message
    assert str(compiler.toolkit.include_dirs[0]) not in verdict.message
    assert ".build-" not in verdict.message


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_a_wrong_instruction_in_assembly_is_told_of_its_line(compiler, arch):
    body = BODY.replace("{ C", '{\n    asm volatile("mov.u32 %%tid.x, 1;\\n\\tfoo.u32 %0;" :: "r"(threadIdx.x));\n    C')
    verdict = compiler.build(kernel(body=body), arch)
    assert (verdict.status, verdict.gate) == (Status.BUILD_ERROR, "compile")
    lines = verdict.message.splitlines()
    assert any(re.match(r"kernel\.cu\(8\): error: .*'foo' \(in PTX: foo\.u32 %r\d+;\)", line) for line in lines), lines
    assert "kernel.ptx" not in verdict.message
    assert len(lines) == len(set(lines))


def test_too_much_static_memory_is_told_in_bytes_and_what_to_do(compiler):
    body = BODY.replace("{ C", "{ __shared__ half t[40000]; t[C - A] = A[1]; C[1] = t[A[2] > A[3]]; C")
    status, gate, message = failure(compiler, body=body)
    assert (status, gate) == (Status.BUILD_ERROR, "compile")
    assert "uses too much shared data (80000 bytes, at most 49152; more of it has to be dynamic: " in message
    assert "//! shared BYTES" in message
    assert "0x" not in message


def test_headers_of_the_toolkit_and_plain_types_may_be_included(compiler):
    names = ["stdint.h", "cstddef", "float.h", "climits", "math.h", "cuda.h", "mma.h", "cuda_pipeline.h", "cuda/std/cstdint",
             "cooperative_groups.h", "cuda_bf16.h"]  # fmt: skip
    text = "".join(f"#include <{name}>\n" for name in names)
    body = BODY + "__global__ void g(uint32_t *a, const __grid_constant__ CUtensorMap m) { a[0] = sizeof(m) + INT_MAX; }"
    assert isinstance(compiler.build(kernel(text, body)), CudaBuilt)


@pytest.mark.parametrize(
    "text",
    [
        "#include </usr/include/stdio.h>",
        "#include <iostream>",
        '#define S(x) #x\n#define F(x) S(x)\n#define N /usr/include/unistd.h\n#include F(N)',
        '#define H </usr/include/features.h>\n#include H',
        '#include "/proc/self/environ"',
        '#include "/etc/passwd"',
        '#include "../../../../../../../../../usr/include/stdio.h"',
    ],
)  # fmt: skip
def test_files_of_the_host_cannot_be_included(compiler, text):
    status, gate, message = failure(compiler, text)
    assert (status, gate) in ((Status.REJECTED, "includes"), (Status.BUILD_ERROR, "compile"))
    assert "root:" not in message
    assert "PATH=" not in message


def test_secrets_are_not_read_while_compiling(compiler, tmp_path):
    if not compiler.capabilities()["landlock"]:
        pytest.skip("this kernel has no Landlock")
    secret = tmp_path / "secret.h"
    secret.write_text("int leaked;\n#error leaked\n")
    message = failure(compiler, f'#include "{secret}"')[2]
    assert "leaked" not in message


def test_deep_nesting_costs_that_kernel_alone(compiler):
    text = "__device__ void f(int x) { x = " + "-(" * 60_000 + "1" + ")" * 60_000 + "; }"
    result = compiler.build(kernel(text))
    assert isinstance(result, CudaBuilt) or result.status is Status.BUILD_ERROR
    assert isinstance(compiler.build(kernel("// after nesting")), CudaBuilt)


def test_floods_of_messages_are_cut(compiler):
    for text in ("x y;\n" * 20_000, "#error " + "long " * 30_000):
        status, gate, message = failure(compiler, text)
        assert (status, gate) == (Status.BUILD_ERROR, "compile")
        assert len(message) <= LONGEST_LOG


def test_odd_text_is_no_crash(compiler):
    for text in ("// \ud800 \u202e \x7f \x01", "/* never closed", "\\", "\x00"):
        result = compiler.build(kernel(text))
        assert isinstance(result, CudaBuilt) or result.status is Status.BUILD_ERROR


def test_the_cache_keeps_successes_and_failures(compiler):
    first = compiler.build(kernel("// kept"))
    begin = time.process_time()
    again = compiler.build(kernel("// kept"))
    assert time.process_time() - begin < 0.1
    assert first.seconds > 0
    assert again == dataclasses.replace(first, seconds=0.0)
    assert {path.name for path in first.cubin.parent.iterdir()} == {"kernel.cubin", "kernel.ptx", "facts.json"}
    failed = compiler.build(kernel("nonsense // kept"))
    assert failed.build.seconds > 0
    repeated = compiler.build(kernel("nonsense // kept"))
    assert (repeated.build.seconds, repeated.message) == (0.0, failed.message)


def test_architecture_and_entry_are_part_of_what_is_cached(compiler):
    assert compiler.build(kernel(), "sm_80").cubin != compiler.build(kernel(), "sm_86").cubin
    assert failure(compiler, header=HEADER.replace("scale", "missing"))[1] == "compile"


@pytest.mark.parametrize("damage", ["kernel.cubin", "kernel.ptx", "facts.json", None])
def test_a_damaged_entry_is_built_anew(nvrtc, damage):
    source = kernel(f"// damaged {damage}")
    folder = nvrtc.build(source).cubin.parent
    for path in list(folder.iterdir()):
        if damage is None:
            path.unlink()
        elif path.name == damage:
            path.write_bytes(path.read_bytes()[:-9])
    assert nvrtc.build(source).seconds > 0
    assert nvrtc.build(source).seconds == 0.0


@pytest.mark.parametrize("name", ["kernel.cubin", "kernel.ptx", "facts.json"])
@pytest.mark.parametrize("thing", ["link", "folder", "pipe"])
def test_what_is_no_file_in_the_cache_is_never_opened_and_built_anew(nvrtc, tmp_path, name, thing):
    source = kernel(f"// {name} as a {thing}")
    folder = nvrtc.build(source).cubin.parent
    if thing == "link":  # even to the very same bytes
        shutil.move(folder / name, tmp_path / name)
        (folder / name).symlink_to(tmp_path / name)
    else:
        (folder / name).unlink()
        (os.mkfifo if thing == "pipe" else os.mkdir)(folder / name)
    assert nvrtc.build(source).seconds > 0
    assert nvrtc.build(source).seconds == 0.0
    assert (folder / name).lstat().st_size > 0
    assert not (folder / name).is_symlink()


def test_a_reading_that_is_no_file_is_read_anew(nvrtc):
    built = nvrtc.build(kernel("// a reading that has no end"))
    problem = Hgemm(((64, 64, 64, 1),))
    first = inspect(built, ("scale",), nvrtc.toolkit, problem, nvrtc.disassembler)
    (memo,) = built.cubin.parent.glob("inspection-*.json")
    memo.unlink()
    memo.symlink_to("/dev/zero")
    assert inspect(built, ("scale",), nvrtc.toolkit, problem, nvrtc.disassembler) == first
    assert not memo.is_symlink()


@pytest.mark.parametrize("thing", ["/dev/zero", "long", "folder", "pipe"])
def test_products_are_ordinary_files_of_a_bounded_size(tmp_path, thing):
    product = tmp_path / "kernel.cubin"
    if thing == "long":
        product.write_bytes(bytes(9))
    elif thing == "folder":
        product.mkdir()
    elif thing == "pipe":
        os.mkfifo(product)
    else:
        product.symlink_to(thing)
    with pytest.raises(OSError, match=r"kernel\.cubin"):
        read_product(product, 8)
    assert not is_product(tmp_path / "none", "nvcc", "")
    if thing == "long":
        assert is_product(product, "nvcc", "")
        assert read_product(product, 9) == bytes(9)


def test_a_cache_that_cannot_be_written_is_one_clear_line(cuda_wheels, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cache"):
        CudaCompiler(cuda_wheels, tmp_path / "file", builder="nvcc")


def test_an_unknown_builder_is_one_clear_line(cuda_wheels, tmp_path):
    with pytest.raises(ConfigurationError, match="expected nvcc or nvrtc, found clang"):
        CudaCompiler(cuda_wheels, tmp_path, builder="clang")


def test_code_for_another_card_is_no_product(cuda_wheels, tmp_path, monkeypatch):
    with CudaCompiler(cuda_wheels, tmp_path, builder="nvrtc", cpu_s=CPU_S) as made:
        build = made._builder.build

        def for_another(work, job, check):
            return build(work, dataclasses.replace(job, arch="sm_86"), check)

        monkeypatch.setattr(made._builder, "build", for_another)
        with pytest.raises(ToolchainError, match=r"machine code for sm_80.*sm_86"):
            made.build(kernel(), "sm_80")


def test_a_build_leaves_no_process_behind(compiler):
    compiler.build(kernel("// processes"))
    listing = subprocess.run(["ps", "-ww", "-o", "args=", "--ppid", str(os.getpid())], capture_output=True, text=True).stdout
    assert not any("kernel.cu" in line for line in listing.splitlines())


def test_cutlass_is_the_slow_lane_and_says_so(compiler):
    verdict = compiler.build(kernel("#include <cute/tensor.hpp>"))
    if compiler.builder.startswith("nvrtc"):
        assert "built by nvcc alone" in verdict.message
    elif compiler.toolkit.cutlass is None:
        assert "pip install nvidia-cutlass" in verdict.message
    else:
        assert "slow lane: " in verdict.log


def test_messages_have_errors_first_and_no_paths_of_this_machine():
    output = (
        '/w/b/kernel.cu(2): warning #177-D: variable "q" was never used\n  int q;\n      ^\n\n'
        'Remark: The warnings can be suppressed with "-diag-suppress <warning-number>"\n\n'
        "/opt/cuda/include/crt/mma.h(7): error: bad\n  x\n  ^\n\n1 error detected in the compilation of \"kernel.cu\".\n"
        "ptxas error   : Entry function 'f' uses too much shared data (0x61a80 bytes, 0xc000 max)\n"
    )  # fmt: skip
    lines = errors_first(output, "/w/b").splitlines()
    assert lines[0] == "crt/mma.h(7): error: bad"
    assert lines[3].startswith("ptxas error")
    assert lines[4].startswith("kernel.cu(2): warning")
    assert not any("Remark" in line or "detected" in line or "/w/b" in line for line in lines)


def test_resources_read_alike_from_ptxas_and_from_nvrtc():
    by_ptxas = (
        "ptxas info    : Function properties for f\n    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads\n"
    )
    by_nvrtc = by_ptxas.replace("    8 bytes", "ptxas         .     8 bytes")
    assert resource_lines(by_ptxas + "ptxas info    : Compile time = 3 ms\n") == by_ptxas.rstrip()
    assert resource_lines(by_nvrtc) == by_ptxas.rstrip()


def test_a_million_blank_lines_in_assembly_take_no_time(compiler):
    macros = '#define S0 "\\n\\n\\n\\n"\n' + "".join(f"#define S{n} S{n - 1} S{n - 1}\n" for n in range(1, 16))
    body = BODY.replace("{ C[", "{ asm volatile(S15 ::); C[")
    begin = time.monotonic()
    assert isinstance(compiler.build(kernel(macros, body)), CudaBuilt)
    assert time.monotonic() - begin < 30


def test_a_number_of_five_thousand_digits_is_no_crash(compiler):
    body = BODY.replace("{ C[", '{ asm volatile(".b8 1,' + "9" * 5000 + ';"); C[')
    assert failure(compiler, body=body)[:2] == (Status.BUILD_ERROR, "compile")


@pytest.mark.parametrize("damage", [{"gate": 3, "message": ["m"]}, {"message": ["m"]}, {"status": 7}])
def test_a_damaged_failure_is_built_anew(tmp_path, damage):
    cache = BuildCache(tmp_path, ())
    outcome = BuildOutcome(Verdict(Status.BUILD_ERROR, "compile", "no such name"))
    first = cache.obtain("ab", lambda _: outcome).verdict
    (entry,) = tmp_path.glob("*/*/facts.json")
    entry.write_text(json.dumps(json.loads(entry.read_text()) | damage))
    again = cache.obtain("ab", lambda _: outcome).verdict
    assert (again.status, again.gate, again.message) == (first.status, first.gate, first.message)
