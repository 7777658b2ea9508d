"""Options of the command line that do not apply, or do not go together: refused in one line instead of passed over."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from evo_l2.errors import ConfigurationError

__all__ = ["check_bench", "check_presets", "check_run", "check_verify"]


def check_verify(file: Path, target: str, options: Mapping[str, object]) -> None:
    """Refuses options of a CUDA kernel for one in C, and a card beside an architecture that is only built for.

    Args:
        file: The kernel.
        target: What it is verified on.
        options: `arch`, `device` and `builder`; None for what was left out.

    Raises:
        ConfigurationError: One of them would have no effect.
    """
    given = [f"--{name}" for name, value in options.items() if value is not None]
    if target == "cpu" and given:
        raise _of_no_use(
            " and ".join(given), "a CUDA kernel (a file .cu, or --target cuda)", f"{file}, a kernel for the CPU",
            f"evo-l2 verify {file}",
        )  # fmt: skip
    if options.get("arch") is not None and options.get("device") is not None:
        arch, device = options["arch"], options["device"]
        raise ConfigurationError(
            "--arch and --device do not go together",
            expected="--device to run the kernel on that card, or --arch to build it and run nothing",
            found=f"--arch {arch} --device {device}",
            hint=f"evo-l2 verify {file} --device {device}, or evo-l2 verify {file} --arch {arch}",
        )


def check_bench(given: Collection[str], *, has_archive: bool, mode: str, with_tunables: bool) -> None:
    """Refuses options that change nothing of what is measured.

    Args:
        given: Names of the options that were typed.
        has_archive: Whether kernels of an archive are measured.
        mode: How they are timed.
        with_tunables: Whether any kernel has tunables.

    Raises:
        ConfigurationError: One of them would have no effect.
    """
    if "count" in given and not has_archive:
        raise _of_no_use("--count", "an archive whose best kernels are measured", "no --db", "--db ARCHIVE.db, or no --count")
    if "blocks" in given and mode != "offline":
        raise _of_no_use("--blocks", "--mode offline", f"--mode {mode}", "--mode offline, or no --blocks")
    if "sweep" in given and not with_tunables:
        hint = "mark constants with //? and their values (docs/KERNELS.md), or no --sweep"
        raise _of_no_use("--sweep", "a kernel with tunables", "none", hint)


def check_run(preset_or_file: str, *, dry_run: bool, replay: str | None) -> None:
    """Refuses a recording for a run that is not started.

    Raises:
        ConfigurationError: It would not be looked at.
    """
    if dry_run and replay is not None:
        hint = f"evo-l2 run {preset_or_file} --replay {replay}"
        raise _of_no_use("--replay", "a run that is started", "--dry-run", hint)


def check_presets(name: str | None, *, as_keys: bool) -> None:
    """Refuses the name of a preset beside a list of keys, which is the same for all.

    Raises:
        ConfigurationError: It would be passed over.
    """
    if as_keys and name is not None:
        hint = f"evo-l2 presets {name}, or evo-l2 presets --keys"
        raise ConfigurationError("--keys lists the keys of all presets", expected="no name", found=repr(name[:60]), hint=hint)


def _of_no_use(option: str, expected: str, found: str, hint: str) -> ConfigurationError:
    verb = "are" if " and " in option else "is"
    return ConfigurationError(f"{option} {verb} of no use here", expected=expected, found=found, hint=hint)
