"""Silence while a kernel is timed: builds wait their turn and local models stand still."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from evo_l2.contracts import Generator

__all__ = ["Quiet"]


class Quiet:
    """Many may be noisy at once, or some may have silence; a wish for silence goes first.

    Args:
        generators: Paused while there is silence.
        builds_disturb: Whether noise waits for silence to end, and silence for noise. Not so where a card's own clock times
            kernels: builds take the processor alone.
    """

    def __init__(self, generators: Sequence[Generator] = (), *, builds_disturb: bool = True) -> None:
        self._generators = generators
        self._builds_disturb = builds_disturb
        self._turn = threading.Condition()
        self._n_noisy = 0
        self._n_silent = 0

    @contextmanager
    def noise(self) -> Iterator[None]:
        """For work that would disturb a measurement; waits while there is silence."""
        if not self._builds_disturb:
            yield
            return
        with self._turn:
            self._turn.wait_for(lambda: self._n_silent == 0)
            self._n_noisy += 1
        try:
            yield
        finally:
            with self._turn:
                self._n_noisy -= 1
                self._turn.notify_all()

    @contextmanager
    def silence(self) -> Iterator[None]:
        """For a measurement; waits until the noise that has begun is over. Several have it at once on cards only."""
        with self._turn:
            self._n_silent += 1
        try:
            with self._turn:
                self._turn.wait_for(lambda: self._n_noisy == 0)
                for generator in self._generators:
                    generator.pause()
            yield
        finally:
            with self._turn:
                self._n_silent -= 1
                if self._n_silent == 0:
                    for generator in self._generators:
                        generator.resume()
                self._turn.notify_all()
