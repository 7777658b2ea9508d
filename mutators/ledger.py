"""What models cost: reserved before a call, settled after it, added up by generator and operator."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from evo_l2.contracts import ModelCall

__all__ = ["Ledger", "Total"]

_NANO = 10**9
"""Money is kept in whole nano-dollars, so that what is reserved and freed again leaves nothing behind."""


@dataclass(frozen=True, slots=True)
class Total:
    """What some calls cost together."""

    n_calls: int = 0
    n_errors: int = 0
    """Calls without an answer."""
    n_prompt_tokens: int = 0
    n_reply_tokens: int = 0
    n_retries: int = 0
    cost_usd: float = 0.0
    latency_s: float = 0.0
    """Sum over the calls; what ran at the same time counts as often as it ran."""

    @property
    def n_tokens(self) -> int:
        """Prompt and reply tokens."""
        return self.n_prompt_tokens + self.n_reply_tokens


class Ledger:
    """Budgets of tokens and money; may be used from several threads at once.

    `reserve` sets aside the most that a call may cost, and refuses what does not fit beside everything that is spent or
    reserved; `settle` puts what it did cost in its place. So the budgets are never overrun, as long as no call costs more
    than was reserved for it.

    Args:
        tokens: Most prompt and reply tokens together; None for no limit.
        usd: Most money, in US dollars; None for no limit.

    Raises:
        ValueError: A budget is negative or not finite.
    """

    def __init__(self, *, tokens: int | None = None, usd: float | None = None) -> None:
        if tokens is not None and tokens < 0:
            raise ValueError(f"a budget of {tokens} tokens")
        self._most_tokens = tokens
        self._most_nano = None if usd is None else _nano(usd, up=False)
        self._lock = threading.Lock()
        self._reserved_tokens = 0
        self._reserved_nano = 0
        self._spent_tokens = 0
        self._spent_nano = 0
        self._totals: dict[tuple[str, str], Total] = {}

    def reserve(self, tokens: int, usd: float = 0.0) -> bool:
        """Sets this much aside and says True, or changes nothing and says False where it does not fit.

        Raises:
            ValueError: An amount is negative or not finite.
        """
        nano = _amount(tokens, usd)
        with self._lock:
            total_tokens = self._spent_tokens + self._reserved_tokens + tokens
            total_nano = self._spent_nano + self._reserved_nano + nano
            if self._most_tokens is not None and total_tokens > self._most_tokens:
                return False
            if self._most_nano is not None and total_nano > self._most_nano:
                return False
            self._reserved_tokens += tokens
            self._reserved_nano += nano
            return True

    def settle(self, calls: Iterable[ModelCall], *, operator: str, tokens: int, usd: float = 0.0) -> None:
        """Frees what was reserved, by the same amounts, and counts what the calls did cost; no calls where none was made.

        Raises:
            ValueError: More is freed than is reserved; nothing is counted then.
        """
        nano = _amount(tokens, usd)
        made = tuple(calls)
        with self._lock:
            if tokens > self._reserved_tokens or nano > self._reserved_nano:
                raise ValueError(f"{tokens} tokens and {usd} USD are settled, but less is reserved")
            self._reserved_tokens -= tokens
            self._reserved_nano -= nano
            self._count(made, operator)

    def record(self, calls: Iterable[ModelCall], *, operator: str) -> None:
        """Counts calls that nothing was reserved for: those of a run's earlier parts."""
        with self._lock:
            self._count(tuple(calls), operator)

    def _count(self, calls: tuple[ModelCall, ...], operator: str) -> None:
        for call in calls:
            key = (call.generator, operator)
            self._totals[key] = _added(self._totals.get(key, Total()), call)
            self._spent_tokens += call.reply.n_prompt_tokens + call.reply.n_reply_tokens
            self._spent_nano += _nano(call.reply.cost_usd, up=True)

    @property
    def tokens_left(self) -> int | None:
        """Tokens that are neither spent nor reserved, 0 at the least; None without limit."""
        with self._lock:
            if self._most_tokens is None:
                return None
            return max(0, self._most_tokens - self._spent_tokens - self._reserved_tokens)

    @property
    def usd_left(self) -> float | None:
        """Money that is neither spent nor reserved, in US dollars, 0 at the least; None without limit."""
        with self._lock:
            if self._most_nano is None:
                return None
            return max(0, self._most_nano - self._spent_nano - self._reserved_nano) / _NANO

    @property
    def total(self) -> Total:
        """All calls together."""
        return _sum(self._rows().values())

    def by_generator(self) -> Mapping[str, Total]:
        """Totals by generator, in order of name."""
        return self._grouped(0)

    def by_operator(self) -> Mapping[str, Total]:
        """Totals by operator, in order of name."""
        return self._grouped(1)

    def _grouped(self, part: int) -> dict[str, Total]:
        rows = self._rows()
        names = sorted({key[part] for key in rows})
        return {name: _sum(total for key, total in rows.items() if key[part] == name) for name in names}

    def _rows(self) -> dict[tuple[str, str], Total]:
        with self._lock:
            return dict(self._totals)


def _amount(tokens: int, usd: float) -> int:
    if tokens < 0:
        raise ValueError(f"an amount of {tokens} tokens")
    return _nano(usd, up=True)


def _nano(usd: float, *, up: bool) -> int:
    if not math.isfinite(usd) or usd < 0:
        raise ValueError(f"an amount of {usd} USD")
    # The nearest whole number first: 0.1 * 10**9 is not to become 100000001 by a rounding error of the product.
    exact = usd * _NANO
    near = round(exact)
    if math.isclose(exact, near, rel_tol=1e-12, abs_tol=0.0):
        return near
    return math.ceil(exact) if up else math.floor(exact)


def _added(total: Total, call: ModelCall) -> Total:
    reply = call.reply
    cost = Total(
        1,
        int(reply.error is not None),
        reply.n_prompt_tokens,
        reply.n_reply_tokens,
        reply.n_retries,
        reply.cost_usd,
        reply.latency_s,
    )
    return _sum((total, cost))


def _sum(totals: Iterable[Total]) -> Total:
    rows = tuple(totals)
    return Total(
        sum(row.n_calls for row in rows),
        sum(row.n_errors for row in rows),
        sum(row.n_prompt_tokens for row in rows),
        sum(row.n_reply_tokens for row in rows),
        sum(row.n_retries for row in rows),
        math.fsum(row.cost_usd for row in rows),
        math.fsum(row.latency_s for row in rows),
    )
