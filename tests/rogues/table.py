"""Prints `docs/ROGUES.md` from the first lines of every kernel in the gallery.

python tests/rogues/table.py > docs/ROGUES.md
"""

import re
import sys
from pathlib import Path

FOLDERS = {
    "cpu": ("The CPU target", "`tests/test_rogues_cpu.py`"),
    "cuda": ("CUDA, before a launch", "`tests/test_rogues_cuda.py`; no card is needed"),
    "card": (
        "CUDA, on a card",
        "`tests/test_rogues_card.py`, marker `gpu`; without a card it is checked that builds let them through",
    ),
}
HEAD = """# The rogues' gallery

Kernels that cheat or are broken, each with the gate that has to stop it. This page is made by `python tests/rogues/table.py`.

Where several gates are named, any of them may come first. *Alone* marks a rogue that shows what its gate is for: with that
gate left out, it comes through all the others. A few are right in every call that counts, and pass; one that went
through a hole would stand here too: the table says which.
"""


def rows(folder):
    """What the first lines of each kernel of one folder say, as rows of a table."""
    for path in sorted((Path(__file__).parent / folder).glob("*.c*")):
        text = path.read_text(encoding="utf-8")
        facts = dict(re.findall(r"^// (rogue|expect|alone|then|passes): (.+)$", text, re.MULTILINE))
        gates = ", ".join(dict.fromkeys(f"`{pair.split()[1]}`" for pair in facts.get("expect", "").split(", ") if pair))
        gates = gates or f"none ({facts['passes'].partition(':')[0]})"
        note = f"; {facts['passes']}" if "passes" in facts else ""
        mark = " *alone*" if "alone" in facts else ""
        what = (facts["rogue"] + note).replace("|", "\\|").replace("<", "&lt;")
        yield f"| `{path.stem}` | {gates}{mark} | {what} |"


def page():
    """The whole page."""
    parts = [HEAD]
    for folder, (title, where) in FOLDERS.items():
        found = list(rows(folder))
        parts.append(f"## {title}\n\n{len(found)} kernels in `tests/rogues/{folder}/`, tried by {where}.\n")
        parts.append("\n".join(["| rogue | gate | what it does |", "|---|---|---|", *found]) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    sys.stdout.write(page())
