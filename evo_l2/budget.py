"""What a run may cost: reserved before it is spent, settled after."""

from __future__ import annotations

import time
from dataclasses import dataclass

from evo_l2.contracts import Candidate

__all__ = ["Budget", "Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper limits of a whole run, resumed parts included; None for none."""

    evaluations: int | None = None
    """Candidates, seeds included."""
    wall_s: float | None = None
    tokens: int | None = None
    """Prompt and reply tokens together."""
    usd: float | None = None


class Budget:
    """Keeps a run within its limits. Reservations make sure that what is in flight can be paid.

    Args:
        limits: See `Limits`.
        usd_per_token: The dearest price of one token; what a reservation of tokens sets aside in money.
    """

    def __init__(self, limits: Limits, usd_per_token: float = 0.0) -> None:
        self._limits = limits
        self._usd_per_token = usd_per_token
        self._reserved_tokens: dict[int, int] = {}
        self.n_tokens = 0
        self.usd = 0.0
        self.wall_s = 0.0
        """Wall seconds of candidates that were told, this run's earlier parts included."""
        self._since = time.monotonic()
        self._mean_s = 0.0
        self._n_told = 0

    def start_clock(self) -> None:
        """Starts counting live time; called when history has been told."""
        self._since = time.monotonic()

    def lap(self) -> float:
        """Wall seconds since the last call (or `start_clock`)."""
        now = time.monotonic()
        elapsed, self._since = now - self._since, now
        return elapsed

    def tell(self, candidate: Candidate) -> None:
        """Counts what a candidate cost and frees its reservation."""
        self._reserved_tokens.pop(candidate.index, None)
        for call in candidate.calls:
            self.n_tokens += call.reply.n_prompt_tokens + call.reply.n_reply_tokens
            self.usd += call.reply.cost_usd
        wall_s = candidate.seconds.get("wall", 0.0)
        self.wall_s += wall_s
        self._n_told += 1
        self._mean_s += (wall_s - self._mean_s) / min(self._n_told, 20)

    def evaluations_left(self, n_asked: int) -> int | None:
        """How many more candidates may be asked for; None without limit."""
        return None if self._limits.evaluations is None else max(0, self._limits.evaluations - n_asked)

    def time_left(self) -> float | None:
        """Wall seconds until the limit, less the time one more candidate is expected to take; None without limit."""
        if self._limits.wall_s is None:
            return None
        return self._limits.wall_s - self.wall_s - (time.monotonic() - self._since) - self._mean_s

    def can_afford(self, n_tokens: int) -> bool:
        """Whether one more model call of at most this many tokens fits beside what is spent and reserved."""
        reserved = sum(self._reserved_tokens.values()) + n_tokens
        tokens_fit = self._limits.tokens is None or self.n_tokens + reserved <= self._limits.tokens
        usd_fit = self._limits.usd is None or self.usd + reserved * self._usd_per_token <= self._limits.usd
        return tokens_fit and usd_fit

    def reserve(self, index: int, n_tokens: int) -> None:
        """Sets tokens aside for one candidate until it is told."""
        self._reserved_tokens[index] = n_tokens
