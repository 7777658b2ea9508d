"""What a run came to, in numbers: seeds, the best kernel, where its gain came from, and what it cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from archive.read_only import open_to_read
from archive.run import RunHandle
from evo_l2.contracts import AddStatus, Candidate, Elite, Outcome, Remeasurement
from evo_l2.evaluation import Status
from evo_l2.kernel import Kernel
from evo_l2.problem import Problem
from evo_l2.timing import log_ratio
from experiments.config import restore_config
from experiments.parts import make_problem
from experiments.run import Finished
from experiments.seed_names import names_by_digest
from experiments.winners import KernelRow, Ratio, best_seed, final_sessions, kernel_row, over, short_name

__all__ = ["CaseRow", "OperatorRow", "RefusalRow", "Summary", "summarise"]

_MODEL_FREE = frozenset({"parametric", "seed"})


@dataclass(frozen=True, slots=True)
class RefusalRow:
    """How many kernels of a run one gate stopped, and the first of them."""

    status: str
    gate: str
    n_kernels: int
    digest: str


@dataclass(frozen=True, slots=True)
class CaseRow:
    """The best kernel on one case; medians over the blocks of the sessions that its estimate is from."""

    sizes: tuple[int, ...]
    kernel_us: float
    baseline_us: float
    bare_baseline_us: float | None
    """The baseline without its conversions, in microseconds."""
    kernel_gflops: float
    """GFLOP/s."""


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """What one operator did in a run."""

    name: str
    n_asked: int
    n_passed: int
    """Or were built, in a run that runs nothing."""
    n_wrong: int
    """Kernels that were refused, did not build, crashed or were incorrect."""
    n_known: int
    """Kernels whose source or machine code was known."""
    n_without_kernel: int
    """Replies without a kernel, edits that did not apply, outages."""
    n_cells: int
    """Offspring that opened or improved a cell."""
    gain: float
    """Sum of the log speed-ups it added on the line from a seed to the best kernel, by first measurements."""


@dataclass(frozen=True, slots=True)
class Summary:
    """All the numbers of the table."""

    problem: str
    seeds: tuple[KernelRow, ...]
    best: KernelRow | None
    """The best of those that were measured again after the search, or of all where none was: the best of many first looks is
    best by luck."""
    best_seed: KernelRow | None
    over_seed: Ratio | None
    """Best kernel over best seed; None where the best kernel is that seed."""
    is_inherited: bool
    """Whether the archive held the best kernel before this run."""
    model_share: float | None
    """Share of the gain on the best kernel's line that came from the model; None without gain in this run."""
    cases: tuple[CaseRow, ...]
    operators: tuple[OperatorRow, ...]
    n_calls: int
    n_tokens: int
    usd: float
    n_never_run: int
    """Kernels that were built and gated, and not run."""
    n_untimed: int
    """Kernels of this run that passed and could not be timed, however often it was tried."""
    is_build_only: bool = False
    """Whether the run was to run nothing."""
    refusals: tuple[RefusalRow, ...] = ()
    """By status and gate, the most first."""


def summarise(finished: Finished) -> Summary:
    """Reads the run's candidates again and adds them up.

    Raises:
        StorageError: The archive cannot be read.
    """
    with open_to_read(finished.db) as store:
        run = store.open_run(finished.name)
        candidates = list(run.history())
        added = [result.status is not AddStatus.NOT_ADDED for result in run.results()]
        config = restore_config(run.config)
        problem = make_problem(config)
        names = names_by_digest(config)
        seeds = tuple(_seed_row(run, kernel, names, candidates) for kernel in run.seeds())
        elite = next((elite for elite in run.ranked() if final_sessions(elite)), finished.best)
        if elite is not None and elite.estimate is None:
            elite = None
        values = _first_values(candidates, run.remeasurements())
        untimed = {kernel.digest for kernel, _ in run.untimed()}
    best = kernel_row(elite, names) if elite is not None else None
    first_seed = best_seed(seeds)
    gains = _gains(candidates, values, best.digest) if best is not None else {}
    positive = sum(gains.values())
    operators = sorted({c.operator for c in candidates}, key=lambda name: (name == "seed", name))
    calls = [call for c in candidates for call in c.calls]
    made_here = {c.kernel.digest for c in candidates if c.kernel is not None and c.outcome is Outcome.EVALUATED}
    n_untimed = len(untimed & (made_here | {c.duplicate_of for c in candidates if c.duplicate_of is not None}))
    return Summary(
        problem=problem.title,
        seeds=seeds,
        best=best,
        best_seed=first_seed,
        over_seed=over(best, first_seed),
        is_inherited=best is not None and best.digest not in made_here,
        model_share=sum(g for name, g in gains.items() if name not in _MODEL_FREE) / positive if positive > 0 else None,
        cases=_cases(problem, elite) if elite is not None else (),
        operators=tuple(_operator(name, candidates, added, gains) for name in operators),
        n_calls=len(calls),
        n_tokens=sum(call.reply.n_prompt_tokens + call.reply.n_reply_tokens for call in calls),
        usd=sum(call.reply.cost_usd for call in calls),
        n_never_run=sum(c.evaluation is not None and c.evaluation.status is Status.BUILT for c in candidates),
        n_untimed=n_untimed,
        is_build_only=config.target == "cuda" and config.cuda.mode == "build-only",
        refusals=_refusals(candidates),
    )


def _refusals(candidates: Sequence[Candidate]) -> tuple[RefusalRow, ...]:
    """What stopped the kernels that were judged in this run."""
    digests: dict[tuple[str, str], list[str]] = {}
    for one in candidates:
        verdict = one.evaluation.verdict if one.evaluation is not None else None
        if one.kernel is not None and verdict is not None and not verdict.status.is_good:
            digests.setdefault((verdict.status.value, verdict.gate or "none"), []).append(one.kernel.digest)
    rows = [RefusalRow(status, gate, len(found), found[0]) for (status, gate), found in digests.items()]
    return tuple(sorted(rows, key=lambda row: -row.n_kernels))


def _seed_row(run: RunHandle, kernel: Kernel, names: Mapping[str, str], candidates: Sequence[Candidate]) -> KernelRow:
    try:
        return kernel_row(run.get(kernel.digest), names)
    except KeyError:
        found = [c for c in candidates if c.kernel is not None and c.kernel.digest == kernel.digest]
        evaluation = found[0].evaluation if found else None
        status = evaluation.status.value if evaluation is not None else found[0].outcome.value if found else "not reached"
        verdict = evaluation.verdict if evaluation is not None else None
        gate, message = (verdict.gate, verdict.message) if verdict is not None else (None, None)
        return KernelRow(short_name(kernel.digest, names), kernel.digest, None, False, status, gate, message)


def _cases(problem: Problem, elite: Elite) -> tuple[CaseRow, ...]:
    sessions = final_sessions(elite) or tuple(session for session in elite.sessions if session.conclusive)
    rows = []
    for index, sizes in enumerate(problem.cases):
        timings = [session.cases[index] for session in sessions]
        kept = [
            (kernel_us, baseline_us)
            for timing in timings
            for kernel_us, baseline_us, is_kept in zip(timing.kernel_us, timing.baseline_us, timing.kept, strict=True)
            if is_kept
        ]
        if not kept:
            continue
        kernel_us, baseline_us = (float(value) for value in np.median(np.array(kept), axis=0))
        gflops = problem.work(sizes).n_flops / kernel_us / 1e3
        bare = [timing.bare_baseline_us for timing in timings if timing.bare_baseline_us is not None]
        rows.append(CaseRow(sizes, kernel_us, baseline_us, float(np.median(bare)) if bare else None, gflops))
    return tuple(rows)


def _operator(name: str, candidates: Sequence[Candidate], added: Sequence[bool], gains: Mapping[str, float]) -> OperatorRow:
    mine = [(c, a) for c, a in zip(candidates, added, strict=True) if c.operator == name]
    outcomes = Counter(c.outcome for c, _ in mine)
    passed = [c for c, _ in mine if c.evaluation is not None and c.evaluation.verdict.status.is_good]
    return OperatorRow(
        name=name,
        n_asked=len(mine),
        n_passed=len(passed),
        n_wrong=outcomes[Outcome.EVALUATED] - len(passed),
        n_known=outcomes[Outcome.DUPLICATE],
        n_without_kernel=outcomes[Outcome.NO_KERNEL] + outcomes[Outcome.EDIT_FAILED] + outcomes[Outcome.GENERATOR_FAILED],
        n_cells=sum(1 for _, is_added in mine if is_added),
        gain=gains.get(name, 0.0),
    )


def _first_values(candidates: Sequence[Candidate], again: Iterable[Remeasurement]) -> dict[str, float]:
    """Log speed-up of every kernel by its first measurement that can be trusted."""
    values: dict[str, float] = {}
    first = [(c.kernel.digest, c.evaluation) for c in candidates if c.kernel is not None and c.evaluation is not None]
    for digest, evaluation in (*first, *((one.digest, one.evaluation) for one in again)):
        value = log_ratio([evaluation.session]) if evaluation.session is not None else None
        if value is not None:
            values.setdefault(digest, value)
    return values


def _gains(candidates: Sequence[Candidate], values: Mapping[str, float], digest: str | None) -> dict[str, float]:
    """Log speed-up added by each operator on the line from the best kernel back to its seed, by first measurements.

    Steps down count too, so the gains add up to the whole line's.
    """
    made = {c.kernel.digest: c for c in reversed(candidates) if c.kernel is not None and c.evaluation is not None}
    gains: dict[str, float] = {}
    while digest in made:
        child, above = made.pop(digest), values.get(digest)
        digest = child.parents[0] if child.parents else None
        below = values.get(digest) if digest in made else None
        if above is not None and below is not None:
            gains[child.operator] = gains.get(child.operator, 0.0) + above - below
    return gains
