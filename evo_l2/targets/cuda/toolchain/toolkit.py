"""Finds the CUDA toolkit of this machine, or of the wheels, and says what it knows."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from evo_l2.errors import ConfigurationError, ToolchainError
from evo_l2.targets.cuda.tool_process import tool_output

__all__ = ["OLDEST_VERSION", "PINNED_VERSION", "Toolkit", "find_toolkit"]

OLDEST_VERSION = (12, 4)
"""Older toolkits are passed over: this is the oldest with the PTX (8.4) and the C++ library headers that kernels may use."""
_VERSION = re.compile(r"\bV(\d{1,2}\.\d{1,2}\.\d{1,4})(?![\d.])")
PINNED_VERSION = "13.2"
"""Minor version of the wheels; another one makes other machine code (see the extra `cuda-toolkit`)."""
_ALL = f"pip install 'evo-l2[cuda-toolkit]' (wheels of CUDA {PINNED_VERSION})"
_WHEELS = {
    "nvcc": "nvidia-cuda-nvcc", "ptxas": "nvidia-cuda-nvcc", "nvdisasm": "nvidia-cuda-nvdisasm",
    "cuobjdump": "nvidia-cuda-cuobjdump", "nvrtc": "nvidia-cuda-nvrtc",
}  # fmt: skip
_FOLDERS_12 = ("cuda_nvcc", "cuda_nvrtc", "cuda_runtime", "cuda_cccl", "cuda_crt")
"""Where the wheels of CUDA 12 put their parts, each a folder; those of CUDA 13 share `nvidia/cu13`."""
_MISSING_HOST = re.compile(r"\b(?P<name>gcc|g\+\+|cc1plus|clang\+\+): (?:No such file|not found|command not found)")
WORKER = Path(__file__).with_name("nvrtc_worker.py")
"""The program that loads NVRTC; see `evo_l2.targets.cuda.toolchain.nvrtc`."""


@dataclass(frozen=True, slots=True)
class Toolkit:
    """A CUDA toolkit, or the parts of one: what is None is not there."""

    source: str
    """Where it was found: `CUDA_HOME`, `CUDA_PATH`, `PATH` or `wheels`."""
    version: str
    """Of the compiler, as it says itself: `13.2.86`."""
    architectures: tuple[str, ...]
    """What it builds for, such as `sm_80` and `sm_90a`, in ascending order."""
    include_dirs: tuple[Path, ...]
    """Its device headers, in the order in which they are searched."""
    nvcc: Path | None = None
    ptxas: Path | None = None
    nvdisasm: Path | None = None
    cuobjdump: Path | None = None
    nvrtc: Path | None = None
    """The library `libnvrtc.so`."""
    cutlass: Path | None = None
    """Headers of the wheel `nvidia-cutlass` (CuTe and CUTLASS)."""
    homes: tuple[Path, ...] = ()
    """Folders that its tools have to read."""
    notes: tuple[str, ...] = ()
    """What a person should know of how it was put together."""

    @property
    def major_minor(self) -> tuple[int, int]:
        """The version's first two numbers."""
        return _numbers(self.version)

    def tool(self, name: str) -> Path:
        """The path of `nvcc`, `ptxas`, `nvdisasm`, `cuobjdump` or `nvrtc`.

        Raises:
            ToolchainError: It is missing; names the wheel to install.
        """
        path: Path | None = getattr(self, name)
        if path is None:
            hint = f"pip install '{_WHEELS[name]}=={PINNED_VERSION}.*' (or all of it: {_ALL.partition(' (')[0]})"
            found = f"none in the toolkit {self.version} of {self.source}"
            raise ToolchainError(f"the CUDA toolkit has no {name}", expected=name, found=found, hint=hint)
        return path

    def check_architecture(self, arch: str) -> None:
        """Makes sure that the toolkit builds for `arch`.

        Raises:
            ConfigurationError: It does not know it.
        """
        if arch not in self.architectures:
            known = " ".join(self.architectures)
            hint = f"another --arch, or {_ALL}"
            expected = f"one of {known} (CUDA {self.version} of {self.source})"
            raise ConfigurationError("no such architecture", expected=expected, found=arch[:40], hint=hint)

    @property
    def facts(self) -> dict[str, str]:
        """What is worth showing to a person."""
        parts = {name: str(getattr(self, name) or "missing") for name in ("nvcc", "ptxas", "nvdisasm", "cuobjdump", "nvrtc")}
        parts["cutlass"] = str(self.cutlass or "not installed (pip install nvidia-cutlass)")
        head = {"toolkit": f"CUDA {self.version} ({self.source})", "architectures": " ".join(self.architectures)}
        return {**head, **parts, **{f"note {n}": note for n, note in enumerate(self.notes, 1)}}


def find_toolkit(*, wheels_first: bool = False) -> Toolkit:
    """The toolkit that `CUDA_HOME` or `CUDA_PATH` name, else the nvcc on PATH, else the wheels; found once a process.

    One that is broken or too old is passed over, and one without disassembler is completed from the wheels when theirs is of
    the same major version or newer (a newer disassembler reads older code); its notes say so.

    Args:
        wheels_first: Whether the wheels come before what is installed on the machine: for results that must not depend on it.

    Raises:
        ToolchainError: There is none; says why, and what to install.
    """
    env = {name: os.environ.get(name, "").strip() for name in ("CUDA_HOME", "CUDA_PATH")}
    return _find(env["CUDA_HOME"], env["CUDA_PATH"], os.environ.get("PATH", os.defpath), tuple(sys.path), wheels_first)


@functools.cache
def _find(cuda_home: str, cuda_path: str, path: str, packages: tuple[str, ...], wheels_first: bool) -> Toolkit:
    del packages  # only part of the cache's key: where wheels are looked for
    notes: list[str] = []
    for source, nvcc, wheels in _candidates(cuda_home, cuda_path, path, wheels_first, notes):
        try:
            found = _from_nvcc(source, nvcc) if nvcc is not None else _from_wheels(wheels)
            if found.major_minor < OLDEST_VERSION:
                oldest = ".".join(map(str, OLDEST_VERSION))
                raise ToolchainError("too old", found=f"version {found.version} is too old ({oldest} is needed)")
        except ToolchainError as error:
            notes.append(f"{source} passed over: {error.found or error.what}")
            continue
        return _completed(replace(found, cutlass=_cutlass(), notes=tuple(notes)))
    expected = f"nvcc {'.'.join(map(str, OLDEST_VERSION))} or newer on PATH or under CUDA_HOME, or the wheels"
    host = next((name for note in notes if (name := _MISSING_HOST.search(note)) is not None), None)
    hint = _ALL if host is None else f"put {host['name']} on PATH (apt-get install g++): nvcc needs it"
    raise ToolchainError("no CUDA toolkit", expected=expected, found="; ".join(notes) or "none", hint=hint)


def _candidates(
    cuda_home: str, cuda_path: str, path: str, wheels_first: bool, notes: list[str]
) -> Iterator[tuple[str, Path | None, list[Path]]]:
    """Where a toolkit may be: source with either its nvcc or the folders of its wheels."""
    wheels = _wheel_folders()
    if wheels and wheels_first:
        yield "wheels", _executable(wheels[0] / "bin" / "nvcc"), wheels
    for name, value in (("CUDA_HOME", cuda_home), ("CUDA_PATH", cuda_path)):
        nvcc = _executable(Path(value) / "bin" / "nvcc") if value else None
        if nvcc is not None:
            yield name, nvcc, []
        elif value:
            notes.append(f"{name} passed over: {value} has no bin/nvcc")
    on_path = shutil.which("nvcc", path=path)
    if on_path is not None:
        yield "PATH", Path(on_path), []
    if wheels and not wheels_first:
        yield "wheels", _executable(wheels[0] / "bin" / "nvcc"), wheels


def _wheel_folders() -> list[Path]:
    """The folders of NVIDIA's wheels, those of the newest CUDA first; empty when none holds a compiler."""
    places = _places()
    for folder in _shared_folders():
        if _executable(folder / "bin" / "nvcc") or _library([folder]):
            return [folder]
    parts = [place / name for place in places for name in _FOLDERS_12 if (place / name).is_dir()]
    return parts if _library(parts) is not None else []


def _from_nvcc(source: str, nvcc: Path) -> Toolkit:
    """What the nvcc at hand says of itself. It may be a script or a link: its dry run tells where it really is."""
    version = _VERSION.search(tool_output([str(nvcc), "--version"]))
    if version is None:
        raise ToolchainError("a broken nvcc", found=f"{nvcc} does not say its version")
    # Every command line is shown and none is run. Its names and values are described with nvcc.profile in the nvcc manual.
    dry = tool_output([str(nvcc), "--dryrun", "-ptx", "-x", "cu", os.devnull, "-o", os.devnull])
    top = re.search(r"^#\$ TOP=(.+)$", dry, re.MULTILINE)
    root = Path(top.group(1).strip()).resolve() if top is not None else nvcc.resolve().parent.parent
    includes = re.findall(r'"-I([^"]+)"', "".join(re.findall(r"^#\$ INCLUDES=(.*)$", dry, re.MULTILINE)))
    system = re.findall(r'"-isystem"\s+"([^"]+)"', "".join(re.findall(r"^#\$ SYSTEM_INCLUDES=(.*)$", dry, re.MULTILINE)))
    bases = re.findall(r"\bsm_\d+\b", tool_output([str(nvcc), "--list-gpu-code"]))
    # The list has no architecture-specific variants (sm_90a); the help has.
    variants = re.findall(r"\bsm_\d+[a-z]\b", tool_output([str(nvcc), "--help"]))
    known = {*bases, *(name for name in variants if name[:-1] in bases)}
    tools = {name: _executable(root / "bin" / name) or _on_path_beside(nvcc, name) for name in _WHEELS if name != "nvrtc"}
    if tools["ptxas"] is None:
        raise ToolchainError("a broken nvcc", found=f"{nvcc} has no ptxas beside it")
    return Toolkit(
        source=source,
        version=version.group(1),
        architectures=_sorted(known),
        include_dirs=_existing([Path(name).resolve() for name in (*includes, *system)] or [root / "include"]),
        nvcc=tools["nvcc"] or nvcc,
        ptxas=tools["ptxas"],
        nvdisasm=tools["nvdisasm"],
        cuobjdump=tools["cuobjdump"],
        nvrtc=_library([root]),
        homes=_existing([root, nvcc.absolute().parent]),
    )


def _from_wheels(folders: list[Path]) -> Toolkit:
    """Wheels without nvcc, such as those of CUDA 12: NVRTC builds, and says what it knows."""
    library = _library(folders)
    if library is None:
        raise ToolchainError("no compiler", found="the wheels hold neither nvcc nor NVRTC")
    includes = _existing([place for f in folders for place in (f / "include", f / "include" / "cccl")])
    config = json.dumps({"library": str(library), "include_dirs": [str(path) for path in includes]})
    try:
        told = json.loads(tool_output([sys.executable, "-I", "-S", str(WORKER), "--probe", config]))
    except ValueError as error:
        raise ToolchainError("NVRTC does not work", found=f"{library} does not load") from error
    if "error" in told:
        raise ToolchainError("NVRTC does not work", found=str(told["error"]))
    tools = {
        name: next((tool for folder in folders if (tool := _executable(folder / "bin" / name))), None)
        for name in ("ptxas", "nvdisasm", "cuobjdump")
    }
    return Toolkit(
        source="wheels",
        version=str(told["version"]),
        architectures=_sorted(set(told["architectures"])),
        include_dirs=includes,
        nvrtc=library,
        homes=tuple(folders),
        ptxas=tools["ptxas"],
        nvdisasm=tools["nvdisasm"],
        cuobjdump=tools["cuobjdump"],
    )


def _completed(toolkit: Toolkit) -> Toolkit:
    """The toolkit with disassemblers of the wheels where it has none of its own."""
    missing = [name for name in ("nvdisasm", "cuobjdump") if getattr(toolkit, name) is None]
    for folder in _shared_folders() if missing else ():
        found = {name: tool for name in missing if (tool := _executable(folder / "bin" / name)) is not None}
        if not found:
            continue
        version = _VERSION.search(tool_output([str(next(iter(found.values()))), "--version"]))
        if version is None or _numbers(version.group(1))[0] < toolkit.major_minor[0]:
            continue
        note = f"{' and '.join(found)} {version.group(1)} come from the wheels, since CUDA {toolkit.version} has none"
        homes = (*toolkit.homes, *(() if folder in toolkit.homes else (folder,)))
        nvdisasm, cuobjdump = toolkit.nvdisasm or found.get("nvdisasm"), toolkit.cuobjdump or found.get("cuobjdump")
        return replace(toolkit, nvdisasm=nvdisasm, cuobjdump=cuobjdump, homes=homes, notes=(*toolkit.notes, note))
    return toolkit


def _places() -> list[Path]:
    """Where the namespace package `nvidia` of the wheels is."""
    spec = importlib.util.find_spec("nvidia")
    return [Path(place) for place in (spec.submodule_search_locations or ())] if spec is not None else []


def _shared_folders() -> list[Path]:
    """The folders that wheels of one CUDA version share, the newest version first."""
    found = [folder for place in _places() for folder in place.glob("cu[0-9][0-9]") if folder.is_dir()]
    return sorted(found, key=lambda folder: folder.name, reverse=True)


def _cutlass() -> Path | None:
    """Where the wheel `nvidia-cutlass` keeps its headers (its package `cutlass_library`, folder `source/include`)."""
    spec = importlib.util.find_spec("cutlass_library")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        folder = Path(place) / "source" / "include"
        if (folder / "cute").is_dir():
            return folder.resolve()
    return None


def _library(folders: list[Path]) -> Path | None:
    """The newest `libnvrtc.so` below a toolkit's usual library folders."""
    patterns = ("lib", "lib64", "targets/*/lib")
    found = [path for f in folders for place in patterns for path in f.glob(f"{place}/libnvrtc.so*") if path.is_file()]
    return max(found, key=lambda path: path.name) if found else None


def _executable(path: Path) -> Path | None:
    return path if path.is_file() and os.access(path, os.X_OK) else None


def _on_path_beside(nvcc: Path, name: str) -> Path | None:
    """For distributions that spread a toolkit over the system's folders."""
    return _executable(nvcc.absolute().parent / name)


def _existing(paths: list[Path]) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(path for path in paths if path.is_dir()))


def _sorted(architectures: set[str]) -> tuple[str, ...]:
    return tuple(sorted(architectures, key=lambda name: (int(re.sub(r"\D", "", name)), name)))


def _numbers(version: str) -> tuple[int, int]:
    major, minor = (version + ".0").split(".")[:2]
    return int(major), int(minor)
