"""The columns of the flat tables, by table: name, type and meaning; the documents' tables are made of them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["COLUMNS", "SPEED", "Column"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a flat table."""

    name: str
    kind: str
    """`text`, `integer`, `real`, `yes/no` or `list` (of real numbers)."""
    meaning: str


def _columns(*rows: tuple[str, str, str]) -> tuple[Column, ...]:
    return tuple(Column(*row) for row in rows)


SPEED = _columns(
    ("speedup", "real", "baseline time over kernel time, over all sessions; null when wrong, withdrawn or never timed"),
    ("speedup_low", "real", "lower end of its 95 % interval"),
    ("speedup_high", "real", "upper end"),
    ("n_blocks", "integer", "blocks of samples behind it"),
    ("n_sessions", "integer", "conclusive timing sessions behind it"),
)
_PLACE = _columns(
    ("problem", "text", "the problem in words"),
    ("environment", "text", "the environment's key: compare numbers within one"),
    ("target", "text", "`cpu` or `cuda`"),
)
COLUMNS: dict[str, tuple[Column, ...]] = {
    "candidates": (
        *_columns(
            ("run", "text", "the run's name"),
            ("idx", "integer", "the candidate's number in its run, from 0"),
        ),
        *_PLACE,
        *_columns(
            ("operator", "text", "what made it: `seed`, `parametric`, `edit` …"),
            ("outcome", "text", "`evaluated`, `duplicate`, `no_kernel`, `edit_failed`, `generator_failed`"),
            (
                "status",
                "text",
                "of the verdict: `passed`, `built`, `incorrect` …; `inconclusive` when right and not timed yet",
            ),
            ("gate", "text", "the gate that stopped it"),
            ("message", "text", "why, in words"),
            ("digest", "text", "the source's digest"),
            ("identity", "text", "the machine code's and launch's"),
            ("duplicate_of", "text", "digest of the known kernel that it repeats"),
            ("parent", "text", "digest of the first parent"),
            ("parent_2", "text", "digest of the second"),
            ("cell", "text", "indices of its cell when it was added, as JSON"),
            ("added", "text", "`new`, `improved` or `not_added`"),
        ),
        *SPEED,
        *_columns(
            ("gain", "real", "speed-up over the first parent's"),
            ("gain_low", "real", "lower end of its 95 % interval"),
            ("gain_high", "real", "upper end"),
            ("generator", "text", "the model that was asked"),
            ("n_calls", "integer", "how often"),
            ("n_prompt_tokens", "integer", "tokens of its prompts"),
            ("n_reply_tokens", "integer", "tokens of its replies"),
            ("cost_usd", "real", "what the calls cost"),
            ("wall_s", "real", "seconds from asking to filing"),
            ("evaluation_s", "real", "seconds of judging and timing"),
            ("created", "text", "when it was filed, UTC"),
        ),
    ),
    "kernels": (
        *_columns(("digest", "text", "the source's digest"), ("identity", "text", "the machine code's and launch's")),
        *_PLACE,
        *_columns(
            ("status", "text", "of the verdict"),
            ("gate", "text", "the gate that stopped it"),
            ("message", "text", "why, in words"),
            ("cell", "text", "indices of the cell that it competes for, as JSON"),
        ),
        *SPEED,
        *_columns(
            ("build_s", "real", "seconds of the build; 0 when it came from the cache"),
            ("first_run", "text", "the run that judged it"),
            ("created", "text", "when it was judged, UTC"),
            ("source", "text", "the source"),
        ),
    ),
    "sessions": (
        *_columns(("digest", "text", "the source's digest")),
        *_PLACE,
        *_columns(
            ("run", "text", "the run that timed it"),
            ("session", "integer", "the session's number in the file"),
            ("purpose", "text", "`search`, `retime` or `final`"),
            ("sizes", "text", "the case's sizes, as JSON (HGEMM: M, N, K, BATCH)"),
            ("regime", "text", "the kind of shape"),
            ("kernel_us", "real", "median time of a call, of the blocks that were kept"),
            ("baseline_us", "real", "the baseline's"),
            ("bare_baseline_us", "real", "the baseline's without its conversions"),
            ("n_blocks", "integer", "blocks timed"),
            ("n_kept", "integer", "blocks kept"),
            ("kernel_samples_us", "list", "one value a block"),
            ("baseline_samples_us", "list", "one value a block"),
            ("created", "text", "when it was filed, UTC"),
        ),
    ),
    "cells": _columns(
        ("environment", "text", "the environment's key"),
        ("family", "text", "the problem without its shapes, as JSON"),
        ("regime", "text", "the kind of shape"),
        ("axes", "text", "version of the measures' axes"),
        ("cell", "text", "indices, as JSON"),
        ("cell_in_words", "text", "the same in words"),
        ("problem", "text", "where the elite was timed"),
        ("digest", "text", "the elite's source"),
        ("identity", "text", "its machine code and launch"),
        ("speedup", "real", "over the cases of the regime; null when never timed"),
        ("speedup_low", "real", "lower end of its 95 % interval"),
        ("speedup_high", "real", "upper end"),
        ("n_blocks", "integer", "blocks of samples behind it"),
        ("n_kernels", "integer", "kernels in the cell"),
    ),
    "moves": _columns(
        ("run", "text", "the run's name"),
        ("idx", "integer", "the candidate's number in its run"),
        ("operator", "text", "what made it"),
        ("kind", "text", "what the edit touched"),
        ("name", "text", "the tunable's name"),
        ("direction", "text", "`up` or `down`"),
        ("before", "integer", "the tunable's value in the parent"),
        ("after", "integer", "in the offspring"),
        ("n_kinds", "integer", "moves that the candidate made"),
        ("n_added", "integer", "lines that its parent has not"),
        ("n_removed", "integer", "lines of its parent that it has not"),
        ("parent", "text", "digest of the first parent"),
        ("digest", "text", "the offspring's"),
        ("known", "yes/no", "whether it repeats a known kernel"),
        ("status", "text", "of its verdict"),
        ("filed", "yes/no", "whether it opened or improved a cell"),
        ("gain", "real", "speed-up over the parent's"),
        ("gain_low", "real", "lower end of its 95 % interval"),
        ("gain_high", "real", "upper end"),
    ),
    "calls": _columns(
        ("run", "text", "the run's name"),
        ("idx", "integer", "the candidate's number in its run"),
        ("operator", "text", "the operator that asked"),
        ("position", "integer", "the call's number among the candidate's, from 0"),
        ("generator", "text", "the model"),
        ("prompt", "text", "the messages, as JSON: role and content"),
        ("reply", "text", "its answer"),
        ("n_prompt_tokens", "integer", "tokens of the prompt"),
        ("n_reply_tokens", "integer", "tokens of the reply"),
        ("latency_s", "real", "seconds until the reply"),
        ("cost_usd", "real", "what it cost"),
        ("n_retries", "integer", "how often it was asked again"),
        ("error", "text", "why there is no reply"),
        ("seed", "text", "the seed that it was given"),
        ("max_tokens", "integer", "the most it might answer"),
    ),
}
"""The columns of each table, in order. `candidates` and `kernels` have one more for each fact that a build reports, by its
name, such as `n_registers` or `code_bytes`."""
