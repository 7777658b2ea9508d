"""What was measured of a kernel, in a few lines of plain text."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from evo_l2.contracts import Elite
from evo_l2.evaluation import TimingSession
from evo_l2.problem import Problem

__all__ = ["clip", "facts", "without_paths"]

_MOST_CASES = 6
"""With more cases than this, those with the lowest and the highest speed-up stand for all."""
_MOST_RESOURCES = 40
_LONGEST_VALUE = 40
_LONGEST_LOG = 320
_PATH = re.compile(r"(?<![\w/.])/(?:[\w.@+~-]+/)+([\w.@+~-]*)")


@dataclass(frozen=True, slots=True)
class _CaseTime:
    sizes: tuple[int, ...]
    kernel_us: float
    baseline_us: float

    @property
    def speedup(self) -> float:
        return self.baseline_us / self.kernel_us


def facts(problem: Problem, elite: Elite, *, brief: bool = False) -> str:
    """Everything that is known of a kernel, one fact a line; of bounded length, whatever the compiler said.

    Status, speed-up with its interval, time and rate of every case over all conclusive sessions, the compiler's message, the
    build's resources, and the measures. In brief: status, speed-up and measures.
    """
    verdict, estimate = elite.verdict, elite.estimate
    lines = [f"status: {verdict.status.value}"]
    if verdict.message is not None and not brief:
        lines[0] += f" ({verdict.gate}: {clip(without_paths(verdict.message), _LONGEST_LOG)})"
    if estimate is not None:
        low, high = estimate.interval
        interval = f"95% interval {low:.3g} to {high:.3g}, {estimate.n_blocks} blocks"
        lines.append(f"speed-up over the baseline: {estimate.speedup:.3g}x ({interval})")
    else:
        lines.append("speed-up over the baseline: unknown, it was built and never run")
    if not brief:
        lines += _case_lines(problem, elite.sessions)
    if verdict.build is not None and not brief:
        log = clip(without_paths(verdict.build.log), _LONGEST_LOG)
        lines.append(f"compiler: {log or 'no message'}")
        if verdict.build.resources:
            lines.append(f"machine code: {_resources(verdict.build.resources)}")
    lines.append(f"measures: {problem.measures(elite.kernel.target).describe(elite.cell)}")
    return "\n".join(f"- {line}" for line in lines)


def without_paths(text: str) -> str:
    """The text with every absolute path cut down to its last part: where a file lies is nobody's business."""
    return _PATH.sub(r"\1", text)


def clip(text: str, longest: int) -> str:
    """The text in one line of at most `longest` characters."""
    line = " ".join(text.split())
    return line if len(line) <= longest else line[: longest - 4].rstrip() + " ..."


def _case_lines(problem: Problem, sessions: Sequence[TimingSession]) -> list[str]:
    times = _case_times(sessions)
    shown = times
    if len(times) > _MOST_CASES:
        ranked = sorted(times, key=lambda time: (time.speedup, time.sizes))
        chosen = {time.sizes for time in (*ranked[: _MOST_CASES // 2], *ranked[-(_MOST_CASES // 2) :])}
        shown = [time for time in times if time.sizes in chosen]
    lines = [_case_line(problem, time) for time in shown]
    if len(shown) < len(times):
        lines.append(f"{len(times) - len(shown)} more cases lie between these")
    return lines


def _case_times(sessions: Sequence[TimingSession]) -> list[_CaseTime]:
    """Medians over the kept blocks of every conclusive session, case by case."""
    kernel_us: dict[tuple[int, ...], list[float]] = {}
    baseline_us: dict[tuple[int, ...], list[float]] = {}
    for session in sessions:
        if not session.conclusive:
            continue
        for case in session.cases:
            kernel_us.setdefault(case.sizes, []).extend(itertools.compress(case.kernel_us, case.kept))
            baseline_us.setdefault(case.sizes, []).extend(itertools.compress(case.baseline_us, case.kept))
    return [_CaseTime(sizes, median(times), median(baseline_us[sizes])) for sizes, times in kernel_us.items()]


def _case_line(problem: Problem, time: _CaseTime) -> str:
    names = " ".join(f"{s}={v}" for s, v in zip(problem.size_symbols, time.sizes, strict=True))
    rate = problem.work(time.sizes).n_flops / time.kernel_us / 1e3
    return f"{names}: {_us(time.kernel_us)} us, {rate:.3g} GFLOP/s (baseline {_us(time.baseline_us)} us)"


def _us(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def _resources(resources: Mapping[str, int | float | str]) -> str:
    """Those that are not zero, sorted by name, so that the prompt does not depend on how the mapping was stored."""
    names = [name for name in sorted(resources) if resources[name] != 0]
    return ", ".join(f"{name} {_value(resources[name])}" for name in names[:_MOST_RESOURCES])


def _value(value: int | float | str) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return clip(without_paths(str(value)), _LONGEST_VALUE)
