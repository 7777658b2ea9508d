"""The exceptions of the whole project, under one root.

A kernel's fault is never an exception: it is a `Status`. What is raised is our own fault or the machine's, and says in one
line what was expected, what was found and the next command to type.
"""

from __future__ import annotations

__all__ = [
    "BudgetError",
    "ConfigurationError",
    "DeviceError",
    "EvoL2Error",
    "KernelError",
    "ModelError",
    "StorageError",
    "ToolchainError",
]


class EvoL2Error(Exception):
    """Root of every error a caller of this project may want to handle.

    Args:
        what: What went wrong, in a few words.
        expected: What would have been right.
        found: What was there instead.
        hint: The next command to type, or the next thing to change.
    """

    def __init__(self, what: str, *, expected: str | None = None, found: str | None = None, hint: str | None = None) -> None:
        self.what = what
        self.expected = expected
        self.found = found
        self.hint = hint
        super().__init__(str(self))

    def __str__(self) -> str:
        parts = [self.what]
        if self.expected is not None:
            parts.append(f"expected {self.expected}")
        if self.found is not None:
            parts.append(f"found {self.found}")
        line = ": ".join([parts[0], ", ".join(parts[1:])]) if len(parts) > 1 else parts[0]
        line = " ".join(line.split())
        return f"{line}; try: {self.hint}" if self.hint is not None else line


class ConfigurationError(EvoL2Error):
    """A preset, file, key or option cannot be used as it is."""


class KernelError(ConfigurationError):
    """A file that the user gave is not a kernel, or its launch does not parse. `line` and `column` count from 1."""

    def __init__(
        self,
        what: str,
        *,
        expected: str | None = None,
        found: str | None = None,
        hint: str | None = None,
        line: int | None = None,
        column: int | None = None,
    ) -> None:
        self.line = line
        self.column = column
        super().__init__(what, expected=expected, found=found, hint=hint)

    def __str__(self) -> str:
        text = super().__str__()
        if self.line is None:
            return text
        return f"line {self.line}, column {self.column}: {text}" if self.column is not None else f"line {self.line}: {text}"


class ToolchainError(EvoL2Error):
    """A compiler, disassembler or library that the target needs is missing, too old, or broken."""


class DeviceError(EvoL2Error):
    """The device (card, or runner process) does not answer as it should; no kernel is to blame."""


class StorageError(EvoL2Error):
    """The store cannot be opened, read or written: newer schema, other problem, full disk, read-only folder."""


class ModelError(EvoL2Error):
    """A model cannot be loaded, or its server does not answer as it should."""


class BudgetError(EvoL2Error):
    """What was asked for cannot be paid from what is left of a budget."""
