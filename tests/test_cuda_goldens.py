"""What the CUDA seeds become, by architecture: the numbers of NVIDIA's tools, the reader's, and the golden texts agree.

The texts in `golden/cuda/seeds/` are of NVRTC of the pinned toolkit, at default tunables: what `ptxas -v` and
`cuobjdump -res-usage` say, how often `nvdisasm` prints each opcode, and the digest. To renew them after a wanted change of
seeds, toolkit or digest: `EVO_L2_RENEW_GOLDEN=1 pytest tests/test_cuda_goldens.py`.
"""

import dataclasses
import functools
import os
import re
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from evo_l2.kernel import Kernel
from evo_l2.targets.cuda.reading.cubin import read_cubin
from evo_l2.targets.cuda.reading.resources import accumulator, complete, copy_kind, parse_usage, resources_of
from evo_l2.targets.cuda.reading.sass import instruction_class, instruction_mix, machine_code_digest, parse_sass
from evo_l2.targets.cuda.toolchain.compiler import CudaBuilt
from evo_l2.targets.cuda.toolchain.toolkit import PINNED_VERSION
from experiments.seeds import load_seeds, seed_names

GOLDEN = Path(__file__).parent / "golden" / "cuda" / "seeds"
LISTING = GOLDEN / "naive_nn.sm_80.sass.txt"
"""The one whole listing: the others are megabytes."""
ROOT = Path(__file__).parent.parent
SEEDS = {
    name: kernel
    for layout in ("nn", "nt")
    for name, kernel in zip(seed_names("cuda", layout), load_seeds("cuda", layout), strict=True)
}
ARCHITECTURES = ("sm_80", "sm_86", "sm_90a", "sm_100a")
BUILDS = [
    (name, arch)
    for arch in ARCHITECTURES
    for layout in ("nn", "nt")
    for name in seed_names("cuda", layout, architecture=arch)
]
RENEW = bool(os.environ.get("EVO_L2_RENEW_GOLDEN"))
PARTS = ("digest", "ptxas -v", "cuobjdump -res-usage", "opcodes")


@dataclasses.dataclass
class Made:
    """A build, and what NVIDIA's tools say of it."""

    built: CudaBuilt
    usage: str
    listing: str

    @functools.cached_property
    def sass(self):
        return parse_sass(self.listing)

    @functools.cached_property
    def digest(self):
        return machine_code_digest(self.sass, read_cubin(self.built.cubin))

    @functools.cached_property
    def parts(self):
        """The golden text of one architecture, by part."""
        log = "\n".join(line for line in self.built.log.splitlines() if line.strip())
        rows = [f"{opcode} {n}" for opcode, n in sorted(opcodes(self.listing).items())]
        usage = "\n".join(line for line in self.usage.splitlines() if line.strip())
        return dict(zip(PARTS, (self.digest, log, usage, "\n".join(rows)), strict=True))


def opcodes(listing):
    """How often a listing has each opcode: counted by the first word of a line, without the reader."""
    lines = (line.partition("*/")[2] for line in listing.splitlines() if re.match(r"\s+/\*[0-9a-f]{4,}\*/", line))
    words = (re.sub(r"^[\s{]*(@!?\w+\s+)?", "", line).split()[0].rstrip(";") for line in lines)
    return Counter(words)


def output(*command):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True, timeout=120).stdout


def make(compiler, kernel, arch):
    built = compiler.build(kernel, arch)
    assert isinstance(built, CudaBuilt), built
    toolkit = compiler.toolkit
    return Made(
        built,
        output(toolkit.cuobjdump, "-res-usage", built.cubin),
        output(toolkit.nvdisasm, "-c", "-gi", "-ndf", built.cubin),
    )


@pytest.fixture(scope="module", params=SEEDS)
def name(request):
    """Each seed. Tests of one follow one another, so that a worker makes and reads the builds of its own seeds alone."""
    return request.param


@pytest.fixture(scope="module")
def builds(nvrtc):
    """A function from seed and architecture to what became of it; each is made once."""
    kept = {}
    with ThreadPoolExecutor(2) as pool:

        def made(name):
            for seed, arch in BUILDS:
                if seed == name and (seed, arch) not in kept:
                    kept[seed, arch] = pool.submit(make, nvrtc, SEEDS[seed], arch)
            return {arch: future.result() for (seed, arch), future in kept.items() if seed == name}

        yield made


def golden_head(name):
    return (GOLDEN / f"{name}.txt").read_text(encoding="utf-8").partition("\n")[0]


def golden(name):
    """Architecture to part to text, as the golden file of a seed has them."""
    pieces = re.split(r"^=== (\S+)\n", (GOLDEN / f"{name}.txt").read_text(encoding="utf-8"), flags=re.MULTILINE)
    result = {}
    for arch, text in zip(pieces[1::2], pieces[2::2], strict=True):
        found = re.split(r"^--- (.+)\n", text, flags=re.MULTILINE)
        result[arch] = {part: body.rstrip("\n") for part, body in zip(found[1::2], found[2::2], strict=True)}
    return result


def head(name, builder):
    return f"{name} at its default tunables, by {builder}; renewed by EVO_L2_RENEW_GOLDEN=1 pytest tests/test_cuda_goldens.py"


def rendered(name, builder, made):
    bodies = (
        f"=== {arch}\n" + "".join(f"--- {part}\n{text}\n" for part, text in one.parts.items()) for arch, one in made.items()
    )
    return head(name, builder) + "\n" + "".join(bodies)


def counts(part):
    return {opcode: int(n) for opcode, n in (line.split() for line in part["opcodes"].splitlines())}


def by_base(part):
    """Opcodes without modifiers."""
    result = Counter()
    for opcode, n in counts(part).items():
        result[opcode.partition(".")[0]] += n
    return result


def rows_of(part):
    """Function to the numbers of `cuobjdump -res-usage`."""
    pairs = re.findall(r"Function (\S+):\s+(.*)", part["cuobjdump -res-usage"])
    return {name: {key: int(n) for key, n in re.findall(r"([A-Z]+(?:\[\d\])?):(\d+)", row)} for name, row in pairs}


def shared_bytes(row, arch):
    """What cuobjdump says; it counts the kibibyte that the driver keeps from Hopper on."""
    return row["SHARED"] - (1024 if arch in ("sm_90a", "sm_100a") and row["SHARED"] else 0)


# --- without a toolkit --------------------------------------------------------------------------------------------------


def test_there_is_a_golden_text_of_every_seed_and_architecture():
    assert {path.stem for path in GOLDEN.glob("*.txt")} == {*SEEDS, LISTING.stem}
    for name in SEEDS:
        assert golden_head(name).startswith(f"{name} at its default tunables, by nvrtc {PINNED_VERSION}.")
        assert [(name, arch) for arch in golden(name)] == [build for build in BUILDS if build[0] == name]
        assert all(tuple(parts) == PARTS for parts in golden(name).values())
    digests = [parts["digest"] for name in SEEDS for parts in golden(name).values()]
    assert len(set(digests)) == len(digests) == len(BUILDS)
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in digests)


def test_the_two_tools_of_a_golden_text_agree(name):
    for arch, parts in golden(name).items():
        usage, rows = parse_usage(parts["ptxas -v"]), rows_of(parts)
        assert set(usage) == set(rows) == {call.entry for call in SEEDS[name].launch.calls}
        assert set(re.findall(r" for '(sm_\w+)'", parts["ptxas -v"])) == {arch}
        for entry, said in usage.items():
            assert said.is_entry
            assert (said.n_registers, said.stack_bytes) == (rows[entry]["REG"], rows[entry]["STACK"])
            assert said.shared_bytes == shared_bytes(rows[entry], arch)
            assert (said.spill_store_bytes, said.spill_load_bytes, rows[entry]["LOCAL"]) == (0, 0, 0)


def test_the_whole_listing_is_that_of_the_golden_text():
    listing, parts = LISTING.read_text(encoding="utf-8"), golden("naive_nn")["sm_80"]
    sass = parse_sass(listing)
    assert Counter(i.opcode for i in sass.instructions) == opcodes(listing) == counts(parts)
    assert list(sass.functions) == ["hgemm"]
    lines = SEEDS["naive_nn"].source.splitlines()
    assert {i.file for i in sass.instructions} == {"kernel.cu"}
    assert {lines[i.line - 1].strip() for i in sass.instructions if i.base == "FFMA"} <= {
        line.strip() for line in lines if "sum +=" in line or "__half2float" in line
    }
    assert [lines[i.line - 1].strip()[:2] for i in sass.instructions if i.base == "STG"] == ["C["]


# --- with the pinned toolkit --------------------------------------------------------------------------------------------


def test_what_is_built_is_what_the_golden_text_says(name, nvrtc, builds):
    made = builds(name)
    text = rendered(name, nvrtc.builder, made)
    if RENEW:
        GOLDEN.mkdir(exist_ok=True)
        (GOLDEN / f"{name}.txt").write_text(text, encoding="utf-8")
        if name == "naive_nn":
            LISTING.write_text(re.sub(r'(?<=//## File ")[^"]*/', "", made["sm_80"].listing), encoding="utf-8")
    if golden_head(name) != head(name, nvrtc.builder):
        pytest.skip(f"another patch of CUDA {PINNED_VERSION} is here, {nvrtc.builder}: {golden_head(name)}")
    assert golden(name) == {arch: one.parts for arch, one in made.items()}
    assert text == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


def test_the_readers_facts_are_the_numbers_of_the_tools(name, builds):
    for arch, one in builds(name).items():
        parts, sass, usage = one.parts, one.sass, parse_usage(one.built.log)
        code = complete(read_cubin(one.built.cubin), sass, one.built.log)
        assert code.arch == arch
        assert set(code.entries) == set(rows_of(parts))
        for entry, row in rows_of(parts).items():
            found = code.entries[entry]
            assert (found.n_registers, found.stack_bytes, found.local_bytes) == (row["REG"], row["STACK"], row["LOCAL"])
            assert found.n_registers == usage[entry].n_registers
            assert found.static_shared_bytes == usage[entry].shared_bytes == shared_bytes(row, arch)
            assert found.constant_bytes[0] == row["CONSTANT[0]"]
            assert found.n_barriers == usage[entry].n_barriers
            assert found.spill_bytes == 0
        assert code.code_bytes == 16 * sum(counts(parts).values()) == 16 * len(sass.instructions)
        assert not [symbol.name for symbol in code.symbols if symbol.writable]


def test_instructions_are_counted_as_in_the_disassembly(name, builds):
    kinds = {
        "naive": "none",
        "tiled": "none",
        "hopper": "wgmma fp32",
        "hopper_splitk": "wgmma fp32",
        "mma_f16": "wmma/mma fp16",
    }
    idea = name.rpartition("_")[0]
    for arch, one in builds(name).items():
        sass, number = one.sass, by_base(one.parts)
        facts = resources_of(read_cubin(one.built.cubin), sass, parse_usage(one.built.log))
        expected = {
            "n_matrix": number["HMMA"] + number["HGMMA"], "n_global_load": number["LDG"], "n_matrix_load": number["LDSM"],
            "n_async_copy": number["LDGSTS"], "n_bulk_copy": number["UTMALDG"] + number["UBLKCP"], "n_local_load": 0,
            "n_local_store": 0, "n_narrow": 0,
        }  # fmt: skip
        assert {key: facts[key] for key in expected} == expected
        assert facts["n_global_store"] == number["STG"] + number["ST"] > 0  # a cluster's memory has generic addresses
        assert {i.opcode for i in sass.instructions if instruction_class(i) == "other"} == set()
        assert sum(instruction_mix(sass.instructions).values()) == sum(number.values()) - number["NOP"]
        assert facts["matrix_kind"] == kinds.get(idea, "wmma/mma fp32"), arch
        assert accumulator(sass) == {"none": "none", "wmma/mma fp16": "fp16"}.get(kinds.get(idea, ""), "fp32")
        copies = "tma" if number["UTMALDG"] else "cp.async" if number["LDGSTS"] else "staged" if number["STS"] else "none"
        assert copy_kind(sass.instructions) == copies


# --- the digest ---------------------------------------------------------------------------------------------------------

PROGRAM = """\
import sys
from pathlib import Path
from evo_l2.kernel import Kernel
from evo_l2.targets.cuda.toolchain.compiler import CudaCompiler
from evo_l2.targets.cuda.reading.cubin import read_cubin
from evo_l2.targets.cuda.reading.sass import machine_code_digest, read_sass
from evo_l2.targets.cuda.toolchain.toolkit import find_toolkit
toolkit = find_toolkit(wheels_first=True)
with CudaCompiler(toolkit, Path(sys.argv[1]), builder="nvrtc") as compiler:
    cubin = compiler.build(Kernel(Path(sys.argv[2]).read_text(), "cuda"), sys.argv[3]).cubin
print(machine_code_digest(read_sass(cubin, toolkit.tool("nvdisasm")), read_cubin(cubin)))
"""


def digest_elsewhere(folder, name, arch):
    """The digest of a seed that another process, of another user by its looks, builds in another folder."""
    home = folder / "another home"
    home.mkdir()
    source = folder / f"{name}.cu"
    source.write_text(SEEDS[name].source, encoding="utf-8")
    environ = {**os.environ, "HOME": str(home), "USER": "somebody", "LOGNAME": "somebody", "TMPDIR": str(home), "LC_ALL": "C",
               "PYTHONHASHSEED": "7", "PYTHONPATH": str(ROOT)}  # fmt: skip
    command = [sys.executable, "-c", PROGRAM, str(home / "a much longer name of a cache"), str(source), arch]
    done = subprocess.run(command, env=environ, cwd="/", capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(("name", "arch"), [("naive_nn", "sm_80"), ("splitk_nt", "sm_100a"), ("hopper_nn", "sm_90a")])
def test_the_digest_is_equal_across_folders_users_and_processes(name, arch, builds, tmp_path):
    assert digest_elsewhere(tmp_path, name, arch) == builds(name)[arch].digest


@pytest.mark.parametrize(("old", "new"), [("__float2half_rn(sum)", "__float2half_rz(sum)"), ("row >= M", "row > M")])
def test_the_digest_differs_when_one_instruction_differs(old, new, nvrtc, builds):
    plain = builds("naive_nn")["sm_80"]
    assert old in SEEDS["naive_nn"].source
    changed = make(nvrtc, Kernel(SEEDS["naive_nn"].source.replace(old, new), "cuda"), "sm_80")
    pairs = zip(plain.sass.instructions, changed.sass.instructions, strict=True)
    different = [(one.text, other.text) for one, other in pairs if one.text != other.text]
    assert len(different) == 1, different
    assert changed.digest != plain.digest


def test_the_digest_is_equal_when_only_text_differs(nvrtc, builds):
    source = (
        SEEDS["naive_nn"].source.replace("sum", "total").replace("    const int col", "\n    // a comment\n    const int col")
    )
    changed = make(nvrtc, Kernel(source, "cuda"), "sm_80")
    assert changed.built.cubin.read_bytes() != builds("naive_nn")["sm_80"].built.cubin.read_bytes()
    assert changed.digest == builds("naive_nn")["sm_80"].digest
