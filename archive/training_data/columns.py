"""The columns of every form: order, type and meaning. What is written and what the card says come from here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["COLUMNS", "Column", "arrow_schema", "fitted"]

Kind = Any
"""`text`, `real`, `whole` or `flag`; a list of one kind; or a mapping of names to kinds."""

MESSAGES: Kind = [{"role": "text", "content": "text"}]


@dataclass(frozen=True, slots=True)
class Column:
    """One column."""

    name: str
    kind: Kind
    what: str


_EVIDENCE: Kind = {
    "status": "text",
    "gate": "text",
    "message": "text",
    "harness": "text",
    "gates": "text",
    "n_sessions": "whole",
    "n_blocks": "whole",
}
_FACTS: Kind = {
    "digest": "text",
    "identity": "text",
    "text_digest": "text",
    "run": "text",
    "index": "whole",
    "operator": "text",
    "generator": "text",
    "adapter": "text",
    "parents": ["text"],
    "reward": "real",
    "speedup": "real",
    "speedup_low": "real",
    "speedup_high": "real",
    "gain": "real",
    "gain_low": "real",
    "gain_high": "real",
    "evidence": _EVIDENCE,
}

_PROMPT = Column("prompt", MESSAGES, "Chat messages, as the operator gave them, or would have given them, to a model.")
_COMPLETION = Column("completion", MESSAGES, "The reply, as one message of the assistant.")
_PROMPT_FROM = Column(
    "prompt_from", "text", "`stored`: prompt and reply are those of a model, untouched. `rendered`: written now."
)
_FORM = Column(
    "form", "text", "How a reply says the kernel: `edit` (SEARCH/REPLACE blocks), `rewrite` (all of it), or `other`."
)
_ID = Column("id", "text", "Digest of prompt and completions.")
_REWARD = Column("reward", "real", "See *Rewards*.")

_OF_KERNEL = (
    Column("reward_version", "text", "The version of the reward."),
    Column(
        "speedup", "real", "Baseline time over kernel time, geometric mean over the problem's cases, all sessions pooled."
    ),
    Column("speedup_low", "real", "Lower end of its 95 % interval."),
    Column("speedup_high", "real", "Upper end."),
    Column(
        "gain",
        "real",
        "Time of the parent (or of the fastest exemplar) over the kernel's; null where the prompt shows neither.",
    ),
    Column("gain_low", "real", "Lower end of its 95 % interval."),
    Column("gain_high", "real", "Upper end."),
    Column(
        "baseline",
        {"name": "text", "cases": [{"sizes": ["whole"], "kernel_us": "real", "baseline_us": "real"}]},
        "What it was timed against, and the median times of both in microseconds, case by case.",
    ),
    Column("evidence", _EVIDENCE, "Verdict, gate and reason; versions of harness and gates; how much was timed."),
    Column(
        "measures",
        [{"axis": "text", "value": "real", "label": "text"}],
        "What the built kernel is like, by axis of the grid.",
    ),
    Column("cell", ["whole"], "Its cell: one index an axis; empty without one."),
    Column("operator", "text", "The variation operator that made it, `seed` or `import`."),
    Column("generator", "text", "The model that wrote it; null where none did."),
    Column("adapter", "text", "The model's adapter, where it had one."),
    Column("digest", "text", "SHA-256 of target and source: the kernel's name in the archive."),
    Column("identity", "text", "Digest of machine code and evaluated launch."),
    Column("text_digest", "text", "Digest of the source without comments and white space."),
)
_OF_ORIGIN = (
    Column(
        "lineage",
        {"run": "text", "index": "whole", "parents": ["text"], "root": "text", "component": "text"},
        "Run and index of the candidate, its parents, the seed that the first of them goes back to, and the component by"
        " which it was split.",
    ),
    Column("problem", {"key": "text", "title": "text", "definition": "text"}, "What is computed; the definition as JSON."),
    Column(
        "environment", {"key": "text", "target": "text", "identity": "text"}, "Where it was measured; the identity as JSON."
    ),
    Column("licence", "text", "SPDX identifiers, those of what it descends from included."),
)

COLUMNS: Mapping[str, tuple[Column, ...]] = {
    "sft": (
        _PROMPT,
        _COMPLETION,
        Column("kind", "text", "`step`: one revision that gained. `elite`: holds its cell, written without a parent."),
        _FORM,
        _PROMPT_FROM,
        _REWARD,
        *_OF_KERNEL,
        *_OF_ORIGIN,
        _ID,
    ),
    "kto": (
        _PROMPT,
        _COMPLETION,
        Column("label", "flag", "True: right, and faster than its parent. False: a failure, or slower."),
        _FORM,
        _PROMPT_FROM,
        _REWARD,
        *_OF_KERNEL,
        *_OF_ORIGIN,
        _ID,
    ),
    "dpo": (
        _PROMPT,
        Column("chosen", MESSAGES, "The better reply."),
        Column("rejected", MESSAGES, "The worse reply to the same prompt."),
        Column("margin", "real", "Reward of the chosen less that of the rejected."),
        Column("pair_kind", "text", "`right-over-wrong`, or `faster-over-slower`, whose intervals do not overlap."),
        _FORM,
        _PROMPT_FROM,
        Column("reward_version", "text", "The version of the reward."),
        Column("chosen_facts", _FACTS, "What is known of the better kernel."),
        Column("rejected_facts", _FACTS, "What is known of the worse."),
        *_OF_ORIGIN,
        _ID,
    ),
    "grpo": (
        _PROMPT,
        Column("ground_truth", "text", "JSON: all that a reward function needs to judge a reply. See *Judging a reply*."),
        Column("known_completions", ["text"], "Replies that the archive knows, the best first."),
        Column("known_rewards", ["real"], "Their rewards, in the same order."),
        Column("known_facts", [_FACTS], "What is known of each."),
        _FORM,
        _PROMPT_FROM,
        Column("reward_version", "text", "The version of the reward."),
        Column("parent_speedup", "real", "The parent's speed-up over the baseline."),
        Column("cell", ["whole"], "The parent's cell."),
        *_OF_ORIGIN,
        _ID,
    ),
    "contrastive": (
        _PROMPT,
        _COMPLETION,
        Column(
            "exemplars",
            [{"source": "text", "speedup": "real", "speedup_low": "real", "speedup_high": "real", "facts": _FACTS}],
            "The kernels that the prompt shows, the slowest first; each slower than the completion beyond both intervals.",
        ),
        _FORM,
        _PROMPT_FROM,
        _REWARD,
        *_OF_KERNEL,
        *_OF_ORIGIN,
        _ID,
    ),
}


def fitted(value: Any, kind: Kind) -> Any:
    """A value in the order of its kind, with what is missing, NaN or infinite as None and text that UTF-8 can hold."""
    if isinstance(kind, dict):
        return None if value is None else {name: fitted(value.get(name), part) for name, part in kind.items()}
    if isinstance(kind, list):
        return [] if value is None else [fitted(item, kind[0]) for item in value]
    if value is None:
        return None
    if kind == "text":
        return str(value).encode("utf-8", "replace").decode("utf-8")
    if kind == "real":
        return float(value) if math.isfinite(value) else None
    return bool(value) if kind == "flag" else int(value)


def arrow_schema(columns: tuple[Column, ...]) -> Any:
    """The columns as a schema of pyarrow."""
    import pyarrow as pa

    simple = {"text": pa.string(), "real": pa.float64(), "whole": pa.int64(), "flag": pa.bool_()}

    def of(kind: Kind) -> Any:
        if isinstance(kind, dict):
            return pa.struct([pa.field(name, of(part)) for name, part in kind.items()])
        return pa.list_(of(kind[0])) if isinstance(kind, list) else simple[kind]

    return pa.schema([pa.field(column.name, of(column.kind)) for column in columns])
