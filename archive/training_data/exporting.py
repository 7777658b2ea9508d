"""An archive into a folder of training data; see `docs/DATA.md` for what every form holds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archive.store import Store
from archive.training_data import groups, single
from archive.training_data.card import Card, card_text
from archive.training_data.drafts import Balance, Draft, Workshop
from archive.training_data.layouts import FORMATS, LAYOUTS, check_layout, columns_of, laid_out
from archive.training_data.material import Material
from archive.training_data.normal import normal_text
from archive.training_data.rendering import Renderer
from archive.training_data.splitting import SPLITS, plan_splits
from archive.training_data.writing import filling, has_parquet, write_split
from evo_l2.errors import ConfigurationError, StorageError

__all__ = ["SPLIT_BY", "ExportedData", "Options", "export_training_data", "select"]

SPLIT_BY = ("both", "lineage", "shape")
_MAKERS: Mapping[str, Callable[[Workshop], Iterator[Draft]]] = {
    "sft": single.sft,
    "dpo": groups.dpo,
    "kto": single.kto,
    "grpo": groups.grpo,
    "contrastive": groups.contrastive,
}


@dataclass(frozen=True, slots=True)
class Options:
    """How training data are made.

    Raises:
        ConfigurationError: A value is not one of those that there are.
    """

    form: str
    """`sft`, `dpo`, `kto`, `grpo` or `contrastive`."""
    layout: str = "trl"
    """Whose columns: `trl`, `verl` or `openrlhf`."""
    run: str | None = None
    """Only candidates of this run; splits are those of the whole archive all the same."""
    per_cell: int = 32
    """Most rows of one cell, or of one kind of failure."""
    per_root: int = 256
    """Most rows that go back to one seed."""
    split_by: str = "both"
    """What no two splits may share: `lineage`, `shape`, or `both`."""
    licence: str = "unknown"
    """SPDX identifier of what the archive's own runs made."""

    def __post_init__(self) -> None:
        for name, value, known in (
            ("format", self.form, FORMATS),
            ("layout", self.layout, LAYOUTS),
            ("split", self.split_by, SPLIT_BY),
        ):
            if value not in known:
                raise ConfigurationError(f"no such {name}", expected=" or ".join(known), found=value)
        if self.per_cell < 1 or self.per_root < 1:
            found = f"{self.per_cell} and {self.per_root}"
            raise ConfigurationError("the caps leave no row", expected="1 or more", found=found)
        check_layout(self.form, self.layout)


@dataclass(frozen=True, slots=True)
class ExportedData:
    """What an export wrote."""

    directory: Path
    n_rows: Mapping[str, int]
    """By split; those without a row are left out."""
    dropped: Mapping[str, int]
    """How many were left out, by reason."""
    parquet: bool
    """Whether Parquet was written too."""


def select(store: Store, options: Options, renderer: Renderer) -> tuple[Workshop, dict[str, list[Draft]]]:
    """The rows by split, before they are laid out; and the workshop with its tally.

    Raises:
        StorageError: There is no such run.
    """
    if options.run is not None:
        store.run_info(options.run)
    material = Material(store, options.licence)
    plan = plan_splits(material.facts, material.places, material.normal, options.split_by)
    shop = Workshop(material, renderer, plan, Balance(options.per_cell, options.per_root), options.run)
    drafts: defaultdict[str, list[Draft]] = defaultdict(list)
    for draft in _MAKERS[options.form](shop):
        drafts[draft.split].append(draft)
    return shop, _without_repeats(shop, drafts)


def _without_repeats(shop: Workshop, drafts: Mapping[str, Sequence[Draft]]) -> dict[str, list[Draft]]:
    """Each split in order of the rows' names; no completion of one stands in another, and no row twice.

    An edit of one line may well be the same in two lines of descent, so this is more than the plan of splits can see to.
    """
    taken: dict[str, str] = {}
    rows: dict[str, list[Draft]] = {}
    for split in SPLITS:
        names: set[str] = set()
        kept = []
        for draft in sorted(drafts.get(split, ()), key=lambda draft: str(draft.values["id"])):
            texts = {normal_text(text) for text in draft.completions}
            if draft.values["id"] in names:
                shop.drop("the same row stands there already")
            elif any(taken.get(text, split) != split for text in texts):
                shop.drop("a completion of it stands in another split")
            else:
                names.add(draft.values["id"])
                taken.update((text, taken.get(text, split)) for text in texts)
                kept.append(draft)
        if kept:
            rows[split] = kept
    return rows


def export_training_data(store: Store, directory: Path, options: Options, renderer: Renderer) -> ExportedData:
    """Writes rows and dataset card; the same archive and options give the same bytes.

    Args:
        store: The archive.
        directory: Made when it is missing; has to be empty. It appears when all is written, or not at all.
        options: Form, layout, caps, splits.
        renderer: Writes prompts and replies where no model did.

    Raises:
        ConfigurationError: The layout has no columns for the form.
        StorageError: No such run, nothing to export, or the folder is not empty or cannot be written.
    """
    with filling(directory) as folder:
        shop, drafts = select(store, options, renderer)
        if not drafts:
            raise _nothing(options, shop, store.place)
        columns = columns_of(options.form, options.layout)
        parquet = has_parquet()
        written: dict[str, list[dict[str, Any]]] = {}
        for split, members in drafts.items():
            rows = laid_out([draft.values for draft in members], options.form, options.layout, split)
            write_split(folder, split, rows, columns, parquet=parquet)
            written[split] = [draft.values for draft in members]
        card = Card(options.form, options.layout, columns, written, dict(shop.dropped), shop.plan, parquet)
        text = card_text(card, renderer.count_tokens, (options.per_cell, options.per_root))
        (folder / "README.md").write_text(text, encoding="utf-8", newline="\n")
    n_rows = {split: len(rows) for split, rows in written.items()}
    return ExportedData(directory, n_rows, dict(sorted(shop.dropped.items())), parquet)


def _nothing(options: Options, shop: Workshop, place: str) -> StorageError:
    wanted = {
        "sft": "a kernel that is right and was timed",
        "kto": "a candidate that failed, or is faster or slower than its parent beyond the interval",
        "dpo": "two candidates of one parent, one clearly better",
        "grpo": "a candidate whose parent is right and was timed",
        "contrastive": "three kernels of one split that differ in speed beyond their intervals",
    }[options.form]
    counts = Counter(fact.status.value if fact.status is not None else fact.outcome.value for fact in shop.chosen)
    found = ", ".join(f"{n} {name}" for name, n in counts.most_common(4)) or "no candidate"
    reasons = Counter(shop.dropped).most_common(1)
    if reasons:
        found += f"; {reasons[0][1]} left out: {reasons[0][0]}"
    return StorageError(
        f"nothing to export as {options.form}", expected=wanted, found=found, hint=f"evo-l2 archive stats {place}"
    )
