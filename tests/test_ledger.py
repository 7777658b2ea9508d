"""The ledger: budgets that are never overrun, and who spent what."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evo_l2.contracts import ModelCall, Reply
from mutators import Ledger


def call(
    tokens: tuple[int, int] = (10, 5), usd: float = 0.0, generator: str = "model", error: str | None = None
) -> ModelCall:
    """A call that cost this much."""
    return ModelCall(generator, (), Reply("", *tokens, 0.5, usd, 2, error), 0, 64)


def test_what_does_not_fit_is_refused_and_changes_nothing() -> None:
    ledger = Ledger(tokens=100, usd=1.0)
    assert ledger.reserve(60, 0.5)
    assert not ledger.reserve(41, 0.0)
    assert not ledger.reserve(1, 0.6)
    assert ledger.reserve(40, 0.5)
    assert (ledger.tokens_left, ledger.usd_left) == (0, 0.0)
    assert not ledger.reserve(1)


def test_settling_frees_what_was_not_used() -> None:
    ledger = Ledger(tokens=100, usd=1.0)
    assert ledger.reserve(100, 1.0)
    ledger.settle([call((10, 5), 0.25)], operator="edit", tokens=100, usd=1.0)
    assert (ledger.tokens_left, ledger.usd_left) == (85, 0.75)
    assert ledger.reserve(85, 0.75)
    assert not ledger.reserve(1)


def test_a_call_that_was_not_made_frees_everything() -> None:
    ledger = Ledger(tokens=100)
    ledger.reserve(100)
    ledger.settle([], operator="edit", tokens=100)
    assert ledger.tokens_left == 100
    assert ledger.total.n_calls == 0


def test_more_than_is_reserved_cannot_be_freed() -> None:
    ledger = Ledger(tokens=100, usd=1.0)
    ledger.reserve(10, 0.1)
    with pytest.raises(ValueError, match="less is reserved"):
        ledger.settle([call()], operator="edit", tokens=11)
    with pytest.raises(ValueError, match="less is reserved"):
        ledger.settle([call()], operator="edit", tokens=10, usd=0.2)
    assert ledger.total.n_calls == 0


@given(st.lists(st.floats(1e-9, 0.1), max_size=40))
def test_money_that_is_freed_leaves_nothing_behind(amounts: list[float]) -> None:
    ledger = Ledger(usd=10.0)
    for usd in amounts:
        assert ledger.reserve(0, usd)
    for usd in reversed(amounts):
        ledger.settle([], operator="edit", tokens=0, usd=usd)
    assert ledger.usd_left == 10.0


def test_a_budget_can_be_spent_to_the_last_cent() -> None:
    ledger = Ledger(usd=0.3)
    for _ in range(3):
        assert ledger.reserve(0, 0.1)
        ledger.settle([call(usd=0.1)], operator="edit", tokens=0, usd=0.1)
    assert ledger.usd_left == 0.0
    assert not ledger.reserve(0, 1e-9)


def test_without_a_budget_everything_fits() -> None:
    ledger = Ledger()
    assert ledger.reserve(10**12, 1e6)
    assert ledger.tokens_left is None
    assert ledger.usd_left is None


@pytest.mark.parametrize("usd", [-0.1, float("nan"), float("inf")])
def test_amounts_are_finite_and_not_negative(usd: float) -> None:
    with pytest.raises(ValueError, match="USD"):
        Ledger().reserve(1, usd)
    with pytest.raises(ValueError, match="USD"):
        Ledger(usd=usd)
    with pytest.raises(ValueError, match="tokens"):
        Ledger().reserve(-1)
    with pytest.raises(ValueError, match="tokens"):
        Ledger(tokens=-1)


def test_an_overrun_by_a_call_leaves_nothing_to_reserve() -> None:
    ledger = Ledger(tokens=10)
    ledger.reserve(10)
    ledger.settle([call((10, 5))], operator="edit", tokens=10)
    assert ledger.tokens_left == 0
    assert not ledger.reserve(1)


def test_totals_by_generator_and_operator() -> None:
    ledger = Ledger()
    ledger.record([call((10, 5), 0.25), call((1, 0), 0.0, error="down")], operator="edit")
    ledger.record([call((20, 6), 0.5, generator="other")], operator="rewrite")
    ledger.record([call((1, 1), 0.25)], operator="rewrite")
    assert list(ledger.by_generator()) == ["model", "other"]
    model, edit = ledger.by_generator()["model"], ledger.by_operator()["edit"]
    assert (model.n_calls, model.n_errors, model.n_prompt_tokens, model.n_reply_tokens, model.n_tokens) == (3, 1, 12, 6, 18)
    assert (model.cost_usd, model.n_retries, model.latency_s) == (0.5, 6, 1.5)
    assert (edit.n_calls, edit.cost_usd) == (2, 0.25)
    assert ledger.total.n_tokens == 44
    assert ledger.total.cost_usd == 1.0


def test_many_threads_never_overrun_a_budget() -> None:
    ledger = Ledger(tokens=10_000, usd=1.0)
    start = threading.Barrier(8)
    refused: list[int] = []
    overrun: list[int] = []

    def work(seed: int) -> None:
        start.wait()
        for i in range(300):
            tokens = 20 + (seed * 31 + i * 17) % 40
            if not ledger.reserve(tokens, tokens / 10_000):
                refused.append(i)
                continue
            used = tokens - (i % 7)
            ledger.settle([call((used, 0), used / 10_000)], operator=f"op{seed}", tokens=tokens, usd=tokens / 10_000)
            if ledger.total.n_tokens > 10_000:
                overrun.append(i)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not overrun
    assert refused
    assert 10_000 - 8 * 60 < ledger.total.n_tokens <= 10_000
    left = ledger.tokens_left
    assert left is not None
    assert ledger.total.n_tokens + left == 10_000
    assert sum(total.n_calls for total in ledger.by_operator().values()) == ledger.total.n_calls
