"""The page about the rogues' gallery is current."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_page_says_what_the_gallery_holds():
    command = [sys.executable, str(ROOT / "tests" / "rogues" / "table.py")]
    made = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    hint = "python tests/rogues/table.py > docs/ROGUES.md"
    assert made == (ROOT / "docs" / "ROGUES.md").read_text(encoding="utf-8"), hint
