"""What stands beside the code of a library: pyproject.toml, licence, tables, README."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from evo_l2 import __version__
from evo_l2.evaluation import Environment
from experiments.library.rows import Row, table_csv, table_markdown
from experiments.library.templates import filled

__all__ = ["documents"]

_HOLDER = "2026 the evo-l2 authors"


def documents(
    folder: Path,
    environment: Environment,
    rows: Sequence[Row],
    *,
    package: str,
    distribution: str,
    description: str,
    dependencies: Sequence[str],
    baseline: str,
    template: str,
    facts: Mapping[str, str],
) -> dict[Path, str]:
    """Texts by path.

    Args:
        folder: The library's.
        environment: Where the rows were measured.
        rows: What the library holds.
        package: Name under which it is imported.
        distribution: Name under which it is installed.
        description: One line.
        dependencies: What it needs, as pip takes it.
        baseline: What the kernels were timed against, in words.
        template: That of the README.
        facts: What the README says that only one target knows.
    """
    winner = rows[0].winner
    m, n, k, batch = winner.sizes
    readme = {
        "KEY": environment.key,
        "VERSION": __version__,
        "BASELINE": baseline,
        "TABLE": table_markdown(rows),
        "FACTS": "\n".join(f"| {_cell(name)} | {_cell(value)} |" for name, value in sorted(environment.identity.items())),
        "M": str(m),
        "N": str(n),
        "K": str(k),
        "BATCH": str(batch),
        "LAYOUT": winner.layout.upper(),
        "SUMS": winner.sums.upper(),
        **{name: _cell(value) for name, value in facts.items()},
    }
    project = {
        "DISTRIBUTION": re.sub(r"[^a-z0-9]+", "-", distribution.lower()).strip("-"),
        "VERSION": __version__,
        # A string of JSON is one of TOML.
        "DESCRIPTION": json.dumps(_cell(description)),
        "PACKAGE": package,
        "DEPENDENCIES": ", ".join(json.dumps(name) for name in dependencies),
        "MACHINE": os.uname().machine,
    }
    return {
        folder / "README.md": filled(template, readme),
        folder / "table.csv": table_csv(rows, environment, baseline),
        folder / "LICENSE.md": filled("both/LICENSE.md", {"HOLDER": _HOLDER, "PACKAGE": package}),
        folder / "pyproject.toml": filled("both/pyproject.toml", project),
    }


def _cell(text: str) -> str:
    """Words of an archive in a line of Markdown."""
    return re.sub(r"[^\x20-\x7e\xa0-\uffff]", " ", " ".join(text.split())).replace("|", "/")
