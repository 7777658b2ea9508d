"""A build that failed: the kernel's fault, or the machine's."""

from __future__ import annotations

from collections.abc import Callable

from evo_l2.build_cache import BuildOutcome
from evo_l2.evaluation import Status, Verdict
from evo_l2.sandbox import Exceeded

__all__ = ["explain_failure", "over_limit"]


def explain_failure(
    log: str,
    *,
    exceeded: Exceeded | None,
    ended_by: int | None,
    returncode: int | None,
    is_blamed: bool,
    is_out_of_memory: bool,
    advice: str,
    check_machine: Callable[[], None],
) -> BuildOutcome:
    """What a failed build comes to: the kernel's fault if its messages say so, or if the machine can show that it works.

    Args:
        log: The compiler's messages, as they are kept.
        exceeded: The limit that it ran into, if any.
        ended_by: The signal that ended it, if any.
        returncode: What it returned otherwise.
        is_blamed: Whether the messages find fault with the kernel.
        is_out_of_memory: Whether they say that there was no more memory.
        advice: What to make smaller, for a build that takes too much.
        check_machine: Builds a program that is known to be good; raises when that fails.

    Raises:
        ToolchainError: By `check_machine`.
    """
    if exceeded is None and is_blamed:
        return BuildOutcome(Verdict(Status.BUILD_ERROR, "compile", log), log)
    check_machine()
    if exceeded is not None:
        what = f"the compiler ran into its limit of {exceeded.value}"
        return over_limit(what, log, advice, lasting=exceeded is not Exceeded.WALL)
    if is_out_of_memory:
        return over_limit("the compiler ran out of memory", log, advice)
    how = f"was ended by signal {ended_by}" if ended_by is not None else f"returned {returncode}"
    message = f"the compiler {how}" + (f": {log}" if log else " without a message")
    return BuildOutcome(Verdict(Status.BUILD_ERROR, "compile", message), log, lasting=ended_by is None)


def over_limit(what: str, log: str, advice: str, *, lasting: bool = True) -> BuildOutcome:
    """A build that takes too much; `advice` is what to make smaller."""
    return BuildOutcome(Verdict(Status.BUILD_ERROR, "compile-limits", f"{what}; make {advice} smaller"), log, lasting=lasting)
