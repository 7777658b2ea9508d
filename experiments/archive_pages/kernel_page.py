"""`evo-l2 archive show`."""

from __future__ import annotations

import json

from rich.console import Console
from rich.syntax import Syntax
from rich.text import Text

from archive.address import Address
from archive.mining import KernelFacts, show
from archive.read_only import open_to_read
from experiments.archive_pages.words import estimate_facts, estimate_in_words
from experiments.printable import printable
from experiments.summary_page import counted, indented
from experiments.verifying import built_in_words

__all__ = ["print_kernel"]


def print_kernel(db: Address, digest: str, *, as_json: bool) -> None:
    """One kernel of the archive, right or wrong, over all runs.

    Raises:
        ConfigurationError: No kernel, or more than one, begins with these digits.
        StorageError: The database cannot be read.
    """
    with open_to_read(db) as store:
        facts = show(store, digest)
    if as_json:
        print(json.dumps(_kernel(facts), indent=2))
        return
    console = Console(highlight=False)
    console.print(Text.assemble(("kernel ", "bold"), facts.digest), soft_wrap=True)
    for found in facts.judgements:
        console.print(Text(f"{found.problem_title}, environment {found.environment_key}", style="bold"))
        if found.estimate is not None:
            console.print(Text(f"  {estimate_in_words(found.estimate)}, {counted(found.n_sessions, 'session')}"))
        else:
            console.print(
                Text(
                    f"  {found.status.value}"
                    + (f" at gate {found.gate}: {printable(found.message or '')}" if found.gate else "")
                )
            )
        if found.cell is not None:
            console.print(Text(f"  cell: {found.cell}"))
        if found.resources:
            console.print(Text("  built:"))
            console.print(Text(indented(built_in_words(found.resources), console.width, 4)), soft_wrap=True)
    console.print(Text("descent", style="bold"))
    for ancestor in facts.lineage:
        speed = f"{ancestor.estimate.speedup:.3f}x at first" if ancestor.estimate is not None else "no time of its own"
        indent = "  " * min(ancestor.depth + 1, 12)
        console.print(Text(f"{indent}{ancestor.digest[:12]} {ancestor.operator}, {ancestor.run} #{ancestor.index}, {speed}"))
    if console.is_terminal:
        console.print(Syntax(printable(facts.kernel.source), "c", background_color="default"))
    else:
        print(f"\n{printable(facts.kernel.source)}")


def _kernel(facts: KernelFacts) -> dict[str, object]:
    return {
        "digest": facts.digest,
        "target": facts.kernel.target,
        "judgements": [
            {
                "problem": found.problem_title,
                "environment": found.environment_key,
                "status": found.status.value,
                "gate": found.gate,
                "message": found.message,
                "resources": dict(found.resources),
                "cell": found.cell,
                "estimate": estimate_facts(found.estimate) if found.estimate is not None else None,
                "n_sessions": found.n_sessions,
            }
            for found in facts.judgements
        ],
        "lineage": [
            {
                "digest": ancestor.digest,
                "depth": ancestor.depth,
                "run": ancestor.run,
                "index": ancestor.index,
                "operator": ancestor.operator,
                "parents": list(ancestor.parents),
                "estimate": estimate_facts(ancestor.estimate) if ancestor.estimate is not None else None,
            }
            for ancestor in facts.lineage
        ],
        "source": facts.kernel.source,
    }
