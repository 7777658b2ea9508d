"""What a look at a kernel suggests, beside the verdict: nothing here refuses one."""

from __future__ import annotations

from collections.abc import Mapping

from evo_l2.evaluation import Verdict
from evo_l2.kernel import Kernel
from evo_l2.problems.hgemm import Hgemm

__all__ = ["hint_for", "notes", "plain_tunables"]


def notes(kernel: Kernel, problem: Hgemm, resources: Mapping[str, int | float | str]) -> tuple[str, ...]:
    """Lines worth reading before the kernel is run; none where nothing stands out.

    Args:
        kernel: Its tunables and its launch are looked at, and its resources with them.
        problem: Says in which class sums are.
        resources: Of its build; empty where there is none.
    """
    found = [
        f"{t.name} is {t.value}, which its domain does not list: the value has joined it (line {t.line})"
        for t in kernel.tunables
        if t.joined
    ]
    n_atomic, n_half_math = (int(resources.get(name, 0)) for name in ("n_atomic", "n_half_math"))
    if n_atomic and kernel.launch.deterministic:
        found.append(
            f"{n_atomic:,} atomic {_instructions(n_atomic)} and no line '//! nondeterministic': two runs have to agree bit "
            "for bit, which sums by floating-point atomics do not; counters do"
        )
    if n_half_math and problem.accumulate == "fp32":
        found.append(
            f"{n_half_math:,} {_instructions(n_half_math)} of half-precision arithmetic in the fp32 class: no gate before "
            "the launch refuses them, those on results refuse sums of products by them"
        )
    return tuple(found)


def hint_for(verdict: Verdict, problem: Hgemm) -> str | None:
    """What to type for a kernel that is refused for its class alone; None for any other."""
    of_half = "found fp16 products with fp16 sums" in (verdict.message or "")
    if verdict.gate == "matrix-class" and problem.accumulate == "fp32" and of_half:
        return "--accumulate fp16 (the class in which sums of half precision are admitted)"
    return None


def plain_tunables(kernel: Kernel) -> list[dict[str, object]]:
    """The kernel's tunables as plain data: `name`, `value`, `domain`, `line`."""
    return [{"name": t.name, "value": t.value, "domain": list(t.domain), "line": t.line} for t in kernel.tunables]


def _instructions(number: int) -> str:
    return "instruction" if number == 1 else "instructions"
