"""`evo-l2 archive import`: kernels from elsewhere, each screened, built, judged and timed here, as a run of its own."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from archive.address import Address
from archive.run import RunHandle
from archive.store import Store
from evo_l2.contracts import Candidate, Evaluator, Outcome
from evo_l2.errors import ConfigurationError
from evo_l2.evaluation import Evaluation, Status, Verdict
from evo_l2.kernel import Kernel
from evo_l2.past import file_remeasurement
from evo_l2.problem import Problem
from experiments.config import RunConfig, load_config, restore_config
from experiments.import_sources import Item, Source, read_source
from experiments.parts import make_evaluator, make_problem
from experiments.printable import printable
from experiments.summary_page import counted

__all__ = ["Imported", "import_kernels", "plan_import", "run_import"]

OPERATOR = "import"
_GATE = "import"
_MOST_SESSIONS = 3
_STREAM_JUDGE, _STREAM_RETIME = 1, 4
_MOST_NAMED = 20


@dataclass(slots=True)
class Imported:
    """What became of a source."""

    run: str | None
    kind: str
    n_items: int
    n_before: int = 0
    """Filed by an earlier call that was stopped."""
    outcomes: Counter[str] = field(default_factory=Counter)
    """By status, `duplicate` among them; over all that is filed in the run."""
    malformed: list[tuple[str, str]] = field(default_factory=list)
    """Where, and what is wrong."""
    refused: Counter[str] = field(default_factory=Counter)
    """Filed as rejected without a build, by reason."""


def import_kernels(
    db: Address,
    path: Path,
    preset: str | None,
    overrides: Sequence[str],
    licence: str | None,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Imports a source, or says what an import would find, and prints the summary.

    Raises:
        EvoL2Error: The source, the configuration, the machine or the archive cannot be used.
    """
    config = _config(db, preset, overrides)
    source = read_source(path, config.target)
    problem = make_problem(config)
    faults = [f"{item.where}: {item.fault}" for item in source.items if item.kernel is None]
    if len(faults) == len(source.items) and not dry_run:
        found = f"{counted(len(faults), 'malformed item')}, the first {faults[0]}"
        hint = "--dry-run, which names them all"
        raise ConfigurationError(f"nothing in {path} can be imported", expected="a kernel", found=found, hint=hint)
    if dry_run:
        done = plan_import(db, source, problem)
    else:
        evaluator = make_evaluator(config, problem)
        try:
            with Store.open(db) as store:
                done = run_import(store, source, config, problem, evaluator, licence or source.licence, str(path.resolve()))
        finally:
            evaluator.close()
    _print(done, db, dry_run=dry_run, as_json=as_json)


def _config(db: Address, preset: str | None, overrides: Sequence[str]) -> RunConfig:
    """The configuration that says problem, target and timing: the one that is named, or that of the archive's last run."""
    if preset is not None:
        return load_config(preset, overrides)
    if overrides:
        raise ConfigurationError("there is nothing to change with --set", expected="--config PRESET", found="none")
    if isinstance(db, Path) and not db.exists():
        hint = "--config quickstart, or another of evo-l2 presets"
        raise ConfigurationError(
            "the problem is not known", expected="an archive with a run, or --config", found="neither", hint=hint
        )
    with Store.open(db, create=False) as store:
        return restore_config({name: value for name, value in store.run_info().config.items() if name != "import"})


def plan_import(db: Address, source: Source, problem: Problem) -> Imported:
    """What an import would file, without a build and without a write."""
    done = Imported(None, source.kind, len(source.items))
    known: set[str] = set()
    if not isinstance(db, Path) or db.exists():
        with Store.open(db, create=False) as store:
            rows = store.read(
                "SELECT DISTINCT k.digest FROM verdicts v JOIN kernels k ON k.id = v.kernel_id JOIN problems p ON"
                " p.id = v.problem_id WHERE p.key = ?",
                (problem.key,),
            )
            known = {row[0] for row in rows}
    for item in source.items:
        if item.kernel is None:
            done.malformed.append((item.where, item.fault or ""))
            continue
        name = (
            "duplicate" if item.kernel.digest in known else "to be judged" if item.refusal is None else Status.REJECTED.value
        )
        done.outcomes[name] += 1
        if item.refusal is not None:
            done.refused[item.refusal] += 1
        known.add(item.kernel.digest)
    return done


def run_import(
    store: Store,
    source: Source,
    config: RunConfig,
    problem: Problem,
    evaluator: Evaluator,
    licence: str,
    origin: str,
) -> Imported:
    """Files every item that can be filed; a run of the same source that was stopped goes on where it was.

    Raises:
        EvoL2Error: The machine or the archive cannot be used; what was filed until then stays.
    """
    run = _run_of(store, source, config, problem, evaluator, licence, origin)
    items = [item for item in source.items if item.kernel is not None]
    n_before = run.n_candidates
    for index in range(n_before, len(items)):
        _note(f"{index + 1} of {len(items)}: {items[index].where}")
        run.put_state(f"import:{index:07d}", {"where": items[index].where, **items[index].provenance})
        run.add(_filed(run, evaluator, items[index], index, config.seed))
    _time_again(run, evaluator, config.seed)
    done = _summary(store, run, source)
    done.n_before = n_before
    run.finish({"import": dict(done.outcomes), "malformed": [list(pair) for pair in done.malformed]})
    return done


def _run_of(
    store: Store,
    source: Source,
    config: RunConfig,
    problem: Problem,
    evaluator: Evaluator,
    licence: str,
    origin: str,
) -> RunHandle:
    """The run that an earlier call began with this very source, here; or a new one."""
    environment = evaluator.environment
    for info in reversed(store.runs()):
        imported = info.config.get("import")
        here = (info.problem_key, info.environment.key) == (problem.key, environment.key)
        if here and isinstance(imported, dict) and imported.get("digest") == source.digest:
            return store.open_run(info.name)
    mark = {"digest": source.digest, "source": origin, "kind": source.kind, "licence": licence}
    return store.start_run(OPERATOR, problem, environment, config.target, {**config.dump(), "import": mark}, config.seed)


def _filed(run: RunHandle, evaluator: Evaluator, item: Item, index: int, seed: int) -> Candidate:
    kernel = item.kernel
    assert kernel is not None
    begin = time.perf_counter()

    def candidate(
        outcome: Outcome, message: str | None = None, identity: str | None = None, evaluation: Evaluation | None = None,
        known: str | None = None,
    ) -> Candidate:  # fmt: skip
        return Candidate(
            index=index, operator=OPERATOR, parents=(), asked_after=index, outcome=outcome, message=message, kernel=kernel,
            identity=identity, evaluation=evaluation, duplicate_of=known, seconds={"wall": time.perf_counter() - begin},
        )  # fmt: skip

    known = run.find(digest=kernel.digest)
    if known is not None:
        return candidate(Outcome.DUPLICATE, "its source was evaluated before", known=known)
    if item.refusal is not None:
        return candidate(Outcome.EVALUATED, evaluation=Evaluation(Verdict(Status.REJECTED, _GATE, item.refusal)))
    prepared = evaluator.prepare(kernel)
    known = run.find(identity=prepared.identity) if prepared.identity is not None else None
    if known is not None:
        text = "its machine code and launch were evaluated before"
        return candidate(Outcome.DUPLICATE, text, prepared.identity, known=known)
    if prepared.verdict is not None:
        return candidate(Outcome.EVALUATED, identity=prepared.identity, evaluation=Evaluation(prepared.verdict))
    evaluation = evaluator.measure(prepared, np.random.SeedSequence(seed, spawn_key=(index, _STREAM_JUDGE)))
    return candidate(Outcome.EVALUATED, identity=prepared.identity, evaluation=evaluation)


def _time_again(run: RunHandle, evaluator: Evaluator, seed: int) -> None:
    """Kernels of this run whose times could not be trusted are timed again, up to three sessions in all."""
    mine = {candidate.kernel.digest for candidate in run.history() if candidate.kernel is not None}
    for n_sessions in range(1, _MOST_SESSIONS):
        waiting: list[Kernel] = [kernel for kernel, n in run.untimed() if kernel.digest in mine and n <= n_sessions]
        for kernel in waiting:
            _note(f"timing {kernel.digest[:12]} again")
            prepared = evaluator.prepare(kernel)
            if prepared.verdict is None:
                key = (int(kernel.digest[:16], 16), _STREAM_RETIME, n_sessions)
                evaluation = evaluator.measure(prepared, np.random.SeedSequence(seed, spawn_key=key), purpose="retime")
                file_remeasurement(run, kernel.digest, evaluation)


def _summary(store: Store, run: RunHandle, source: Source) -> Imported:
    done = Imported(run.name, source.kind, len(source.items))
    untimed = {kernel.digest for kernel, _ in run.untimed()}
    for outcome, status, digest in store.read(
        "SELECT c.outcome, v.status, k.digest FROM candidates c JOIN runs r ON r.id = c.run_id LEFT JOIN verdicts v ON"
        " v.id = c.verdict_id LEFT JOIN kernels k ON k.id = c.kernel_id WHERE r.name = ? ORDER BY c.idx",
        (run.name,),
    ):
        name = status if status is not None else outcome
        done.outcomes[Status.INCONCLUSIVE.value if name == Status.PASSED.value and digest in untimed else name] += 1
    done.malformed = [(item.where, item.fault or "") for item in source.items if item.kernel is None]
    done.refused = Counter(item.refusal for item in source.items if item.refusal is not None)
    return done


def _note(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{printable(text)[:100]}", end="", file=sys.stderr, flush=True)


def _print(done: Imported, db: Address, *, dry_run: bool, as_json: bool) -> None:
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    if as_json:
        facts = {
            "run": done.run,
            "kind": done.kind,
            "found": done.n_items,
            "filed_before": done.n_before,
            "outcomes": dict(done.outcomes),
            "refused": dict(done.refused),
            "malformed": [{"where": where, "why": why} for where, why in done.malformed],
        }
        print(json.dumps(facts, indent=2))
        return
    what = {"folder": "a folder of kernels", "export": "an export", "table": "a table of extensions"}[done.kind]
    print(f"{counted(done.n_items, 'item')} in {what}" + (f", run {done.run}" if done.run is not None else ""))
    if done.n_before:
        print(f"  {done.n_before} were filed before")
    for name, n in sorted(done.outcomes.items(), key=lambda pair: (-pair[1], pair[0])):
        print(f"  {n:6} {name}")
    for why, n in done.refused.most_common():
        print(f"         {n} refused: {printable(why)}")
    if done.malformed:
        print(f"  {len(done.malformed):6} malformed")
        for where, why in done.malformed[:_MOST_NAMED]:
            print(f"         {printable(where)}: {printable(why)}")
        if len(done.malformed) > _MOST_NAMED:
            print(f"         and {len(done.malformed) - _MOST_NAMED} more (--json names them all)")
    if dry_run:
        print("nothing was built and nothing was written")
    else:
        print(f"next: evo-l2 archive top {db} --run {done.run}")
