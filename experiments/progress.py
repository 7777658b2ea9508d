"""Shows a run while it goes on: a live panel on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections import Counter, deque

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from evo_l2.contracts import AddResult, AddStatus, Archive, Candidate, Outcome
from experiments.config import RunConfig
from experiments.run import Started

__all__ = ["Progress"]

_LINE_EVERY_S = 10.0
_N_EVENTS = 6


class Progress:
    """An observer that writes to stderr.

    Args:
        config: For the budgets; None until the run says.
        console: Where to write; stderr by default.
    """

    def __init__(self, config: RunConfig | None, console: Console | None = None) -> None:
        self._config = config
        self._console = console if console is not None else Console(stderr=True, highlight=False)
        self._live: Live | None = None
        self._info: Started | None = None
        self._begin = time.monotonic()
        self._last_line = 0.0
        self._counts: Counter[str] = Counter()
        self._n_told = 0
        self._n_cells = 0
        self._n_tokens = 0
        self._usd = 0.0
        self._wall_s = 0.0
        self._best = "none yet"
        self._events: deque[str] = deque(maxlen=_N_EVENTS)

    def started(self, info: Started) -> None:
        """Opens the panel."""
        self._info = info
        self._config = info.config
        self._begin = time.monotonic()
        self._console.print(f"[bold]{info.name}[/bold]: {info.problem.title}")
        self._console.print(f"archive {info.db}, model {info.generator or 'none'}")
        if self._console.is_terminal:
            self._live = Live(self._panel(), console=self._console, refresh_per_second=4, transient=True)
            self._live.start()

    def told(self, candidate: Candidate, result: AddResult, archive: Archive) -> None:
        """Counts one candidate."""
        self._n_told += 1
        self._wall_s += candidate.seconds.get("wall", 0.0)
        self._counts[_outcome(candidate)] += 1
        for call in candidate.calls:
            self._n_tokens += call.reply.n_prompt_tokens + call.reply.n_reply_tokens
            self._usd += call.reply.cost_usd
        self._n_cells = len(archive.elites())
        best = archive.best()
        if best is not None:
            low, high = best.estimate.interval
            self._best = f"{best.estimate.speedup:.3f}x of the baseline's speed ({low:.3f} to {high:.3f})"
        if result.status is not AddStatus.NOT_ADDED and result.cell is not None and self._info is not None:
            cell = self._info.problem.measures(self._info.config.target).describe(result.cell)
            verb = "opens" if result.status is AddStatus.NEW else "improves"
            self._events.append(f"#{candidate.index} by {candidate.operator} {verb} {cell}")
        self._show()

    def note(self, text: str) -> None:
        """Shows one line among the events."""
        self._events.append(text)
        if self._live is None:
            self._console.print(text)
        self._show()

    def stopped(self) -> None:
        """Closes the panel."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        self._console.print(self._line())

    def _show(self) -> None:
        now = time.monotonic()
        if self._live is not None:
            self._live.update(self._panel())
        elif now - self._last_line >= _LINE_EVERY_S:
            self._last_line = now
            self._console.print(self._line())

    def _rate(self) -> float:
        return 60 * self._n_told / max(self._wall_s, 1e-9) if self._wall_s else 0.0

    def _line(self) -> str:
        return f"{self._wall_s:6.0f} s  {self._n_told} told, {self._n_cells} cells, {self._rate():.0f}/min, best {self._best}"

    def _panel(self) -> Panel:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", justify="right", no_wrap=True)
        table.add_column(overflow="fold")
        n_cells = self._info.n_cells if self._info is not None else 0
        table.add_row("best", Text(self._best, style="bold green"))
        table.add_row("cells", f"{self._n_cells} of {n_cells}")
        table.add_row("candidates", f"{self._n_told}{_of(self._config.budget.evaluations if self._config else None)}, "
                      f"{self._rate():.0f} a minute")  # fmt: skip
        table.add_row("outcomes", "  ".join(f"{name} {n}" for name, n in self._counts.most_common()) or "none yet")
        table.add_row("model", f"{self._n_tokens:,} tokens, ${self._usd:.4f}")
        wall_s = self._config.budget.wall_s if self._config else None
        table.add_row("time", f"{self._wall_s:.0f} s{_of(wall_s, ' s')}")
        events = Text("\n".join(self._events), style="cyan", overflow="ellipsis", no_wrap=True)
        return Panel(Group(table, Text(""), events), title=self._info.name if self._info else None, border_style="blue")


def _of(limit: float | None, unit: str = "") -> str:
    return "" if limit is None else f" of {limit:g}{unit}"


def _outcome(candidate: Candidate) -> str:
    if candidate.outcome is Outcome.EVALUATED and candidate.evaluation is not None:
        return candidate.evaluation.status.value
    return candidate.outcome.value
