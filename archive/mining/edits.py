"""What an edit touched: kinds of change, from the sources of parent and offspring.

Lines are compared as two bags, spaces aside: what one source has and the other has not was changed, wherever it stands. Each
changed line that is no comment gives the edit the kinds below whose pattern it matches; where none does, the edit is *other*.
A tunable (`//?`) whose value differs is *tunable*, by name and direction, and its line counts for nothing else.

| kind | a changed line holds |
|---|---|
| launch | a `//!` line |
| include | `#include` |
| pragma | `#pragma` or `_Pragma` |
| constant | another preprocessor line, `constexpr`, or a tunable that was added, dropped or given another domain |
| loop | `for (`, `while (` or `do` with a brace |
| vector width | a vector type or its loads and stores: `float4`, `half2`, `__m256`, `vector_size`, `_mm512_load…` |
| multiply-add | the arithmetic of the product: `mma`, `wgmma`, `wmma`, `fma`, `dpbf16`, `__hfma2` |
| copy | data on the move: `cp.async` (tensor copies too), `memcpy`, `ldmatrix`, `__ldg`, pipelines |
| prefetch | `prefetch` in any spelling |
| barrier | `__syncthreads`, `__syncwarp`, `mbarrier`, `bar.sync`, `fence`, commit and wait of copy groups |
| shared memory | `__shared__`, `extern` arrays of it, `cvta…shared` |
| branch | `if (`, `else`, `switch (`, `?:`, `return` |
| order | nothing but the order of lines differs |
| comment | nothing but comments and blanks differ |
| other | none of these |
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from evo_l2.errors import KernelError
from evo_l2.tunables import Tunable, tunables

__all__ = ["KINDS", "Edit", "TunableChange", "edit"]

_PATTERNS = {
    "launch": r"^//!",
    "include": r"^#\s*include\b",
    "pragma": r"^#\s*pragma\b|\b_Pragma\b",
    "constant": r"^#\s*(?!include\b|pragma\b)\w|\bconstexpr\b",
    "loop": r"\b(?:for|while)\s*\(|\bdo\s*\{",
    "vector width": r"\b(?:float|half|int|uint|short|char|double)[248]\b|\b__half2\b|\b__m(?:128|256|512)|\bvector_size\b"
    r"|\b_mm\d*_\w*(?:load|store|set1|setzero|broadcast)|\b(?:vld|vst)\d|\bsv(?:float|ld|st)\w*",
    "multiply-add": r"\b(?:wg|w)?mma(?:\b|_)|_mma\b|(?:\b|_)v?fma\w*|_fn?m(?:add|sub)|\b__hfma\w*|dpbf16|\bsvmla\w*",
    "copy": r"\bcp[._]async|\bmemcpy\w*|\b(?:ld|st)matrix\b|\btensormap\b|\b__ldg\b|\b__pipeline_memcpy",
    "prefetch": r"prefetch",
    "barrier": r"\b__sync\w+|\bmbarrier\b|\bbar(?:rier)?\.|\bfence\b|\b__threadfence|\b(?:commit|wait)_?(?:group|all|prior)"
    r"|\barrive\w*",
    "shared memory": r"\b__shared__\b|\.shared\b|_to_shared\b",
    "branch": r"\bif\s*\(|\belse\b|\bswitch\s*\(|\?[^?]*:|\breturn\b",
}
_COMPILED = {kind: re.compile(pattern) for kind, pattern in _PATTERNS.items()}
KINDS = ("tunable", *_PATTERNS, "order", "comment", "other")
"""Every kind, in the order in which they are listed."""
_COMMENT = re.compile(r"//(?!!).*$")


@dataclass(frozen=True, slots=True)
class TunableChange:
    """One tunable with another value."""

    name: str
    before: int
    after: int

    @property
    def direction(self) -> str:
        """`up` or `down`."""
        return "up" if self.after > self.before else "down"


@dataclass(frozen=True, slots=True)
class Edit:
    """What differs between a parent and its offspring."""

    kinds: tuple[str, ...]
    """In the order of `KINDS`; empty for equal sources."""
    tunables: tuple[TunableChange, ...]
    n_added: int
    """Lines that the offspring has and its parent has not; those of tunables with other values are not counted."""
    n_removed: int


def edit(parent: str, offspring: str) -> Edit:
    """What an edit touched; see the module for the rules."""
    if parent == offspring:
        return Edit((), (), 0, 0)
    changes, settled = _tunables(parent, offspring)
    before = _lines(parent, {before for before, _ in settled})
    after = _lines(offspring, {after for _, after in settled})
    removed, added = Counter(before), Counter(after)
    removed.subtract(after)
    added.subtract(before)
    touched = [line for bag in (+removed, +added) for line in bag]
    kinds = {kind for line in touched for kind, pattern in _COMPILED.items() if pattern.search(line)}
    if touched and not kinds:
        kinds.add("other")
    if changes:
        kinds.add("tunable")
    if not kinds:
        kinds.add("order" if before != after else "comment")
    return Edit(tuple(kind for kind in KINDS if kind in kinds), changes, (+added).total(), (+removed).total())


def _tunables(parent: str, offspring: str) -> tuple[tuple[TunableChange, ...], list[tuple[int, int]]]:
    """Tunables with one domain and two values; and the lines, counted from 1, on which those of one domain stand."""
    before, after = _declared(parent), _declared(offspring)
    changes, settled = [], []
    for name, old in before.items():
        new = after.get(name)
        if new is None or new.domain != old.domain:
            continue
        settled.append((old.line, new.line))
        if new.value != old.value:
            changes.append(TunableChange(name, old.value, new.value))
    return tuple(changes), settled


def _declared(source: str) -> dict[str, Tunable]:
    try:
        return {tunable.name: tunable for tunable in tunables(source)}
    except KernelError:
        return {}


def _lines(source: str, but: set[int]) -> list[str]:
    """The lines of code without comments and spaces at their ends, those of numbers `but` left out."""
    found = []
    for number, line in enumerate(_without_blocks(source).split("\n"), start=1):
        if number not in but:
            line = " ".join((line if "//?" in line else _COMMENT.sub("", line)).split())
            if line:
                found.append(line)
    return found


def _without_blocks(source: str) -> str:
    """The source without `/* */`, its lines kept; in time that grows as its length does, whatever it holds."""
    parts, start = [], 0
    while (begin := source.find("/*", start)) >= 0 and (end := source.find("*/", begin + 2)) >= 0:
        parts += [source[start:begin], "\n" * source.count("\n", begin, end)]
        start = end + 2
    return "".join([*parts, source[start:]])
