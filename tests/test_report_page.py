"""The page that `evo-l2 report` writes: what its numbers are, that nothing in it can run or load, and what stops it."""

from __future__ import annotations

import errno
import html.parser
import json
import math
import os
import random
import re
import sqlite3
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import report_archive
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from archive.store import Store
from evo_l2.contracts import AddStatus, Outcome
from evo_l2.errors import StorageError
from evo_l2.evaluation import Estimate, Status
from experiments.cli import main
from experiments.printable import printable
from experiments.report_page import charts, counts_charts, descent, diffs, kernels, markup, several, sheets, tallies
from experiments.report_page.facts import CandidateRow, CellRow, RunFacts, RunRow
from experiments.report_page.page import default_axes, page
from experiments.report_page.reading import read_run, read_runs
from experiments.report_page.writing import write_report

VOID = {"meta", "link", "img", "br", "hr", "input"}


class Tags(html.parser.HTMLParser):
    """Elements of a page with their attributes, its text, and whether every element was closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, name: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((name, dict(attrs)))
        if name not in VOID:
            self.open.append(name)

    def handle_endtag(self, name: str) -> None:
        assert self.open.pop() == name

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)
        elif self.open and self.open[-1] != "style":
            self.words.append(data)

    def ids(self) -> list[str]:
        return [value for _, attributes in self.found if (value := attributes.get("id")) is not None]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs of 40 candidates, the last in another environment."""
    return report_archive.archive_of(tmp_path_factory.mktemp("report") / "a.db", 40, runs=3)


@pytest.fixture(scope="module")
def facts(archive: Path) -> RunFacts:
    with Store.open(archive, create=False) as store:
        return read_run(store, "search-2")


def made(facts: RunFacts, rows: tuple[RunRow, ...] = (), library: str = "/* plotly */") -> str:
    return page(facts, rows, len(rows), library, "made now")


def row(index: int, speedup: float | None = None, **changes: Any) -> CandidateRow:
    """A candidate that passed, at a speed-up."""
    value = Estimate(math.log(speedup), math.log(speedup * 0.9), math.log(speedup * 1.1), 12) if speedup else None
    given = CandidateRow(
        index, "edit", Outcome.EVALUATED, Status.PASSED, digest=f"d{index}", identity=f"i{index}", estimate=value,
        early=value, is_timed=True, cell=(0, 0, 0),
    )  # fmt: skip
    return replace(given, **changes)


# --- the facts --------------------------------------------------------------------------------------------------------


def test_the_grid_told_again_is_the_grid_of_the_run(archive: Path) -> None:
    with Store.open(archive, create=False) as store:
        for name in ("search", "search-2"):
            run, found = store.open_run(name), read_run(store, name)
            assert found.history[-1].n_elites == len(run.grid.elites)
            assert found.history[-1].qd_score == pytest.approx(run.grid.qd_score)
            assert [cell.digest for cell in found.cells] == [
                e.kernel.digest for e in sorted(run.elites(), key=lambda e: e.rank)
            ]


def test_the_second_run_begins_with_the_cells_of_the_first(archive: Path, facts: RunFacts) -> None:
    with Store.open(archive, create=False) as store:
        first = read_run(store, "search")
    assert facts.history[0].n_elites >= first.history[-1].n_elites > 1
    assert first.history[0].n_elites == 1


def test_a_kernel_that_is_withdrawn_leaves_the_grid_in_the_history_too(tmp_path: Path) -> None:
    path = report_archive.archive_of(tmp_path / "a.db", 20)
    with Store.open(path) as store:
        run = store.open_run()
        best = run.best()
        assert best is not None
        run.withdraw(best.kernel.digest, replace(best.verdict, status=Status.INCORRECT, gate="late", message="wrong now"))
        found = read_run(store)
        assert found.history[-1].n_elites == len(run.grid.elites)
        assert best.kernel.digest not in {cell.digest for cell in found.cells}
        assert found.best is not None
        assert found.best.digest != best.kernel.digest


def test_the_best_is_the_best_of_those_that_were_measured_again(facts: RunFacts, archive: Path) -> None:
    assert facts.best is not None
    assert facts.best.is_final
    with Store.open(archive, create=False) as store:
        elite = store.open_run("search-2").get(facts.best.digest)
    assert any(session.purpose == "final" for session in elite.sessions)
    assert facts.best.estimate is not None
    assert facts.best.estimate.n_blocks == 80


def test_a_kernel_that_is_ahead_by_one_look_is_not_the_best(tmp_path: Path) -> None:
    path = report_archive.archive_of(tmp_path / "a.db", 10)
    with Store.open(path) as store:
        before = read_run(store).best
        digest = report_archive.add_one(store.open_run(), 5.0)
        found = read_run(store)
    assert found.cells[0].digest == digest
    assert found.best == before
    assert before is not None
    assert before.is_final


def test_the_line_goes_from_a_seed_to_the_best_parent_by_parent(facts: RunFacts) -> None:
    assert facts.best is not None
    assert facts.line[0].operator == "seed"
    assert facts.line[-1].digest == facts.best.digest
    assert all(child.parents[0] == parent.digest for parent, child in zip(facts.line, facts.line[1:], strict=False))


def test_failures_are_all_that_failed(facts: RunFacts) -> None:
    failed = [r for r in facts.rows if not r.has_kernel or (r.status is not None and not r.status.is_good)]
    assert sum(failure.count for failure in facts.failures) == len(failed) > 0
    assert [failure.count for failure in facts.failures] == sorted((f.count for f in facts.failures), reverse=True)
    assert all(failure.message for failure in facts.failures)


def test_every_candidate_has_one_fate_and_the_funnel_narrows(facts: RunFacts) -> None:
    for tally in tallies.tally_operators(facts.rows):
        assert sum(tally.fates.values()) == tally.n_asked
        assert set(tally.fates) <= set(tallies.FATES)
    counts = [count for _, count in tallies.funnel(facts.rows)]
    assert counts[0] == len(facts.rows)
    assert counts == sorted(counts, reverse=True)


def test_gains_add_up_to_the_rise_over_the_best_seed() -> None:
    rows = [
        row(0, 1.0, operator="seed"), row(1, 2.0, operator="seed"), row(2, 1.5), row(3, 3.0), row(4, None),
        row(5, 4.0, operator="rewrite"),
    ]  # fmt: skip
    found = {tally.operator: tally for tally in tallies.tally_operators(rows)}
    assert found["seed"].gain == 0
    assert math.exp(found["edit"].gain) == pytest.approx(1.5)
    assert math.exp(found["rewrite"].gain) == pytest.approx(4 / 3)
    assert [r.index for r, _ in tallies.records(rows)] == [0, 1, 3, 5]


def test_what_was_built_and_not_run_has_no_stage_of_time() -> None:
    built = [row(i, status=Status.BUILT, is_timed=False, added=AddStatus.NEW) for i in range(3)]
    assert [name for name, _ in tallies.funnel(built)] == [
        "asked for",
        "a kernel",
        "a new one",
        "built",
        "past every gate",
        "took a cell",
    ]
    assert [name for name, _ in tallies.funnel([row(0, 1.0)])][-3:] == ["right", "timed", "took a cell"]


# --- the tree ---------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(0, 40), max_size=2), max_size=40), st.integers(3, 50))
def test_a_tree_has_each_child_right_of_its_parent_and_no_two_leaves_on_one_line(parents: list[list[int]], most: int) -> None:
    rows = [row(i, parents=tuple(f"d{p % i}" for p in those) if i else ()) for i, those in enumerate(parents)]
    tree = descent.lay_out(rows, [CellRow((i,), f"d{i}", None) for i in range(len(rows))], most=most)
    assert len(tree.nodes) + tree.n_left_out == len(rows)
    assert len(tree.nodes) <= most
    for parent, child in tree.edges:
        assert tree.nodes[child].depth == tree.nodes[parent].depth + 1
        assert tree.nodes[child].row.parents[0] == tree.nodes[parent].row.digest
    leaves = [node.height for i, node in enumerate(tree.nodes) if i not in {parent for parent, _ in tree.edges}]
    assert len(set(leaves)) == len(leaves) == tree.n_leaves
    kept = {node.row.digest for node in tree.nodes}
    if tree.n_left_out:
        assert all(parent in kept for node in tree.nodes for parent in node.row.parents)


# --- charts -----------------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """Names of colours in place of names of the style."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return "#123456" if isinstance(value, str) and value.startswith("var(--") else value


def every_chart(facts: RunFacts, rows: tuple[RunRow, ...]) -> list[charts.Chart]:
    found = [
        charts.progress_chart(facts.rows),
        charts.coverage_chart(facts.history, 150, is_run=True),
        charts.coverage_chart(facts.history, 150, is_run=False),
        charts.line_chart(facts.line),
        charts.tree_chart(descent.lay_out(facts.rows), facts.line, tallies.operator_order(facts.rows)),
        counts_charts.operators_chart(tallies.tally_operators(facts.rows)),
        counts_charts.funnel_chart(tallies.funnel(facts.rows)),
        counts_charts.failures_chart(facts.failures),
        counts_charts.cost_chart(tallies.tally_operators(facts.rows)),
    ]
    for place, group in enumerate(several.groups(rows)):
        found += [counts_charts.runs_chart(f"runs-{place}", group), counts_charts.runs_curves(f"curves-{place}", group)]
    return found


def test_plotly_knows_every_word_of_every_chart_and_all_have_titles_and_legends(archive: Path, facts: RunFacts) -> None:
    graph_objects = pytest.importorskip("plotly.graph_objects")
    with Store.open(archive, create=False) as store:
        rows = read_runs(store)
    for chart in every_chart(facts, rows):
        figure = graph_objects.Figure(plain(chart.figure))
        assert len(figure.data) > 0, chart.name
        for name in ("xaxis", "yaxis"):
            assert chart.figure["layout"][name]["title"]["text"], chart.name
        assert all(trace["name"] for trace in chart.figure["data"])
        assert chart.label


def test_colours_are_those_of_the_style(facts: RunFacts) -> None:
    style = (Path(charts.__file__).parent / "page.css").read_text(encoding="utf-8")
    light, dark = style.split("@media screen and (prefers-color-scheme: dark)")
    used = set(re.findall(r"var\((--[a-z0-9]+)\)", json.dumps([chart.figure for chart in every_chart(facts, ())])))
    used |= set(re.findall(r"var\((--[a-z0-9]+)\)", (Path(charts.__file__).parent / "page.js").read_text(encoding="utf-8")))
    assert used
    for half in (light, dark.split("* {")[0]):
        assert used <= set(re.findall(r"(--[a-z0-9]+):", half))


def test_a_chart_of_many_points_is_thinned_says_so_and_keeps_seeds_and_records() -> None:
    rng = random.Random(1)
    rows = [row(i, rng.uniform(0.1, 0.2) + i * 1e-6, operator="seed" if i < 3 else "edit") for i in range(10_000)]
    rows[7777] = row(7777, 0.9)
    chart = charts.progress_chart(rows)
    drawn = {x for trace in chart.figure["data"] if trace["mode"] == "markers" for x in trace["x"]}
    assert {0, 1, 2, 7777} <= drawn
    assert len(drawn) < 1.2 * charts.MOST_POINTS
    assert chart.note is not None
    assert f"{len(drawn):,} of 10,000" in chart.note
    assert charts.progress_chart(rows[:100]).note is None


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(1e-4, 1e3), min_size=1, max_size=20))
def test_an_axis_holds_all_its_values_and_is_logarithmic_where_they_are_far_apart(values: list[float]) -> None:
    axis = charts.log_axis(values)
    low, high = axis["range"]
    is_log = axis.get("type") == "log"
    for value in values:
        assert low <= (math.log10(value) if is_log else value) <= high
    assert is_log == (max(values) / min(values) > 3)
    if is_log:
        assert len(axis["tickvals"]) >= 1


def test_runs_of_different_environments_are_never_in_one_chart(archive: Path, facts: RunFacts) -> None:
    with Store.open(archive, create=False) as store:
        rows = read_runs(store)
    assert [[run.name for run in group] for group in several.groups(rows)] == [["search", "search-2"], ["search-3"]]
    text = made(facts, rows)
    data = json.loads(re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)[0])
    for chart in data["charts"]:
        if chart["name"].startswith(("runs", "curves")):
            named = json.dumps(chart["data"])
            assert ("search-3" in named) != ('"search"' in named or '"search-2"' in named)


def test_the_axes_of_the_heat_map_are_those_that_spread_most() -> None:
    assert default_axes([(0, 1, 5), (0, 2, 6), (1, 3, 5)], 3) == [0, 1]
    assert default_axes([(0, 1, 5), (0, 1, 6), (0, 3, 7)], 3) == [1, 2]
    assert default_axes([(4,)], 1) == [0, 0]


# --- text of strangers ------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.text(alphabet=st.characters(exclude_categories=()), max_size=60))
def test_any_text_stays_text_in_html_in_data_and_in_charts(words: str) -> None:
    inside = Tags(f"<p>{markup.tag('td', words, title=words)}</p>")
    assert [name for name, _ in inside.found] == ["p", "td"]
    assert inside.found[1][1] == {"title": printable(words).replace("\n", " ")}
    block = markup.json_block({words: [words, math.nan, math.inf]})
    content = block.removeprefix('<script type="application/json">').removesuffix("</script>")
    assert content.isascii()
    assert not set("<>&") & set(content)
    assert json.loads(content) == {words: [words, None, None]}
    assert "<" not in markup.chart_text(words).replace("<br>", "")


def test_no_text_leaves_its_attribute() -> None:
    inside = Tags(markup.tag("td", "x", title=report_archive.HOSTILE, class_=None))
    assert inside.found == [("td", {"title": printable(report_archive.HOSTILE)})]


def test_hostile_text_in_every_field_is_shown_and_makes_no_element(tmp_path: Path) -> None:
    with Store.open(report_archive.hostile_archive(tmp_path / "h.db"), create=False) as store:
        found = read_run(store)
        rows = read_runs(store)
    text = made(
        found, (*rows, replace(rows[0], name=report_archive.HOSTILE.replace("\ud800", ""), environment_key="another"))
    )
    tags = Tags(text)
    assert tags.open == []
    names = {name for name, _ in tags.found}
    assert not names & {"img", "iframe", "object", "embed", "form", "base", "svg"}
    assert [name for name, _ in tags.found].count("script") == 3
    assert not any(key.startswith("on") for _, attributes in tags.found for key in attributes)
    links = [attributes["href"] or "" for name, attributes in tags.found if name == "a"]
    assert links
    assert all(link.startswith("#") for link in links)
    words = " ".join(tags.words)
    assert words.count("<img src=x onerror='window.pwned=2'>") > 10
    assert "\\u2028" in words
    assert not {"\u2028", "\u202e", "\x00", "\x1b"} & set(text)
    text.encode("utf-8")


def test_only_the_scripts_that_the_page_was_made_with_may_run(facts: RunFacts) -> None:
    text = made(facts, library="window.plotly = 1;")
    (policy,) = [a["content"] or "" for n, a in Tags(text).found if n == "meta" and a.get("http-equiv")]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-eval" not in policy
    assert not re.search(r"script-src[^;]*unsafe-inline", policy)
    assert not re.search(r"https?:", policy)
    assert not re.search(r'(src|href)="(?!#|data:)', text)


# --- the page ---------------------------------------------------------------------------------------------------------


def test_every_link_of_the_page_leads_somewhere_and_every_chart_has_a_place(archive: Path, facts: RunFacts) -> None:
    with Store.open(archive, create=False) as store:
        text = made(facts, read_runs(store))
    tags = Tags(text)
    ids = tags.ids()
    assert len(ids) == len(set(ids))
    assert {a["href"] for n, a in tags.found if n == "a"} <= {f"#{name}" for name in ids}
    data = json.loads(re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)[0])
    assert len(data["charts"]) >= 9
    assert {f"chart-{chart['name']}" for chart in data["charts"]} <= set(ids)
    for word in (
        "Progress",
        "Cells",
        "Descent",
        "Operators",
        "Failures",
        "Cost",
        "Side by side",
        "Kernels",
        "Runs of this archive",
    ):
        assert word in tags.words
    assert facts.info.environment.identity["baseline"] in tags.words


def test_tables_say_without_script_what_the_charts_show(facts: RunFacts) -> None:
    words = Tags(made(facts)).words
    assert facts.best is not None
    assert facts.best.estimate is not None
    low, high = facts.best.estimate.interval
    assert any(f"{low:.3f} to {high:.3f}" in word for word in words)
    for failure in facts.failures:
        assert failure.message in words
    for operator in tallies.operator_order(facts.rows):
        assert operator in words
    assert sum("hgemm(A: in" in word for word in words) >= len(facts.kernels)


def test_the_steps_show_what_changed(facts: RunFacts) -> None:
    assert len(facts.line) > 2
    words = Tags(made(facts)).words
    assert sum(word.startswith("what changed: ") for word in words) == len(facts.line) - 1
    assert diffs.n_changed("a\nb\nc", "a\nx\ny\nc") == (2, 1)
    assert '<span class="del">-b</span>' in diffs.diff_markup("a\nb\nc", "a\nx\nc")
    assert diffs.n_changed("--a\n++b", "--a\n++c") == (1, 1)


@pytest.mark.parametrize("n", [0, 1])
def test_a_run_that_hardly_began_has_its_page(n: int, tmp_path: Path) -> None:
    with Store.open(report_archive.archive_of(tmp_path / "a.db", n), create=False) as store:
        found = read_run(store)
    tags = Tags(made(found))
    assert tags.open == []
    assert "NaN" not in " ".join(tags.words)
    assert ("The run has no candidates yet." in tags.words) == (n == 0)


def test_sources_are_cut_and_left_out_before_the_page_grows(
    facts: RunFacts, monkeypatch: pytest.MonkeyPatch, archive: Path
) -> None:
    monkeypatch.setattr(sheets, "MOST_CHARACTERS", 9000)
    with Store.open(archive, create=False) as store:
        found = read_run(store, "search-2")
    assert all(len(sheet.source) == 900 and sheet.n_cut > 0 for sheet in found.kernels)
    assert len(found.kernels) == 10
    assert found.n_unshown > 0
    assert found.kernels[0].digest == facts.kernels[0].digest == (facts.best.digest if facts.best else "")
    words = " ".join(Tags(made(found)).words)
    assert "more characters are left out" in words
    assert f"{found.n_unshown:,} more elites are left out" in words


def test_samples_are_thinned_to_a_bound_and_counted() -> None:
    session = report_archive.timed(random.Random(1), 1.0, n_blocks=500)
    thin = sheets.thinned([session] * 20)
    assert len(thin) == sheets.MOST_SESSIONS
    assert {len(case.kept) for one in thin for case in one.cases} == {sheets.MOST_BLOCKS}
    assert sheets.thinned([report_archive.timed(random.Random(1), 1.0)])[0].cases[0].kernel_us


def test_two_kernels_are_described_by_the_same_names(facts: RunFacts) -> None:
    timed = [sheet for sheet in facts.kernels if sheet.estimate is not None and sheet.operator == "edit"]
    assert len(timed) > 1
    assert [name for name, _ in kernels.facts_of(timed[0])] == [name for name, _ in kernels.facts_of(timed[1])]
    assert kernels.launch_of("//! layout nn\n//! workspace A 1\n//! workspace B 2\nint x;") == [
        ("layout", "nn"),
        ("workspace", "A 1; B 2"),
    ]


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_writes_one_page_and_says_what_is_in_it(archive: Path, tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    output = tmp_path / "r.html"
    done = CliRunner().invoke(main, ["report", str(archive), "-o", str(output), "--run", "search", "--json"])
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert (facts["run"], facts["n_candidates"], facts["n_runs"]) == ("search", 40, 3)
    assert facts["n_bytes"] == output.stat().st_size < 6e6
    again = CliRunner().invoke(main, ["report", str(archive), "-o", str(output)])
    assert again.exit_code == 0, again.output
    assert "run search-3 of 3 runs, 40 candidates" in again.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("EVO_L2_SOAK"), reason="takes long: EVO_L2_SOAK=1")
def test_a_run_of_a_thousand_candidates_stays_below_six_megabytes(tmp_path: Path) -> None:
    offline = pytest.importorskip("plotly.offline")
    with Store.open(report_archive.archive_of(tmp_path / "a.db", 1000, padding=3000), create=False) as store:
        found = read_run(store)
    assert len(page(found, (), 1, offline.get_plotlyjs(), "now").encode()) < 6e6


def test_nothing_is_written_over_but_an_earlier_page(archive: Path, tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    for name, content in (("notes.html", b"mine"), ("other.db", archive.read_bytes())):
        kept = tmp_path / name
        kept.write_bytes(content)
        done = CliRunner().invoke(main, ["report", str(archive), "-o", str(kept)])
        assert done.exit_code == 2
        assert "is not written over: expected no such file, or an earlier report" in done.stderr
        assert kept.read_bytes() == content
    done = CliRunner().invoke(main, ["report", str(archive), "-o", str(tmp_path / "no" / "r.html")])
    assert done.exit_code == 2
    assert "mkdir -p" in done.stderr
    done = CliRunner().invoke(main, ["report", str(archive), "-o", str(tmp_path)])
    assert done.exit_code == 2
    assert "found a folder" in done.stderr


def test_a_run_that_is_not_there_is_one_line_and_no_file(archive: Path, tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    output = tmp_path / "r.html"
    done = CliRunner().invoke(main, ["report", str(archive), "-o", str(output), "--run", "nobody"])
    assert done.exit_code == 1
    assert done.stderr == "evo-l2: no such run: expected one of search-3, search-2, search, found nobody\n"
    assert not output.exists()


def test_rows_that_cannot_be_read_are_one_line_and_no_file(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    path, output = report_archive.archive_of(tmp_path / "a.db", 3), tmp_path / "r.html"
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TRIGGER candidates_no_update")
        connection.execute("UPDATE candidates SET seconds = '{' WHERE idx = 1")
    done = CliRunner().invoke(main, ["report", str(path), "-o", str(output)])
    assert done.exit_code == 1
    assert done.stderr.startswith(
        "evo-l2: the archive holds rows that cannot be read: expected rows of its tables, found JSON"
    )
    assert not output.exists()


def test_a_disk_that_is_full_leaves_the_earlier_page(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("plotly")
    output = tmp_path / "r.html"
    write_report(archive, output)
    before = output.read_bytes()

    def full(handle: int, mode: str) -> None:
        os.close(handle)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fdopen", full)
    with pytest.raises(StorageError, match="No space left on device"):
        write_report(archive, output)
    assert output.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]


def test_without_plotly_the_command_says_what_to_install(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    done = CliRunner().invoke(main, ["report", str(archive), "-o", str(tmp_path / "r.html")])
    assert done.exit_code == 2
    assert done.stderr == (
        "evo-l2: no report is made: expected the package plotly, found none; try: pip install 'evo-l2[report]'\n"
    )
