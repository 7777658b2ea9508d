"""Which kernels stand on the page with their sources: the best line first, then seeds, failures and elites, within bounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from archive.mining import Ancestor, show
from archive.run import RunHandle
from archive.store import Store
from evo_l2.contracts import Elite, Outcome
from evo_l2.evaluation import CaseTiming, Status, TimingSession
from experiments.report_page.facts import CandidateRow, CellRow, FailureRow, KernelSheet
from experiments.winners import KernelRow, short_name

__all__ = ["MOST_BLOCKS", "MOST_CHARACTERS", "MOST_KERNELS", "MOST_SESSIONS", "choose_sheets", "thinned"]

MOST_KERNELS = 120
MOST_CHARACTERS = 500_000
"""Of all sources together; one source may have a tenth of it."""
MOST_SESSIONS = 6
"""Of one kernel: the first, and the last of the others."""
MOST_BLOCKS = 64
"""Of one session and case, evenly spread."""
_MOST_FAILURES = 24


def choose_sheets(
    store: Store,
    run: RunHandle,
    rows: Sequence[CandidateRow],
    names: Mapping[str, str],
    line: Sequence[Ancestor],
    seeds: Sequence[KernelRow],
    cells: Sequence[CellRow],
    failures: Sequence[FailureRow],
) -> tuple[KernelSheet, ...]:
    """The kernels of the page, as many as fit.

    Raises:
        StorageError: The archive cannot be read.
    """
    births = {row.digest: row for row in reversed(rows) if row.digest is not None and row.outcome is Outcome.EVALUATED}
    left = MOST_CHARACTERS
    sheets: dict[str, KernelSheet] = {}
    for digest, why in _wanted(line, seeds, cells, failures):
        if digest in sheets or len(sheets) >= MOST_KERNELS:
            continue
        sheet = _sheet(store, run, digest, why, short_name(digest, names), births.get(digest))
        if len(sheet.source) <= left:
            left -= len(sheet.source)
            sheets[digest] = sheet
    return tuple(sheets.values())


def _wanted(
    line: Sequence[Ancestor], seeds: Sequence[KernelRow], cells: Sequence[CellRow], failures: Sequence[FailureRow]
) -> Iterator[tuple[str, str]]:
    """Digests in order of importance, each with why it is there."""
    opening = {seed.digest for seed in seeds}
    for step in reversed(line[-40:]):
        why = "the best kernel" if step is line[-1] else "on the line to the best"
        yield step.digest, f"seed, {why}" if step.digest in opening else why
    for seed in seeds:
        yield seed.digest, "seed"
    for place, cell in enumerate(cells[:40], start=1):
        yield cell.digest, f"elite, rank {place}"
    for failure in failures[:_MOST_FAILURES]:
        if failure.digest is not None:
            yield failure.digest, f"first that failed: {failure.kind} at gate {failure.gate}"
    for place, cell in enumerate(cells[40:], start=41):
        yield cell.digest, f"elite, rank {place}"


def _sheet(store: Store, run: RunHandle, digest: str, why: str, title: str, birth: CandidateRow | None) -> KernelSheet:
    try:
        return _passed(run, run.get(digest), digest, why, title, birth)
    except KeyError:
        facts = show(store, digest)
    here = [
        found
        for found in facts.judgements
        if found.environment_key == run.environment_key and (birth is None or found.status is birth.status)
    ]
    source, n_cut = _cut(facts.kernel.source)
    return KernelSheet(
        digest=digest,
        title=title,
        why=why,
        status=_status(here[0].status) if here else "not reached",
        message=here[0].message if here else None,
        source=source,
        n_cut=n_cut,
        resources=here[0].resources if here else {},
        **_origin(birth),  # type: ignore[arg-type]
    )


def _status(status: Status) -> str:
    """Of a kernel that has no place in the grid."""
    return Status.INCONCLUSIVE.value if status is Status.PASSED else status.value


def _passed(run: RunHandle, elite: Elite, digest: str, why: str, title: str, birth: CandidateRow | None) -> KernelSheet:
    source, n_cut = _cut(elite.kernel.source)
    measures = elite.verdict.measures or ()
    return KernelSheet(
        digest=digest,
        title=title,
        why=why,
        status=elite.verdict.status.value,
        message=None,
        source=source,
        n_cut=n_cut,
        cell=run.schema.describe(elite.cell),
        estimate=elite.estimate,
        measures=dict(zip((axis.name for axis in run.schema.axes), measures, strict=False)),
        resources=elite.verdict.build.resources if elite.verdict.build is not None else {},
        sessions=thinned(elite.sessions),
        n_sessions=len(elite.sessions),
        n_blocks=sum(len(case.kept) for session in elite.sessions for case in session.cases),
        **_origin(birth),  # type: ignore[arg-type]
    )


def _origin(birth: CandidateRow | None) -> dict[str, object]:
    if birth is None:
        return {}
    return {"index": birth.index, "operator": birth.operator, "parents": birth.parents}


def _cut(source: str) -> tuple[str, int]:
    kept = source[: MOST_CHARACTERS // 10]
    return kept, len(source) - len(kept)


def thinned(sessions: Sequence[TimingSession]) -> tuple[TimingSession, ...]:
    """At most `MOST_SESSIONS` sessions of at most `MOST_BLOCKS` blocks a case."""
    kept = [*sessions[:1], *sessions[1:][-(MOST_SESSIONS - 1) :]]
    return tuple(TimingSession(tuple(_thinned(case) for case in session.cases), session.purpose) for session in kept)


def _thinned(case: CaseTiming) -> CaseTiming:
    n_blocks = len(case.kept)
    if n_blocks <= MOST_BLOCKS:
        return case
    picked = [i * n_blocks // MOST_BLOCKS for i in range(MOST_BLOCKS)]
    return CaseTiming(
        case.sizes,
        tuple(case.kernel_us[i] for i in picked),
        tuple(case.baseline_us[i] for i in picked),
        tuple(case.kept[i] for i in picked),
        case.bare_baseline_us,
    )
