"""What `evo-l2 archive export --format sft|dpo|kto|grpo|contrastive` does and prints."""

from __future__ import annotations

import json
from pathlib import Path

from archive.address import Address
from archive.read_only import open_to_read
from archive.training_data import Options, export_training_data
from experiments.rendering import PromptRenderer
from experiments.summary_page import counted

__all__ = ["export_rows"]


def export_rows(db: Address, folder: Path, options: Options, prompt_tokens: int, *, as_json: bool) -> None:
    """Writes training data and its card, and says what was written and what was left out.

    Raises:
        ConfigurationError: The options do not fit together.
        StorageError: The database cannot be read, holds nothing for this form, or the folder cannot be used.
    """
    renderer = PromptRenderer(prompt_tokens)
    with open_to_read(db) as store:
        done = export_training_data(store, folder, options, renderer)
    if as_json:
        facts = {"folder": str(done.directory), "rows": dict(done.n_rows), "dropped": dict(done.dropped)}
        print(json.dumps({**facts, "parquet": done.parquet}, indent=2))
        return
    total = sum(done.n_rows.values())
    by_split = ", ".join(f"{split} {n}" for split, n in done.n_rows.items())
    print(f"{counted(total, 'row')} for {options.form} in {done.directory}: {by_split}")
    for why, n in sorted(done.dropped.items(), key=lambda item: (-item[1], item[0])):
        print(f"  {n} left out: {why}")
    if not done.parquet:
        print("  JSONL only: pip install 'evo-l2[tables]' for Parquet")
    print("the card README.md says what is in it and how to load it")
