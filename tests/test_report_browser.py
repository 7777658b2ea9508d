"""The report in a real browser, from the file system: it draws, compares and unfolds, and asks for nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import browser as browsers
import pytest
import report_archive

from experiments.report_page import write_report

PLOTTED = "[...document.querySelectorAll('.chart')].filter(box => box.querySelector('svg.main-svg'))"
LATER = "new Promise(done => setTimeout(done, 400))"
"""Until the page has drawn again."""
PICK = "(list, value) => { list.value = value; list.dispatchEvent(new Event('change')); }"


@pytest.fixture(scope="module")
def browser() -> Iterator[browsers.Browser]:
    """One for all tests of this file. Continuous integration has to have it."""
    program = browsers.installed()
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("no browser: .ci/run installs chromium")
        pytest.skip("no browser: apt-get install chromium")
    pytest.importorskip("plotly")
    with browsers.Browser(program) as opened:
        yield opened


@pytest.fixture(scope="module")
def shown(browser: browsers.Browser, written: Path) -> browsers.Browser:
    """The browser with that page: most of the time of these tests is the reading of plotly's library."""
    browser.size(1280)
    browser.open(written)
    return browser


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the second of three runs."""
    folder = tmp_path_factory.mktemp("browser")
    archive = report_archive.archive_of(folder / "a.db", 30, runs=3)
    return write_report(archive, folder / "report.html", "search-2").path


def is_quiet(browser: browsers.Browser, path: Path) -> None:
    """No error, no warning, and nothing asked for but the page itself."""
    assert browser.problems == []
    assert browser.requests == [path.resolve().as_uri()]


def test_every_chart_is_drawn_and_the_page_is_quiet(shown: browsers.Browser, written: Path) -> None:
    names = shown.ask("[...document.querySelectorAll('.chart')].map(box => box.id)")
    assert shown.ask(f"{PLOTTED}.map(box => box.id)") == names
    assert len(names) >= 14
    assert shown.ask("document.querySelectorAll('#chart-progress .scatterlayer .point').length") > 25
    assert shown.ask("document.querySelectorAll('#chart-progress .errorbar').length") > 10
    assert shown.ask("document.querySelectorAll('#chart-tree .scatterlayer .point').length") > 10
    assert shown.ask("document.querySelectorAll('#chart-funnel .funnellayer .point').length") == 7
    assert shown.ask("document.querySelectorAll('#chart-operators .barlayer .point').length") > 8
    titles = shown.ask("[...document.querySelectorAll('.xtitle, .ytitle, .y2title')].map(one => one.textContent)")
    assert "speed-up (baseline time / kernel time)" in titles
    assert all(titles)
    legends = f"{PLOTTED}.filter(box => !box.querySelector('.legend, .colorbar, .cbtitle')).map(box => box.id)"
    assert shown.ask(legends) == ["chart-funnel"]
    is_quiet(shown, written)


def test_choosing_two_kernels_shows_their_facts_samples_and_diff(shown: browsers.Browser, written: Path) -> None:
    assert shown.ask("document.querySelectorAll('#compare-table tr.differs').length") > 3
    pick = (
        "(first, second) => { for (const [name, i] of [['first', first], ['second', second]]) {"
        " const list = document.getElementById('compare-' + name); list.selectedIndex = i;"
        " list.dispatchEvent(new Event('change')); }"
        " return document.getElementById('compare-diff').textContent; }"
    )
    diff = shown.ask(f"({pick})(1, 0)")
    sources = shown.ask("[0, 1].map(i => document.querySelectorAll('pre.source')[i].textContent)")
    marks = [next(line for line in source.split("\n") if line.startswith("// made as")) for source in sources]
    assert f"-{marks[1]}" in diff
    assert f"+{marks[0]}" in diff
    assert shown.ask("document.querySelectorAll('#chart-ratios .point').length") > 20
    assert shown.ask("document.querySelectorAll('#chart-samples .boxlayer .box').length") == 4
    assert shown.ask(f"({pick})(0, 0)") == "The sources are the same."
    assert shown.ask("document.querySelectorAll('#compare-table tr.differs').length") == 0
    is_quiet(shown, written)


def test_the_second_case_of_the_problem_can_be_looked_at(shown: browsers.Browser, written: Path) -> None:
    number = "one => Number(one.textContent.replace(/[^0-9.]/g, ''))"
    labels = f"[...document.querySelectorAll('#chart-samples .ytick')].map({number})"
    small = max(shown.ask(labels))
    shown.ask(f"({PICK})(document.getElementById('compare-case'), '1')")
    assert max(shown.ask(labels)) > 3 * small


def test_the_heat_map_changes_its_axes_and_leads_to_the_kernel(shown: browsers.Browser, written: Path) -> None:
    title = "document.querySelector('#chart-cells .xtitle').textContent"
    assert shown.ask(title) == "simd_bits"
    shown.ask(f"({PICK})(document.querySelector('#cells-axes select'), '2')")
    assert shown.ask(title) == "workspace_bytes"
    assert shown.ask("document.querySelectorAll('#chart-cells .annotation').length") > 3
    shown.ask(
        "(box => { const z = box.data[1].z; const y = z.findIndex(row => row.some(one => one !== null));"
        " const x = z[y].findIndex(one => one !== null); box.emit('plotly_click', {points: [{x, y}]}); })"
        "(document.getElementById('chart-cells'))"
    )
    shown.ask(LATER)
    assert shown.ask("document.querySelector(location.hash).open") is True


def test_a_link_unfolds_its_kernel_and_a_button_puts_it_side_by_side(shown: browsers.Browser, written: Path) -> None:
    assert shown.ask("document.getElementById('kernel-3').open") is False
    shown.ask("document.querySelector('a[href=\"#kernel-3\"]').click()")
    shown.ask(LATER)
    assert shown.ask("document.getElementById('kernel-3').open") is True
    shown.ask("document.querySelector('#kernel-5 .compare-button').click()")
    assert shown.ask("document.getElementById('compare-second').value") == "kernel-5"
    assert shown.ask("location.hash") == "#compare"


def fits(shown: browsers.Browser) -> bool:
    """Whether nothing is wider than the window, and the charts are as wide as their chapters."""
    inside = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    return bool(
        shown.ask(f"{inside} && {PLOTTED}.every(box => box.querySelector('svg.main-svg').clientWidth === box.clientWidth)")
    )


def test_dark_and_light_have_colours_of_their_own(shown: browsers.Browser) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    words = "getComputedStyle(document.querySelector('#chart-progress .legendtext')).fill"
    light = shown.ask(ground), shown.ask(words)
    shown.size(1280, dark=True)
    shown.ask(LATER)
    dark = shown.ask(ground), shown.ask(words)
    assert all(one != other for one, other in zip(light, dark, strict=True))


def test_the_page_and_its_charts_are_as_wide_as_the_window(shown: browsers.Browser) -> None:
    wide = "[...document.querySelectorAll('.scroll')].filter(one => one.scrollWidth > one.clientWidth).length"
    assert fits(shown)
    assert shown.ask(wide) == 0
    shown.size(420)
    shown.ask(LATER)
    assert fits(shown)
    assert shown.ask("document.getElementById('chart-progress').clientWidth") < 420
    assert shown.ask(wide) > 0
    assert shown.ask("[...document.querySelectorAll('.scroll')].every(one => one.tabIndex === 0)")


def test_hostile_text_runs_nowhere_and_is_shown_as_it_is(browser: browsers.Browser, tmp_path: Path) -> None:
    page = write_report(report_archive.hostile_archive(tmp_path / "h.db"), tmp_path / "h.html").path
    browser.size(1280)
    browser.open(page)
    assert browser.ask("window.pwned === undefined")
    assert browser.ask("document.querySelectorAll('main img, main iframe, main a:not([href^=\"#\"])').length") == 0
    assert browser.ask("document.querySelectorAll('svg a').length") == 0
    legends = browser.ask("[...document.querySelectorAll('#chart-progress .legendtext')].map(one => one.textContent)")
    assert "</script><script>window.pwned…" in legends
    box = "document.getElementById('chart-progress')"
    browser.ask(f"Plotly.Fx.hover({box}, [{{curveNumber: 1, pointNumber: 0}}])")
    assert "<script>window.pwned=1</script>" in browser.ask(f"{box}.querySelector('.hoverlayer').textContent")
    diff = browser.ask("document.getElementById('compare-diff').textContent")
    assert "-#define T 0" in diff
    is_quiet(browser, page)


def test_without_script_tables_and_sources_are_there(browser: browsers.Browser, written: Path) -> None:
    browser.scripts(on=False)
    browser.open(written, ready="true")
    assert browser.ask("document.querySelectorAll('pre.source').length") > 10
    assert browser.ask("document.querySelectorAll('section#runs table').length") == 2
    assert browser.ask("document.querySelectorAll('.diff').length") > 1
    assert browser.ask("[...document.querySelectorAll('.chart, .controls')].every(one => one.clientHeight === 0)")
    assert browser.ask("document.querySelector('main > noscript').textContent").startswith("Charts need JavaScript")
    is_quiet(browser, written)
