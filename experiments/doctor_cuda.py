"""What `evo-l2 doctor` says of CUDA: cards, toolkit, what running needs, and one seed as far as this machine takes it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from evo_l2.errors import DeviceError, EvoL2Error
from experiments.findings import Finding, group

__all__ = ["cuda_findings"]


def cuda_findings() -> Iterator[Finding]:
    """Line by line; each is looked up when it is asked for. Without a toolkit the target is missing, and that is no fault."""
    from evo_l2.targets.cuda.cards import CARDS
    from evo_l2.targets.cuda.devices import Device, driver_complaint, present_devices
    from evo_l2.targets.cuda.toolchain.toolkit import find_toolkit
    from experiments.parts import cache_dir

    devices: tuple[Device, ...] = ()
    try:
        devices = present_devices()
    except DeviceError as error:
        yield Finding("NVIDIA cards", None, f"unknown: {error.found}; kernels can be built", error.hint)
    else:
        names = ", ".join(f"{device.name}{'' if device.card is not None else ' (not in the table)'}" for device in devices)
        detail = names or f"none ({driver_complaint()}); kernels can be built"
        yield Finding("NVIDIA cards", True if devices else None, detail)
    try:
        toolkit = find_toolkit()
    except EvoL2Error as error:
        yield Finding("target cuda", None, str(error).partition("; try: ")[0], error.hint)
        return
    facts = dict(toolkit.facts)
    if toolkit.nvrtc is None:
        with contextlib.suppress(EvoL2Error):
            other = find_toolkit(wheels_first=True)
            if other.nvrtc is not None:
                facts["nvrtc"] = f"{other.nvrtc} (CUDA {other.version} of {other.source}; for --builder nvrtc)"
    usable = [arch for arch in dict.fromkeys(card.arch for card in CARDS) if arch in toolkit.architectures]
    n_known = len(toolkit.architectures)
    facts["architectures"] = f"{' '.join(usable) or 'none'} can be used here; the toolkit knows {n_known} in all"
    for what, fact in facts.items():
        absent = fact.startswith(("missing", "not installed"))
        yield Finding(f"cuda {what}", None if absent else True, fact)
    try:
        yield _known_good_build(cache_dir() / "cuda")
        if any(device.card is not None for device in devices):
            yield from _running()
    except EvoL2Error as error:
        yield Finding("target cuda", False, str(error).partition("; try: ")[0], error.hint)


def _known_good_build(folder: Path) -> Finding:
    from evo_l2.problems.hgemm import Hgemm
    from evo_l2.targets.cuda.build_only import BuildOnlyEvaluator
    from evo_l2.targets.cuda.cards import find_card
    from experiments.seeds import load_seeds, seed_names

    kernels = dict(zip(seed_names("cuda", "nn"), load_seeds("cuda", "nn"), strict=True))
    with BuildOnlyEvaluator(Hgemm(((64, 64, 64, 1),)), folder, find_card("A100")) as evaluator:
        verdict = evaluator.prepare(kernels["naive_nn"]).verdict
        builder = evaluator.compiler.builder
    if verdict is not None:
        detail = f"naive_nn {verdict.status.value} at gate {verdict.gate}: {verdict.message}"
        return Finding("cuda known-good", False, detail, "report this with all lines above")
    return Finding("cuda known-good", True, f"naive_nn built by {builder} for A100, read and gated; nothing was run")


def _running() -> Iterator[Finding]:
    """What running kernels needs, and a seed that is run, judged and timed."""
    from evo_l2.targets.cuda.card.driver_facts import driver_facts

    install = "pip install 'evo-l2[cuda13]' (or cuda12)"
    bindings = group("cuda-bindings", ("cuda-bindings", "nvmath-python"), install)
    yield bindings
    sanitizer = shutil.which("compute-sanitizer")
    yield Finding(
        "sanitizer", True if sanitizer else None, sanitizer or "no compute-sanitizer on PATH: finalists go without it"
    )
    if bindings.ok is not True:
        return
    facts = driver_facts(0)
    shares = "" if facts.shares_memory else "; its memory cannot be shared between processes"
    memory = f"{facts.memory_bytes / 2**30:.0f} GiB, L2 {facts.l2_bytes / 2**20:.0f} MiB"
    detail = f"{facts.name}: {facts.n_sms} multiprocessors, {memory}, driver for CUDA {facts.driver}{shares}"
    yield Finding("card 0", facts.shares_memory, detail)
    yield _known_good_run()


def _known_good_run() -> Finding:
    import numpy as np

    from evo_l2.evaluation import Evaluation, Status
    from evo_l2.problems.hgemm import Hgemm
    from evo_l2.targets.cuda.evaluator import CudaEvaluator
    from experiments.parts import open_rig
    from experiments.sections import CudaConfig, LimitsConfig, TimingConfig
    from experiments.seeds import load_seeds, seed_names

    kernels = dict(zip(seed_names("cuda", "nn"), load_seeds("cuda", "nn"), strict=True))
    rig = open_rig(CudaConfig(allow_busy=True), TimingConfig(blocks=8), LimitsConfig())
    with CudaEvaluator(Hgemm(((256, 256, 256, 1),)), rig) as evaluator:
        prepared = evaluator.prepare(kernels["tiled_nn"])
        evaluation = Evaluation(prepared.verdict) if prepared.verdict is not None else None
        evaluation = evaluation or evaluator.measure(prepared, np.random.SeedSequence())
    if evaluation.verdict.status is not Status.PASSED:
        detail = f"tiled_nn {evaluation.verdict.status.value} at gate {evaluation.verdict.gate}: {evaluation.verdict.message}"
        return Finding("card known-good", False, detail, "report this with all lines above")
    return Finding("card known-good", True, "tiled_nn built, judged and timed on the card")
