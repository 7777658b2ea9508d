"""The chapters of kernels: two side by side, and each by itself with its source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evo_l2.evaluation import CaseTiming, TimingSession
from experiments.printable import printable
from experiments.report_page.chapters import Chapter, chapter, frame, interval, p, speedup
from experiments.report_page.charts import digits
from experiments.report_page.facts import KernelSheet, RunFacts
from experiments.report_page.markup import Markup, shown, table, tag

__all__ = ["anchors", "compare", "compare_data", "sources"]


def anchors(sheets: Sequence[KernelSheet]) -> dict[str, str]:
    """The name in the address of every kernel on the page, by digest; by place, since a foreign digest may be anything."""
    return {sheet.digest: f"kernel-{place}" for place, sheet in enumerate(sheets)}


def compare(facts: RunFacts) -> Chapter:
    """Two kernels side by side; the script fills it."""
    if len(facts.kernels) < 2:
        return chapter("compare", "Side by side", p("There are no two kernels to compare."))
    return chapter(
        "compare",
        "Side by side",
        tag("div", id="compare-controls", class_="controls"),
        tag("div", id="compare-table", aria_live="polite"),
        tag(
            "div",
            tag("h3", "Samples"),
            frame("samples", "Times of every sample of the two kernels and of the baseline beside them.", 380),
            tag("h3", "Paired ratios, block by block"),
            frame("ratios", "Baseline time over kernel time in every block, for the two kernels.", 340),
            p(
                "A block is one pair of samples. Blocks that were dropped because the machine did not hold still are hollow.",
                class_="note",
            ),
            id="compare-times",
        ),
        tag("h3", "What differs in the source"),
        tag("div", id="compare-diff"),
        tag("noscript", p("Choosing two kernels needs JavaScript; each is shown by itself below.")),
    )


def sources(facts: RunFacts) -> Chapter:
    """Every kernel of the page, folded."""
    if not facts.kernels:
        return chapter("kernels", "Kernels", p("There are no kernels yet."))
    names = anchors(facts.kernels)
    words = [f"{len(facts.kernels):,} kernels: the line to the best, seeds, examples of failures, and elites by rank."]
    if facts.n_unshown:
        words.append(f" {facts.n_unshown:,} more elites are left out, to keep the page small: evo-l2 archive show DB DIGEST.")
    return chapter("kernels", "Kernels", p(*words), *(_section(sheet, names[sheet.digest]) for sheet in facts.kernels))


def _section(sheet: KernelSheet, name: str) -> Markup:
    times = f" {speedup(sheet.estimate)} ({interval(sheet.estimate)})" if sheet.estimate is not None else ""
    status = tag("span", sheet.status.replace("_", " "), class_="status " + ("good" if sheet.message is None else "bad"))
    summary = tag(
        "summary", tag("code", sheet.title), " ", status, times, tag("span", f" {_birth(sheet)}{sheet.why}", class_="why")
    )
    rows = facts_of(sheet)
    body = [
        p(tag("code", sheet.message, class_="wrap")) if sheet.message else "",
        table(f"Kernel {sheet.title}", ("what", "value"), rows) if rows else "",
        tag("pre", Markup("\n"), sheet.source, class_="source", tabindex="0"),
        p(f"{sheet.n_cut:,} more characters are left out.", class_="note") if sheet.n_cut else "",
    ]
    return tag("details", summary, *body, id=name, class_="kernel")


def _birth(sheet: KernelSheet) -> str:
    return f"#{sheet.index} {sheet.operator}, " if sheet.index is not None and sheet.operator != "seed" else ""


def facts_of(sheet: KernelSheet) -> list[tuple[str, str]]:
    """What is known of a kernel, name by name, in words; the same names in the same order for every kernel of a target."""
    rows = [("digest", sheet.digest), ("status", sheet.status.replace("_", " "))]
    if sheet.index is not None:
        rows.append(("came from", f"candidate {sheet.index}, {sheet.operator}"))
    if sheet.parents:
        rows.append(("parents", ", ".join(parent[:12] for parent in sheet.parents)))
    if sheet.estimate is not None:
        rows.append(("speed-up", speedup(sheet.estimate)))
        rows.append(("95 % interval", interval(sheet.estimate)))
        rows.append(("blocks in the estimate", f"{sheet.estimate.n_blocks:,}"))
    if sheet.n_sessions:
        rows.append(("timing sessions", f"{sheet.n_sessions:,}"))
    for number, sizes in enumerate(_sizes(sheet)):
        times = [time for session in sheet.sessions for time in _kept(session.cases[number])]
        if times:
            times.sort()
            rows.append((f"median at {sizes}", f"{times[len(times) // 2]:,.1f} µs"))
    if sheet.cell is not None:
        rows.append(("cell", sheet.cell))
    rows += [(f"measure: {name}", shown(value)) for name, value in sheet.measures.items()]
    rows += [("launch" if name == "launch" else f"launch: {name}", words) for name, words in launch_of(sheet.source)]
    rows += [(name, shown(value)) for name, value in sheet.resources.items() if name not in sheet.measures]
    return rows


def launch_of(source: str) -> list[tuple[str, str]]:
    """The declared launch: a name and its words for each line `//! name words` at the source's start."""
    found: dict[str, str] = {}
    for line in source.split("\n")[:60]:
        if not line.startswith("//!"):
            continue
        name, _, words = line[3:].strip().partition(" ")
        if name:
            found[name] = f"{found[name]}; {words.strip()}" if name in found else words.strip()
    return list(found.items())


def _sizes(sheet: KernelSheet) -> list[str]:
    """The problem's cases in words; those that all sessions timed."""
    if not sheet.sessions:
        return []
    n_cases = min(len(session.cases) for session in sheet.sessions)
    return [sizes_in_words(case.sizes) for case in sheet.sessions[0].cases[:n_cases]]


def sizes_in_words(sizes: Sequence[int]) -> str:
    """For instance `256 × 256 × 256`; a batch of one is not named."""
    return " × ".join(str(size) for size in (sizes[:-1] if len(sizes) > 3 and sizes[-1] == 1 else sizes))


def _kept(case: CaseTiming) -> list[float]:
    return [time for time, kept in zip(case.kernel_us, case.kept, strict=True) if kept]


def compare_data(facts: RunFacts) -> list[dict[str, object]]:
    """The kernels as the script needs them; sources are taken from the page."""
    names = anchors(facts.kernels)
    return [_data(sheet, names) for sheet in facts.kernels]


def _data(sheet: KernelSheet, names: Mapping[str, str]) -> dict[str, object]:
    speed = f", {speedup(sheet.estimate)}" if sheet.estimate is not None else f", {sheet.status.replace('_', ' ')}"
    n_shown = sum(len(case.kept) for session in sheet.sessions for case in session.cases)
    return {
        "id": names[sheet.digest],
        "title": printable(sheet.title),
        "label": printable(f"{sheet.title}{speed} ({sheet.why})"),
        "facts": [[printable(name), printable(value)] for name, value in facts_of(sheet)],
        "cases": _sizes(sheet),
        "sessions": [_session(session) for session in sheet.sessions],
        "left_out": sheet.n_blocks - n_shown,
    }


def _session(session: TimingSession) -> dict[str, object]:
    return {
        "purpose": printable(session.purpose),
        "cases": [
            {
                "kernel": [digits(time) for time in case.kernel_us],
                "baseline": [digits(time) for time in case.baseline_us],
                "kept": [int(kept) for kept in case.kept],
            }
            for case in session.cases
        ],
    }
