"""The dataset card: a README.md whose YAML head the Hugging Face hub and `datasets` read, made from the rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from archive.training_data.columns import Column
from archive.training_data.rewards import REWARD_VERSION
from archive.training_data.splitting import SPLITS, SplitPlan

__all__ = ["Card", "card_text"]

_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
_KNOWN_LICENCES = {"MIT": "mit", "Apache-2.0": "apache-2.0", "CC-BY-4.0": "cc-by-4.0", "BSD-3-Clause": "bsd-3-clause"}
_WHAT = {
    "sft": "supervised fine-tuning: single revisions of a kernel that gained, and the elites of the archive",
    "dpo": "preference pairs: two replies to one prompt, one clearly better",
    "kto": "unpaired preferences: replies that are good, and replies that are bad",
    "grpo": "reinforcement learning: a prompt, what judging a reply takes, and the replies that are known with their rewards",
    "contrastive": "contrastive prompts: several kernels with their times, and one that is faster than all of them",
}
_LOADS = {
    "trl": {
        "sft": "SFTTrainer",
        "dpo": "DPOTrainer",
        "kto": "KTOTrainer",
        "grpo": "GRPOTrainer",
        "contrastive": "SFTTrainer",
    },
}


@dataclass(frozen=True, slots=True)
class Card:
    """What a card is made from."""

    form: str
    layout: str
    columns: tuple[Column, ...]
    rows: Mapping[str, Sequence[Mapping[str, Any]]]
    """By split, before they were laid out."""
    dropped: Mapping[str, int]
    plan: SplitPlan
    parquet: bool

    @property
    def all_rows(self) -> list[Mapping[str, Any]]:
        """Those of every split."""
        return [row for split in SPLITS for row in self.rows.get(split, ())]


def card_text(card: Card, count_tokens: Callable[[str], int], caps: tuple[int, int]) -> str:
    """The whole card.

    Args:
        card: The rows.
        count_tokens: Tokens of a text, an estimate from above.
        caps: Most rows of one cell and of one seed.
    """
    parts = [
        _head(card),
        f"# Kernels for {card.form}",
        f"Rows for {_WHAT[card.form]}. Made by evo-l2 from an archive in which every kernel was built, judged on secret"
        f" inputs and timed beside its baseline. Columns are those of {card.layout}.",
        _counts(card),
        _balance(card, caps),
        "## Splits\n\n"
        f"Split {card.plan.note}. Kernels belong together when one descends from the other, when their texts without comments"
        " and white space are equal, or their machine code is; no component stands in two splits, and no reply either. Data"
        " of every form from one archive are split alike; a larger archive may be split otherwise.",
        _left_out(card),
        _lengths(card, count_tokens),
        _rewards(card),
        _origins(card),
        "## Columns\n\n" + _table(("column", "what it means"), [(f"`{c.name}`", c.what) for c in card.columns]),
        _loading(card),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(card: Card) -> str:
    n_rows = len(card.all_rows)
    size = next((name for most, name in _SIZES if n_rows < most), "n>1M")
    licences = sorted({row["licence"] for row in card.all_rows})
    licence = _KNOWN_LICENCES.get(licences[0], "unknown" if licences[0] == "unknown" else "other")
    lines = ["---", f"license: {licence if len(licences) == 1 else 'other'}", "language:", "- code", "size_categories:"]
    lines += [f"- {size}", "tags:", "- cuda", "- kernels", f"- {card.form}", "configs:"]
    folders = (
        [("default", "data", "parquet"), ("jsonl", "jsonl", "jsonl")] if card.parquet else [("default", "jsonl", "jsonl")]
    )
    for name, folder, suffix in folders:
        lines += [f"- config_name: {name}", "  data_files:"]
        for split in SPLITS:
            if split in card.rows:
                lines += [f"  - split: {split}", f"    path: {folder}/{split}.{suffix}"]
    return "\n".join([*lines, "---"])


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    lines += [f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join(lines)


def _counts(card: Card) -> str:
    names = {"sft": "kind", "kto": "label", "dpo": "pair_kind", "grpo": "form", "contrastive": "form"}
    by = names[card.form]
    values = sorted({str(row[by]) for row in card.all_rows})
    rows = []
    for split in SPLITS:
        members = card.rows.get(split, ())
        counts = Counter(str(row[by]) for row in members)
        rows.append((split, len(members), *(counts[value] for value in values)))
    return "## Rows\n\n" + _table(("split", "rows", *(f"{by} `{value}`" for value in values)), rows)


def _balance(card: Card, caps: tuple[int, int]) -> str:
    rows = card.all_rows
    roots = Counter(row["lineage"]["root"] for row in rows)
    share = max(roots.values()) / len(rows)
    text = (
        f"## Balance\n\nAt most {caps[0]} rows of one cell (or of one kind of failure) and {caps[1]} that go back to one"
        f" seed. There are {len(roots)} such seeds; the one with most rows has {share:.0%} of them."
    )
    if share > 0.25 and len(roots) > 1:
        text += " A quarter is a good bound: lower `--per-root` for training that should not lean on one line of descent."
    cells = Counter(tuple(row["cell"]) for row in rows if row.get("cell"))
    if cells:
        text += f" Rows fill {len(cells)} cells, {min(cells.values())} to {max(cells.values())} each."
    if card.form == "kto":
        good = sum(1 for row in rows if row["label"])
        text += f" {good} rows are good and {len(rows) - good} bad: set `desirable_weight` and `undesirable_weight` by that."
    return text


def _left_out(card: Card) -> str:
    rows = sorted(card.dropped.items(), key=lambda item: (-item[1], item[0]))
    body = _table(("left out", "why"), [(n, why) for why, n in rows]) if rows else "Nothing."
    return f"## Left out\n\nOnce by normalised text and once by machine code, so that no kernel stands twice.\n\n{body}"


def _lengths(card: Card, count_tokens: Callable[[str], int]) -> str:
    rows = card.all_rows
    prompts = sorted(sum(count_tokens(message["content"]) for message in row["prompt"]) for row in rows)
    replies = sorted(count_tokens(text) for row in rows for text in _replies(row))
    lines = [(name, *(_percentile(values, q) for q in (50, 90, 99)), values[-1]) for name, values in
             (("prompt", prompts), ("reply", replies)) if values]  # fmt: skip
    return (
        "## Lengths\n\nIn tokens, an estimate from above (two bytes a token). Trainers cut or drop what is longer than their"
        " limits, many by default at 1,024: set them by this.\n\n" + _table(("", "median", "90 %", "99 %", "longest"), lines)
    )


def _replies(row: Mapping[str, Any]) -> list[str]:
    for name in ("completion", "chosen"):
        if name in row:
            return [message["content"] for part in (name, "rejected") for message in row.get(part, ())]
    return list(row["known_completions"])


def _percentile(values: Sequence[int], q: int) -> int:
    return values[min(len(values) - 1, -(-len(values) * q // 100) - 1)]


def _rewards(card: Card) -> str:
    text = (
        f"## Rewards\n\nVersion `{REWARD_VERSION}`, worked out from stored facts. −1: no kernel in the reply, edits that do"
        " not apply, refused, not built, or caught cheating; −0.9: a repeat; −0.8: cannot be launched; −0.6: crashed or did"
        " not end; −0.4: wrong; right: log2 of the speed-up over the parent (over the fastest exemplar in contrastive"
        " rows, over the baseline where there is neither), from −0.3 to 4, and 0 within the larger of 2 %"
        " and three standard errors. What cannot be scored (an outage, a machine that did not hold still) is no row."
    )
    if card.form == "grpo":
        text += (
            "\n\n## Judging a reply\n\n`ground_truth` is JSON: `problem` (from which it can be made again), `target`,"
            " `environment_key`, `baseline`, `form` (`edit`: apply the blocks to `parents[0].source`; `rewrite`: take the"
            " code block), `parents` (digest, source, log ratio with interval, times by case) and `reward`, the version. A"
            " reward of null means that a reply cannot be scored; never 0."
        )
    return text


def _origins(card: Card) -> str:
    rows = card.all_rows
    facts = [fact for row in rows for fact in _facts_of(row)]
    environments = Counter((row["environment"]["key"], row["environment"]["identity"]) for row in rows)
    problems = Counter(row["problem"]["title"] for row in rows)
    generators = Counter(fact["generator"] or "no model" for fact in facts)
    adapters = Counter(fact["adapter"] for fact in facts if fact["adapter"])
    operators = Counter(fact["operator"] for fact in facts)
    licences = Counter(row["licence"] for row in rows)
    known = [(key, _in_words(identity), n) for (key, identity), n in sorted(environments.items())]
    return "\n\n".join(
        [
            "## Where it comes from",
            f"Problems: {_listed(problems)}. Operators: {_listed(operators)}. Generators: {_listed(generators)}."
            f" Adapters: {_listed(adapters) if adapters else 'none'}. Licences: {_listed(licences)}.",
            "Times are compared only within one environment:",
            _table(("environment", "what it is", "rows"), known),
        ]
    )


def _facts_of(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if "chosen_facts" in row:
        return [row["chosen_facts"], row["rejected_facts"]]
    return list(row["known_facts"]) if "known_facts" in row else [row]


def _in_words(identity: str) -> str:
    return ", ".join(f"{name} {value}" for name, value in json.loads(identity).items())


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({n})" for name, n in sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _loading(card: Card) -> str:
    lines = ["## Loading", "```python", "from datasets import load_dataset", "", 'data = load_dataset("THIS FOLDER")', "```"]
    if card.layout == "trl":
        trainer = _LOADS["trl"][card.form]
        lines.append(f"`data` goes to trl's `{trainer}` as it is; columns that it does not know are passed over.")
    elif card.layout == "verl":
        suffix = "data/train.parquet" if card.parquet else "jsonl/train.jsonl, once it is written as Parquet"
        lines.append(f"verl reads `{suffix}` by `data.train_files`; set `data.max_prompt_length` by *Lengths*.")
    else:
        keys = {
            "sft": "--input_key prompt --output_key completion",
            "contrastive": "--input_key prompt --output_key completion",
            "dpo": "--prompt_key prompt --chosen_key chosen --rejected_key rejected",
            "kto": "--input_key prompt --output_key completion --label_key label",
            "grpo": "--input_key prompt --label_key label",
        }[card.form]
        lines.append(f"OpenRLHF reads it with `{keys} --apply_chat_template`.")
    return "\n".join(lines[:1]) + "\n\n" + "\n".join(lines[1:])
