"""Futures of results that are there already, or that come in batches."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TypeVar

__all__ = ["done_future", "picked_future"]

T = TypeVar("T")


def done_future(value: T) -> Future[T]:
    """A future that has its result already."""
    future: Future[T] = Future()
    future.set_result(value)
    return future


def picked_future(batched: Future[tuple[T, ...]], position: int) -> Future[T]:
    """One place of a batch's future result, as a future of its own."""
    future: Future[T] = Future()

    def settle(done: Future[tuple[T, ...]]) -> None:
        if done.cancelled():
            future.cancel()
        elif (error := done.exception()) is not None:
            future.set_exception(error)
        else:
            future.set_result(done.result()[position])

    batched.add_done_callback(settle)
    return future
