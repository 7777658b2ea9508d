"""What every target asks of a source before a compiler reads it; each has its own headers, pragmas and words."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from evo_l2.evaluation import Status, Verdict
from evo_l2.kernel import LONGEST_SOURCE_BYTES
from evo_l2.launch import Launch, Role
from evo_l2.problem import Problem
from evo_l2.targets.source import Line, SourceError, check_characters

__all__ = [
    "DIRECTIVES",
    "Words",
    "check_layout",
    "check_operands",
    "check_source",
    "directive",
    "included",
    "not_included",
    "pragmas",
    "refused",
    "refused_at",
]

DIRECTIVES = frozenset({"define", "undef", "if", "ifdef", "ifndef", "elif", "else", "endif", "error", "warning"})
"""Those that name no file and ask nothing of the compiler."""
_DIRECTIVE = re.compile(r"(?:#|%:|\?\?=)\s*([^\W\d]\w*)?\s*(.*)", re.DOTALL)
_INCLUDE = re.compile(r"\s*(?:#|%:)\s*include\s*<([\w./+-]+)>\s*")
_WORD = re.compile(r"[^\W\d][\w$]*")
_PRAGMA_OPERATOR = re.compile(r"\b_Pragma\s*\(\s*\"((?:\\.|[^\"\\])*)\"\s*\)")


def refused(gate: str, message: str) -> Verdict:
    """A source that is refused."""
    return Verdict(Status.REJECTED, gate, message)


def refused_at(line: int, gate: str, message: str) -> Verdict:
    """A source that is refused for one of its lines."""
    return refused(gate, f"line {line}: {message}")


def check_source(source: str) -> Iterator[Verdict]:
    """What there is against a source as a whole, before its launch is read."""
    if len(source.encode("utf-8", "replace")) > LONGEST_SOURCE_BYTES:
        yield refused("size", f"the source is longer than {LONGEST_SOURCE_BYTES} bytes")
    if not source.isascii() and any("\ud800" <= c <= "\udfff" for c in source):
        yield refused("text", "the source is not valid Unicode")
    try:
        check_characters(source)
    except SourceError as error:
        yield refused("text", str(error))


def check_layout(launch: Launch, problem: Problem) -> Verdict | None:
    """The reason to refuse a launch by its layout, or None."""
    if launch.layout in problem.layouts:
        return None
    expected = " or ".join(problem.layouts)
    return refused_at(launch.layout_line, "launch", f"layout {launch.layout} is not admitted here; expected {expected}")


def check_operands(launch: Launch, problem: Problem, *, roles: Sequence[Role], subject: str) -> Verdict | None:
    """The reason to refuse a launch by what it passes, or None: every operand, and nothing that is not there.

    Args:
        launch: Its arguments, workspaces and tensor maps are compared with the problem's operands and sizes.
        problem: What is computed.
        roles: What an argument may be on this target, sizes aside; for the message.
        subject: Who passes them; for the message, as in `the launch does`.
    """
    operands = {operand.name: operand for operand in problem.operands}
    known = ", ".join(f"{operand.name}: {operand.role.value}" for operand in problem.operands)
    maps = {tensor.name: tensor for tensor in launch.tensor_maps}
    spaces = {space.name for space in launch.workspaces}
    reached = {tensor.operand for tensor in launch.tensor_maps}
    for tensor in launch.tensor_maps:
        if tensor.operand not in operands:
            return refused("launch", f"tensor map {tensor.name} is of {tensor.operand}, which is no operand here")
    for line, argument in ((call.line, argument) for call in launch.calls for argument in call.arguments):
        reached.add(argument.name)
        operand = operands.get(argument.name)
        if argument.role is Role.SIZE and argument.name not in problem.size_symbols:
            sizes, words = ", ".join(problem.size_symbols), ", ".join(role.value for role in roles)
            return refused_at(line, "launch", f"{argument.name} is no size symbol ({sizes}) and has no role ({words})")
        if argument.role in (Role.IN, Role.OUT) and (operand is None or operand.role is not argument.role):
            return refused_at(line, "launch", f"{argument.name}: {argument.role.value} is no operand here; expected {known}")
        if argument.role is Role.WORKSPACE and (operand is not None or argument.name not in spaces):
            hint = "declare it with another name: '//! workspace W bytes'"
            return refused_at(line, "launch", f"{argument.name} is no workspace; {hint}")
        if argument.role is Role.MAP and argument.name not in maps:
            hint = "declare it: '//! tensormap TA: A, box BM, BK, swizzle 128, promotion 256'"
            return refused_at(line, "launch", f"{argument.name} is no tensor map; {hint}")
    missing = [operand.name for operand in problem.operands if operand.name not in reached]
    return refused("launch", f"{subject} not pass {', '.join(missing)}") if missing else None


def directive(line: Line) -> tuple[str, str]:
    """Word and rest of a line that the preprocessor takes; an empty word and the whole line where there is no word."""
    match = _DIRECTIVE.fullmatch(line.text.strip())
    return (match.group(1) or "", match.group(2)) if match is not None else ("", line.text)


def included(line: Line) -> str | None:
    """The header between < and > that a line includes; None for any other line, and for any other way to name a file."""
    match = _INCLUDE.fullmatch(line.text)
    return match.group(1) if match is not None else None


def not_included(rest: str, allowed: Collection[str], more: str = "", advice: str = "") -> str:
    """Why a header is refused: which it is, and what may be included instead.

    Args:
        rest: What stands behind the word `include`.
        allowed: Names of the headers that a kernel may include.
        more: What else it may include, in words.
        advice: What to do instead, where that is known; comes first.
    """
    shown = " ".join(rest.split())[:80] or "nothing"
    bare = shown.strip('"<> ')
    known = ", ".join(sorted(allowed))
    instead = f"; {advice}" if advice else f"; write #include <{bare}>" if bare in allowed else ""
    return f"{shown} may not be included{instead}: allowed, between < and >, are {known}{more}"


def pragmas(line: Line) -> Iterator[Line]:
    """Pragmas that a line writes as operators, as directives of their own."""
    for match in _PRAGMA_OPERATOR.finditer(line.text):
        yield Line(line.number, "#pragma " + re.sub(r"\\(.)", r"\1", match.group(1)))


@dataclass(frozen=True, slots=True)
class Words:
    """Names that a source may not hold."""

    rows: Sequence[tuple[str, str, str]]
    """Gate, plain words for what the names stand for, and a pattern of whole names."""
    _pattern: re.Pattern[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        pattern = "|".join(f"(?P<w{i}>{names})" for i, (_, _, names) in enumerate(self.rows))
        object.__setattr__(self, "_pattern", re.compile(pattern))

    @property
    def gates(self) -> frozenset[str]:
        """The gates of its rows."""
        return frozenset(gate for gate, _, _ in self.rows)

    def may_be_in(self, text: str) -> bool:
        """Whether the text may hold one of the names; False is certain. Looks inside strings and numbers too."""
        return any(self._pattern.fullmatch(word) is not None for word in set(_WORD.findall(text)))

    def faults(self, tokens: Iterable[tuple[int, str]]) -> Iterator[Verdict]:
        """A verdict for each token that is one of the names; tokens come with their lines."""
        for number, token in tokens:
            match = self._pattern.fullmatch(token)
            if match is not None:
                gate, what, _ = next(row for i, row in enumerate(self.rows) if match.group(f"w{i}") is not None)
                yield refused_at(number, gate, f"{token} is not allowed: {what}")
