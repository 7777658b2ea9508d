"""Shows a run while it goes on: a live panel on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections import Counter, deque

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from evo_l2.contracts import AddResult, AddStatus, Archive, Candidate, Outcome
from evo_l2.evaluation import Estimate, Status
from experiments.run import Started
from experiments.sections import BudgetConfig
from experiments.seed_names import names_by_digest
from experiments.summary_page import counted, refusal_in_words

__all__ = ["Progress"]

_LINE_EVERY_S = 10.0
_WAITING_AFTER_S = 5.0
"""Seconds without a candidate after which the panel says so."""
_N_EVENTS = 5
_N_RECENT = 20
"""Candidates over which the rate is taken."""
_OUTCOME_STYLES = {Status.PASSED.value: "green", Status.BUILT.value: "green", Outcome.DUPLICATE.value: "dim"}


class Progress:
    """An observer that writes to stderr. Rich draws it again several times a second, so that the clock runs on.

    Args:
        console: Where to write; stderr by default.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console if console is not None else Console(stderr=True, highlight=False)
        self._live: Live | None = None
        self._info: Started | None = None
        self._counts: Counter[str] = Counter()
        self._recent_s: deque[float] = deque(maxlen=_N_RECENT)
        self._n_told = 0
        self._n_filled = 0
        self._n_tokens = 0
        self._usd = 0.0
        self._told_s = 0.0
        """Wall seconds of all candidates told, a resumed run's past included."""
        self._last_told = time.monotonic()
        self._last_line = float("-inf")
        self._best: Estimate | None = None
        self._best_seed: Estimate | None = None
        self._events: deque[Text] = deque(maxlen=_N_EVENTS)

    def started(self, info: Started) -> None:
        """Opens the panel, or prints three lines. Earlier notes (a model was loaded) stay above and are not repeated."""
        self._info = info
        self._events.clear()
        self._last_told = time.monotonic()
        if self._console.is_terminal:
            self._live = Live(self, console=self._console, refresh_per_second=4, transient=True)
            self._live.start()
            return
        self._print(f"{info.name}: {info.problem.title}")
        self._print(f"archive {info.db}, model {info.generator or 'none'}")
        self._print(f"limit: {_limits_in_words(info.config.budget)}")

    def told(self, candidate: Candidate, result: AddResult, archive: Archive) -> None:
        """Counts one candidate."""
        wall_s = candidate.seconds.get("wall", 0.0)
        self._n_told += 1
        self._told_s += wall_s
        self._recent_s.append(wall_s)
        self._last_told = time.monotonic()
        status = candidate.evaluation.status if candidate.evaluation is not None else candidate.outcome
        self._counts[status.value] += 1
        for call in candidate.calls:
            self._n_tokens += call.reply.n_prompt_tokens + call.reply.n_reply_tokens
            self._usd += call.reply.cost_usd
        self._n_filled = len(archive.elites())
        best = archive.best()
        self._best = best.estimate if best is not None else None
        if candidate.operator == "seed":
            self._learn_seed(candidate, archive)
            self._show_refused_seed(candidate)
        self._learn_event(candidate, result, archive)
        self._line_if_due()

    def note(self, text: str) -> None:
        """Shows one line among the events."""
        self._events.append(Text(text, style="yellow"))
        if self._live is None:
            self._print(text)

    def stopped(self) -> None:
        """Closes the panel and leaves one line; may be called twice."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        if self._info is not None:
            self._print(self._line())
            self._info = None

    def __rich__(self) -> RenderableType:
        """The panel, as of now."""
        assert self._info is not None
        table = Table.grid(padding=(0, 2), expand=True)
        table.add_column(style="dim", no_wrap=True, width=10)
        table.add_column(ratio=1)
        table.add_row("best", self._best_text())
        if self._best is not None and self._best_seed is not None:
            over = Text(f"{self._best.speedup / self._best_seed.speedup:.3f}x", style="bold")
            table.add_row("", over.append(f" of the best seed, which has {self._best_seed.speedup:.3f}x", style="not bold"))
        for name, row in self._budget_rows():
            table.add_row(name, row)
        table.add_row("cells", f"{self._n_filled} of {self._info.n_cells} filled")
        table.add_row("candidates", f"{self._n_told} told, {self._rate()}{self._waiting()}")
        table.add_row("outcomes", self._outcomes())
        table.add_row("model", f"{self._info.generator}: {self._cost()}" if self._info.generator else "none")
        events = [Text(e.plain, style=e.style, no_wrap=True, overflow="ellipsis") for e in self._events]
        title = Text.assemble((self._info.name, "bold"), f"  {self._info.problem.title}", no_wrap=True, overflow="ellipsis")
        foot = Text(f"Ctrl-C stops in order   archive {self._info.db}", style="dim", no_wrap=True, overflow="ellipsis")
        panel = Panel(
            Group(table, Text(), *events), title=title, title_align="left", subtitle=foot, subtitle_align="right",
            border_style="blue", padding=(1, 2),
        )  # fmt: skip
        # The cursor rests on a line of its own: the `^C` that a terminal echoes behind a full line would begin another one,
        # and the panel could not be taken away whole.
        return Group(panel, Text())

    def _learn_seed(self, candidate: Candidate, archive: Archive) -> None:
        digest = candidate.duplicate_of or (candidate.kernel.digest if candidate.kernel is not None else None)
        try:
            found = archive.get(digest).estimate if digest is not None else None
        except KeyError:
            return
        if found is not None and (self._best_seed is None or found.log_ratio > self._best_seed.log_ratio):
            self._best_seed = found

    def _show_refused_seed(self, candidate: Candidate) -> None:
        """One line that stays, above the panel where there is one."""
        verdict = candidate.evaluation.verdict if candidate.evaluation is not None else None
        if candidate.kernel is None or self._info is None or verdict is None or verdict.status.is_good:
            return
        digest = candidate.kernel.digest
        name = names_by_digest(self._info.config).get(digest, digest[:12])
        words = refusal_in_words(verdict.status.value, verdict.gate or "none", verdict.message)
        self._print(f"seed {name} ({digest[:12]}): {words}")

    def _learn_event(self, candidate: Candidate, result: AddResult, archive: Archive) -> None:
        info = self._info
        if candidate.outcome is Outcome.GENERATOR_FAILED:
            self._events.append(Text(f"#{candidate.index} {candidate.operator}: {candidate.message}", style="red"))
        if info is None or result.status is AddStatus.NOT_ADDED or result.cell is None or candidate.kernel is None:
            return
        cell = info.problem.measures(info.config.target).describe(result.cell)
        verb = "opens" if result.status is AddStatus.NEW else "improves"
        estimate = archive.get(candidate.kernel.digest).estimate
        speedup = f"{estimate.speedup:.3f}x" if estimate is not None else "built,"
        style = "green" if result.status is AddStatus.IMPROVED else "cyan"
        self._events.append(Text(f"#{candidate.index} {candidate.operator} {speedup} {verb} {cell}", style=style))

    def _line_if_due(self) -> None:
        now = time.monotonic()
        if self._live is None and now - self._last_line >= _LINE_EVERY_S:
            self._last_line = now
            self._print(self._line())

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def _elapsed_s(self) -> float:
        return self._told_s + time.monotonic() - self._last_told

    def _rate(self) -> str:
        seconds = sum(self._recent_s)
        return f"{60 * len(self._recent_s) / seconds:.0f} a minute" if seconds >= 1 else "no rate yet"

    def _cost(self) -> str:
        return counted(self._n_tokens, "token") + (f", ${self._usd:.4f}" if self._usd else "")

    def _waiting(self) -> str:
        """For how long nothing was told, while a candidate is still to come."""
        assert self._info is not None
        budget = self._info.config.budget
        silent_s = time.monotonic() - self._last_told
        is_over = budget.evaluations is not None and self._n_told >= budget.evaluations
        is_late = budget.wall_s is not None and self._elapsed_s() >= budget.wall_s
        if silent_s < _WAITING_AFTER_S or is_over or is_late:
            return ""
        return f"; waiting, {int(silent_s)} s since the {'last candidate' if self._n_told else 'start'}"

    def _best_text(self) -> Text:
        if self._best is None:
            return Text("none: nothing is run" if self._counts[Status.BUILT.value] else "none yet")
        low, high = self._best.interval
        text = Text(f"{self._best.speedup:.3f}x", style="bold green")
        return text.append(f" of the baseline's speed ({low:.3f} to {high:.3f}; best by the lower end)", style="not bold")

    def _outcomes(self) -> Text:
        text = Text()
        for name, count in self._counts.most_common():
            text.append("   " if text.plain else "").append(f"{name} {count}", style=_OUTCOME_STYLES.get(name, "yellow"))
        return text if text.plain else Text("none yet")

    def _budget_rows(self) -> list[tuple[str, RenderableType]]:
        """One bar for each limit of the run; plain seconds where time has none."""
        assert self._info is not None
        budget = self._info.config.budget
        elapsed_s = self._elapsed_s()
        rows: list[tuple[str, RenderableType]] = []
        if budget.wall_s is None:
            rows.append(("time", f"{_clock(elapsed_s)} so far"))
        else:
            left_s = budget.wall_s - elapsed_s
            finalists = ", measuring finalists" if self._info.config.timing.finalists else ""
            words = f"{_clock(left_s)} left of {_clock(budget.wall_s)}" if left_s > 0 else f"time is up{finalists}"
            rows.append(("time", _bar(elapsed_s, budget.wall_s, words)))
        if budget.evaluations is not None:
            rows.append(
                ("budget", _bar(self._n_told, budget.evaluations, f"{self._n_told} of {budget.evaluations} candidates"))
            )
        if budget.tokens is not None:
            rows.append(("tokens", _bar(self._n_tokens, budget.tokens, f"{self._n_tokens:,} of {budget.tokens:,}")))
        if budget.usd is not None:
            rows.append(("money", _bar(self._usd, budget.usd, f"${self._usd:.4f} of ${budget.usd:g}")))
        return rows

    def _line(self) -> str:
        parts = [
            f"{_clock(self._elapsed_s())} elapsed",
            counted(self._n_told, "candidate"),
            self._rate(),
            counted(self._n_filled, "cell"),
        ]
        parts.append("best " + self._best_text().plain)
        if self._n_tokens:
            parts.append(self._cost())
        return ", ".join(parts)


def _limits_in_words(budget: BudgetConfig) -> str:
    """Everything that ends the run."""
    limits = [
        f"{budget.wall_s:g} s of wall time" if budget.wall_s is not None else None,
        counted(budget.evaluations, "candidate") if budget.evaluations is not None else None,
        counted(budget.tokens, "token") if budget.tokens is not None else None,
        f"${budget.usd:g}" if budget.usd is not None else None,
    ]
    return ", ".join(limit for limit in limits if limit is not None)


def _bar(done: float, whole: float, words: str) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=24)
    grid.add_column(no_wrap=True)
    grid.add_row(ProgressBar(total=max(whole, 1e-9), completed=min(done, whole), width=24), words)
    return grid


def _clock(seconds: float) -> str:
    """Minutes and seconds, or hours and minutes."""
    whole = int(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 60}:{whole % 60:02}"
