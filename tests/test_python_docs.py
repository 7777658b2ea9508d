"""docs/PYTHON.md: its snippets run one after another as they stand, and its table names every member of a problem."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from evo_l2.errors import DeviceError
from evo_l2.problem import Problem

TEXT = (Path(__file__).parent.parent / "docs" / "PYTHON.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def test_the_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "snippets"}
    assert len(SNIPPETS) == 4
    for snippet in SNIPPETS:
        try:
            exec(compile(snippet, "docs/PYTHON.md", "exec"), names)
        except DeviceError as error:
            if "did not hold still" in str(error):
                pytest.skip(str(error))
            raise
    said = capsys.readouterr().out
    assert "smoke: HGEMM 64x64x64" in said
    assert "the budget of evaluations is spent 6" in said
    assert re.search(r"^(passed|inconclusive) None None$", said, re.MULTILINE)
    assert re.search(r"^0 seed evaluated \d", said, re.MULTILINE)
    assert re.search(r"^tunable \w+ (up|down) \d", said, re.MULTILINE)
    assert re.search(r"^\d of 150 cells, QD score", said, re.MULTILINE)
    assert re.search(r"^\('run', 'idx', .*'n_fma'\) \d", said, re.MULTILINE)


def test_every_member_of_a_problem_is_named() -> None:
    named = set(re.findall(r"`(\w+)`", " ".join(line.split("|")[1] for line in TEXT.split("\n") if line.startswith("| `"))))
    assert named == {name for name in vars(Problem) if not name.startswith("_")}
