"""Kernel source to PTX by nvcc and to a cubin by ptxas; and what the CUDA compilers' messages mean, for NVRTC too."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from evo_l2 import sandbox
from evo_l2.build_cache import BuildOutcome
from evo_l2.evaluation import Status, Verdict
from evo_l2.products import MOST_PRODUCT_BYTES, is_product, read_product
from evo_l2.sandbox import Exceeded, Finished, Limits
from evo_l2.targets.cpu.toolchain import Toolchain
from evo_l2.targets.cuda.toolchain.toolkit import Toolkit
from evo_l2.targets.failures import explain_failure
from evo_l2.targets.messages import LONGEST_LOG, is_out_of_memory, is_out_of_space, plain_lines, ranked

__all__ = [
    "ANOTHER_TOOLKIT",
    "C_HEADERS",
    "MOST_PTX_BYTES",
    "Ended",
    "Job",
    "Nvcc",
    "at_source_lines",
    "errors_first",
    "explain",
    "resource_lines",
]

ANOTHER_TOOLKIT = "evo-l2 doctor, or another toolkit (CUDA_HOME)"
"""What to do about one that does not work."""
C_HEADERS = frozenset(
    {
        "stdint.h", "stddef.h", "limits.h", "float.h", "math.h",
        "cstdint", "cstddef", "climits", "cfloat", "cmath",
    }
)  # fmt: skip
"""Headers of the host's C and C++ libraries that either builder takes from a kernel: types and constants."""
_CUTLASS = re.compile(r"^[ \t]*(?:#|%:)[ \t]*include[ \t]*[<\"](?:cute|cutlass)/", re.MULTILINE)
_MOST_OUTPUT_BYTES = 1 << 20
"""Of one step: the tree of includes is part of it."""
MOST_PTX_BYTES = 16 << 20
"""All of it is read by patterns; a large kernel has a few hundred kilobytes."""
_INCLUDED = re.compile(r"^(\.+) (\S.*)$")
"""A line of what `gcc -H` and `clang -H` show: one dot for each level, and a path."""
_GUARDS = "Multiple include guards may be useful for:"
_MODULE = re.compile(r"(_INTERNAL_|_GLOBAL__N__)[0-9a-f]{8}(?=_\d+_kernel_cu)")
"""What stands in the names of a file's own functions: a digest of the folder's path."""
_BYTES = re.compile(r"(?:^[ \t]*\.b8 \d{1,3}(?:,\d{1,3})*[ \t]*\n)+", re.MULTILINE)
_NUMBER = re.compile(r"(?<=[ ,])\d+")
_FILE = re.compile(r'^([ \t]*\.file[ \t]+\d+[ \t]+)"([^"\n]*)"', re.MULTILINE)
_LOC = re.compile(r"\s*\.loc\s+\d+\s+(\d+)\s")
_INFO = re.compile(r"^(ptxas info\s*:|ptxas\s+\.\s|\s+\d+ bytes stack frame)")
_PTX_LINE = re.compile(r"^ptxas [^\n]*?, line (\d+);\s*(fatal|error|warning)\s*:\s*(.*)$")
_HEADLINE = re.compile(
    r"^(?:\S+?[(:]\d+.*?\b(?P<kind>error|warning|note|remark)\b|(?:ptxas|nvcc|cicc|nvrtc)\b.*?\b(?P<tool>error|fatal|warning)\b"
    r"|At end of source: error|\S*(?:gcc|g\+\+|clang\S*|cc1plus): (?:fatal )?error|error:)"
)
_BLAMES = re.compile(
    r"^kernel\.(?:cu|ptx)[(:]\d+.*\berror\b|^At end of source: error|^ptxas .*\berror\b|^\S+\(\d+\): error"
    r"|^catastrophic error|: (?:fatal|catastrophic) error|^ptxas fatal\s+: Unresolved",
    re.MULTILINE,
)
_NOT_THE_SOURCE = re.compile(
    r"internal error|internal compiler error|cannot execute|died due to signal|unsupported GNU version"
)
_NOISE = re.compile(
    r"\s*$|Remark: The warnings|\d+ (catastrophic )?errors? detected in|compilation terminated|Please submit|"
    r"ptxas fatal\s*: Ptx assembly aborted|Error limit reached|Compilation (aborted|terminated)"
)
_TOO_MUCH = re.compile(r"uses too much (\w+) data \(0x([0-9a-fA-F]{1,16}) bytes, 0x([0-9a-fA-F]{1,16}) max\)")
_DIED = re.compile(r"died due to signal (\d+)")
_ADVICE = "the source, its templates, its unrolled loops and its data"
_SIGXCPU, _SIGXFSZ = signal.SIGXCPU, signal.SIGXFSZ


@dataclass(frozen=True, slots=True)
class Job:
    """One build: a kernel for one architecture."""

    source: str
    arch: str
    """`sm_80`, `sm_90a`, ..."""
    front: tuple[str, ...]
    """Options of the compiler, in the spelling that nvcc and NVRTC share."""
    back: tuple[str, ...]
    """Options of ptxas, the number of registers included."""
    limits: Limits

    @property
    def with_cutlass(self) -> bool:
        """Whether it includes CuTe or CUTLASS: the slow lane."""
        return _CUTLASS.search(self.source) is not None

    @property
    def virtual(self) -> str:
        """The architecture that PTX is for."""
        return self.arch.replace("sm_", "compute_")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a compiler came to its end, whichever it was."""

    output: str
    """Its messages, without paths of this machine."""
    exceeded: Exceeded | None = None
    signal: int | None = None
    returncode: int | None = None


class Nvcc:
    """Builds by nvcc and ptxas, each in the sandbox.

    Two steps, so that the PTX between them can be made the same in every folder: names of a file's own functions hold a
    digest of the folder, and line information holds paths. The cubin then depends on source, options and toolkit alone.

    Args:
        toolkit: Has nvcc and ptxas.
        host: The C++ compiler that nvcc preprocesses with.
        launcher: See `evo_l2.sandbox`.

    Raises:
        ToolchainError: The toolkit has no nvcc.
    """

    def __init__(self, toolkit: Toolkit, host: Toolchain, launcher: Path) -> None:
        self._nvcc, self._ptxas = toolkit.tool("nvcc"), toolkit.tool("ptxas")
        self._toolkit, self._host, self._launcher = toolkit, host, launcher
        headers = (toolkit.cutlass,) if toolkit.cutlass is not None else ()
        self._roots = (*toolkit.include_dirs, *headers)
        self._read_paths = (*host.read_paths, *toolkit.homes, *self._roots)

    @property
    def version(self) -> str:
        """Name and version, for the environment."""
        return f"nvcc {self._toolkit.version}"

    def build(self, work: Path, job: Job, check_machine: Callable[[], None]) -> BuildOutcome:
        """Leaves `kernel.ptx` and `kernel.cubin` in the folder, or says why not.

        Args:
            work: An empty folder.
            job: What is built.
            check_machine: Called before a kernel is blamed for what its messages do not say; raises if the machine is.

        Raises:
            OSError: There is no room.
            ToolchainError: The tools do not work.
        """
        (work / "kernel.cu").write_text(job.source, encoding="utf-8", errors="replace")
        cutlass = (f"-I{self._toolkit.cutlass}",) if self._toolkit.cutlass is not None else ()
        done = self._run(
            work,
            [
                str(self._nvcc), "-ptx", f"--gpu-architecture={job.virtual}", "--generate-line-info",
                f"--compiler-bindir={self._host.compiler}", "-Xcompiler=-H", *job.front, *cutlass,
                "kernel.cu", "-o", "kernel.ptx",
            ],
            job.limits,
        )  # fmt: skip
        text, included = _without_includes(done.output)
        refused = self._check_includes(included, job.source)
        if refused is not None:
            return BuildOutcome(refused)
        product = work / "kernel.ptx"
        is_made = is_product(product, self.version, ANOTHER_TOOLKIT)
        raw = _read_text(product) if is_made else None
        # For sm_90a and the like nvcc itself hands the PTX to ptxas in this step, which then speaks of its lines.
        warnings = errors_first(at_source_lines(text, raw or ""), str(work))
        if done.returncode != 0 or not is_made:
            return explain(_ended(done, warnings), check_machine)
        if raw is None:
            return explain(Ended(warnings, Exceeded.FILE), check_machine)
        ptx = self._portable(raw, work)
        product.write_text(ptx, encoding="utf-8")
        (work / "kernel.cu").unlink()  # or ptxas notes when it was written
        command = [str(self._ptxas), "-v", "--generate-line-info", f"-arch={job.arch}", *job.back]
        done = self._run(work, [*command, "kernel.ptx", "-o", "kernel.cubin"], job.limits)
        log = errors_first(_without(warnings, at_source_lines(done.output, ptx)), str(work))
        if not is_product(work / "kernel.cubin", self.version, ANOTHER_TOOLKIT) or done.returncode != 0:
            return explain(_ended(done, log), check_machine)
        return BuildOutcome(None, "\n".join(part for part in (resource_lines(done.output), warnings, log) if part))

    def _run(self, work: Path, command: Sequence[str], limits: Limits) -> Finished:
        return sandbox.run_limited(
            self._launcher,
            command,
            cwd=work,
            limits=replace(limits, output_bytes=_MOST_OUTPUT_BYTES, file_bytes=MOST_PRODUCT_BYTES),
            read_paths=self._read_paths,
            write_paths=[work],
            environ=self._host.environ,
        )

    def _check_includes(self, included: Sequence[str], source: str) -> Verdict | None:
        """Refuses a kernel that includes a file of the host, whatever disguise the line had."""
        for name in included:
            path = Path(name).resolve()
            if any(path.is_relative_to(root) for root in self._roots) or (path.name in C_HEADERS and name[0] == "/"):
                continue
            lines = [n for n, line in enumerate(source.split("\n"), 1) if "include" in line and path.name in line]
            where = f"line {lines[0]}: " if lines else "a macro makes an include: "
            return Verdict(Status.REJECTED, "includes", f"{where}{path.name[:60]} is no device header of the CUDA toolkit")
        return None

    def _portable(self, ptx: str, work: Path) -> str:
        """The PTX as it would be in any folder, of any user, with the toolkit anywhere."""

        def short(match: re.Match[str]) -> str:
            path = Path(match.group(2)).resolve()
            roots = sorted((work.resolve(), *self._roots), key=lambda root: -len(root.parts))
            root = next((root for root in roots if path.is_relative_to(root)), path.parent)
            return f'{match.group(1)}"{path.relative_to(root)}"'

        return _FILE.sub(short, _BYTES.sub(_plain_names, _MODULE.sub(r"\g<1>00000000", ptx)))


def _plain_names(match: re.Match[str]) -> str:
    """Bytes of debug information, with the names in them as they are elsewhere."""
    values = bytes(int(number) & 255 for number in _NUMBER.findall(match.group()))
    text = _MODULE.sub(r"\g<1>00000000", values.decode("latin-1")).encode("latin-1")
    if text == values:
        return match.group()
    new = iter(text)
    return _NUMBER.sub(lambda _: str(next(new)), match.group())


def explain(ended: Ended, check_machine: Callable[[], None]) -> BuildOutcome:
    """What a build that failed comes to: the kernel's fault if its messages say so, or if the machine can show that it works.

    Raises:
        OSError: There is no room.
        ToolchainError: By `check_machine`: the machine is to blame.
    """
    log, exceeded = ended.output, ended.exceeded
    died = _DIED.search(log)
    number = int(died.group(1)) if died is not None else ended.signal
    if exceeded is None and number in (_SIGXCPU, _SIGXFSZ):
        exceeded = Exceeded.CPU if number == _SIGXCPU else Exceeded.FILE
    if is_out_of_space(log):
        raise OSError(next(line for line in log.splitlines() if is_out_of_space(line))[:200])
    out_of_memory = is_out_of_memory(log)
    blames = _BLAMES.search(log) is not None and _NOT_THE_SOURCE.search(log) is None
    return explain_failure(
        log,
        exceeded=exceeded,
        ended_by=number,
        returncode=ended.returncode,
        is_blamed=blames and not out_of_memory,
        is_out_of_memory=out_of_memory,
        advice=_ADVICE,
        check_machine=check_machine,
    )


def errors_first(output: str, folder: str) -> str:
    """Messages of nvcc, ptxas or NVRTC: errors before warnings, no paths of this machine, at most `LONGEST_LOG` characters.

    The resources that `ptxas -v` reports are not among them; see `resource_lines`.
    """
    text = output.replace(folder.rstrip("/") + "/", "")
    text = re.sub(r"(?<![\w.])/\S*/include/(?:cccl/)?", "", text)
    text = re.sub(r"(?:\./|/\S*/)?tmpxft_\w+-\d+_kernel", "kernel", text)
    text = re.sub(r"(?<!\w)/(?=kernel\.cu\b)", "", text)
    text = _TOO_MUCH.sub(_in_decimal, text)
    lines = plain_lines(text.splitlines())
    return ranked((line for line in lines if not (_NOISE.match(line) or _INFO.match(line))), _rank)


def _in_decimal(match: re.Match[str]) -> str:
    what, n_bytes, most = match.group(1), int(match.group(2), 16), int(match.group(3), 16)
    more = "; more of it has to be dynamic: extern __shared__ and a line '//! shared BYTES'" if what == "shared" else ""
    return f"uses too much {what} data ({n_bytes} bytes, at most {most}{more})"


def _rank(line: str) -> int | None:
    match = _HEADLINE.search(line)
    if match is None or match.group("kind") == "note":
        return None
    return 1 if "warning" in (match.group("kind"), match.group("tool")) else 0


def resource_lines(output: str) -> str:
    """What `ptxas -v` says of each function, in the words of the program (NVRTC puts its name before some of them)."""
    lines = [re.sub(r"^ptxas\s+\.\s+", "    ", line) for line in output.splitlines() if _INFO.match(line)]
    whole = "\n".join(line for line in lines if "Compile time" not in line)
    return whole[: 4 * LONGEST_LOG]


def at_source_lines(output: str, ptx: str) -> str:
    """Complaints about a line of PTX, told of the source line that it was made from, with the instruction."""
    lines = ptx.split("\n")
    places: list[str | None] = []
    for line in lines:
        location = _LOC.match(line)
        places.append(location.group(1) if location is not None else places[-1] if places else None)

    def told(text: str) -> str:
        match = _PTX_LINE.match(text)
        if match is None or not 0 < int(match.group(1)) <= len(lines):
            return text
        at = int(match.group(1)) - 1
        found = places[at]
        kind = "error" if match.group(2) == "fatal" else match.group(2)
        place = f"kernel.cu({found})" if found is not None else f"kernel.ptx({at + 1})"
        return f"{place}: {kind}: {match.group(3)} (in PTX: {' '.join(lines[at].split())[:120]})"

    return "\n".join(told(line) for line in output.splitlines())


def _read_text(path: Path) -> str | None:
    """A product that is text; None when it is too long to be read by patterns."""
    if path.lstat().st_size > MOST_PTX_BYTES:
        return None
    return read_product(path, MOST_PTX_BYTES).decode("utf-8", "replace")


def _without(known: str, output: str) -> str:
    """The messages without the lines that an earlier step has told."""
    told = set(known.splitlines())
    return "\n".join(line for line in output.splitlines() if line not in told)


def _without_includes(output: str) -> tuple[str, list[str]]:
    """The messages without the tree of includes, and what the kernel itself includes."""
    kept, included, in_guards = [], [], False
    for line in output.splitlines():
        match = _INCLUDED.match(line)
        in_guards = line == _GUARDS or (in_guards and line.startswith("/"))
        if match is not None and match.group(1) == ".":
            included.append(match.group(2))
        elif match is None and not in_guards:
            kept.append(line)
    return "\n".join(kept), included


def _ended(done: Finished, messages: str) -> Ended:
    return Ended(messages, done.exceeded, done.signal, done.returncode)
