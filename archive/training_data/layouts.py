"""The same rows in the columns that other trainers read: verl and OpenRLHF."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from archive.training_data.columns import COLUMNS, MESSAGES, Column
from evo_l2.errors import ConfigurationError

__all__ = ["FORMATS", "LAYOUTS", "columns_of", "laid_out"]

FORMATS = tuple(COLUMNS)
LAYOUTS = ("trl", "verl", "openrlhf")

_VERL = ("sft", "grpo", "contrastive")
_SOURCE = Column("data_source", "text", "Which reward function judges it: `evo-l2/PROBLEM`.")
_TRUTH = Column(
    "reward_model", {"style": "text", "ground_truth": "text"}, "Style `rule`, and what a reward function needs, as JSON."
)


def check_layout(form: str, layout: str) -> None:
    """Refuses what no trainer reads.

    Raises:
        ConfigurationError: The layout has no columns for this form.
    """
    if layout == "verl" and form not in _VERL:
        expected = f"--format {', '.join(_VERL[:-1])} or {_VERL[-1]}"
        raise ConfigurationError(f"verl has no trainer for {form}", expected=expected, found=form, hint="--layout trl")


def columns_of(form: str, layout: str) -> tuple[Column, ...]:
    """The columns of a form in a layout, in order.

    Raises:
        ConfigurationError: The layout has no columns for this form.
    """
    check_layout(form, layout)
    own = COLUMNS[form]
    if layout == "openrlhf":
        more = [Column("datasource", "text", "Which reward function judges it: `evo-l2/PROBLEM`.")]
        if form == "grpo":
            more.insert(0, Column("label", "text", "The ground truth once more, under the name that is passed to rewards."))
        return (*own, *more)
    if layout == "trl":
        return own
    rest = {column.name: column.kind for column in own if column.name not in ("prompt", "ground_truth")}
    extra = Column(
        "extra_info", {"split": "text", "index": "whole", **rest}, "Split, number of the row, and all other columns."
    )
    if form == "sft":
        said = Column("messages", MESSAGES, "Prompt and reply in one list, as verl's trainer for SFT reads them.")
        return (_SOURCE, said, extra)
    prompt = own[0]
    return (_SOURCE, prompt, Column("ability", "text", "`kernel`."), _TRUTH, extra)


def laid_out(rows: Iterable[Mapping[str, Any]], form: str, layout: str, split: str) -> list[dict[str, Any]]:
    """The rows of one split with the columns of a layout."""
    if layout == "trl":
        return [dict(row) for row in rows]
    made = []
    for index, row in enumerate(rows):
        source = f"evo-l2/{json.loads(row['problem']['definition']).get('name', 'kernel')}"
        if layout == "openrlhf":
            made.append({**row, "datasource": source, "label": row.get("ground_truth", row.get("label"))})
            continue
        one = {"data_source": source, "extra_info": {**row, "split": split, "index": index}}
        if form == "sft":
            one["messages"] = [*row["prompt"], *row["completion"]]
        else:
            truth = row.get("ground_truth") or json.dumps(_truth(row), sort_keys=True)
            one |= {"prompt": row["prompt"], "ability": "kernel", "reward_model": {"style": "rule", "ground_truth": truth}}
        made.append(one)
    return made


def _truth(row: Mapping[str, Any]) -> dict[str, Any]:
    """What judging a reply takes where the form has no ground truth of its own; the fastest exemplar comes first."""
    return {
        "problem": json.loads(row["problem"]["definition"]),
        "problem_key": row["problem"]["key"],
        "environment_key": row["environment"]["key"],
        "target": row["environment"]["target"],
        "form": row["form"],
        "parents": [
            {
                "digest": one["facts"]["digest"],
                "source": one["source"],
                "log_ratio": math.log(one["speedup"]),
                "log_low": math.log(one["speedup_low"]),
                "log_high": math.log(one["speedup_high"]),
            }
            for one in reversed(row.get("exemplars", ()))
        ],
        "baseline": row["baseline"]["name"],
        "reward": row["reward_version"],
    }
