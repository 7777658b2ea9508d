"""`evo-l2 archive reverify`: several processes judge and time kernels of an older environment again, by leases."""

from __future__ import annotations

import contextlib
import fcntl
import json
import multiprocessing
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from archive.address import Address
from archive.keeping.leases import Lease, LeaseLostError, WorkQueue
from archive.keeping.reverifying import (
    kernel_of,
    open_reverification,
    parents_of,
    purpose_of,
    select,
    source_run,
    works,
)
from archive.run import RunHandle, RunInfo
from archive.store import Store
from evo_l2.contracts import Candidate, Evaluator, Outcome
from evo_l2.errors import DeviceError, EvoL2Error, StorageError
from evo_l2.evaluation import Evaluation, Status
from evo_l2.kernel import Kernel
from evo_l2.past import file_remeasurement
from experiments.config import RunConfig, restore_config
from experiments.parts import cache_dir, make_evaluator, make_problem
from experiments.printable import printable

__all__ = ["reverify"]

_LEASE_S = 900.0
"""Longer than any one kernel may take, its limits being what they are; a dead worker's leases are given back sooner."""
_TIMES = 3
"""How often a kernel is timed at the most, while its times cannot be trusted."""


@dataclass(frozen=True, slots=True)
class _Task:
    """What a worker is told."""

    db: Address
    run: str
    source: str
    purpose: str
    config: dict[str, object]


def reverify(
    db: Address, run_name: str | None, *, count: int | None, ancestors: bool, workers: int | None, as_json: bool
) -> bool:
    """Judges what matters of an older environment again in the present one; whether all of it was judged.

    Raises:
        ConfigurationError: The run is of the present environment, or its configuration is that of another version.
        DeviceError: The device is at fault.
        StorageError: The archive cannot be used.
        ToolchainError: Something that the target needs is missing.
    """
    with Store.open(db, create=False) as store:
        info = source_run(store, run_name)
        config = restore_config(info.config)
        problem = make_problem(config)
        evaluator = make_evaluator(config, problem)
        environment = evaluator.environment
        evaluator.close()
        run = open_reverification(store, info, problem, environment, config.dump())
        chosen = select(store, info, count=count, ancestors=ancestors)
        queue = WorkQueue(store)
        purpose = purpose_of(store, run.name)
        n_new = queue.put(works(chosen, info, run, purpose))
        n_waiting = queue.counts(purpose).n_waiting
        task = _Task(db, run.name, info.name, purpose, config.dump())
    n_workers = workers if workers is not None else (1 if config.target == "cuda" else min(2, len(os.sched_getaffinity(0))))
    print(f"{len(chosen)} kernels of run {info.name}, {n_new} of them not asked for before; run {run.name}", file=sys.stderr)
    fault = _work(task, min(n_workers, n_waiting)) if n_waiting else None
    return _report(task, info, [origin.digest for origin in chosen], fault, as_json=as_json)


def _work(task: _Task, n_workers: int) -> str | None:
    """Has the queue emptied by so many processes; what stopped one that could not go on.

    A worker that dies gives its kernel to the others; one kernel is tried by two workers at the most in one call.
    """
    context = multiprocessing.get_context("spawn")
    faults = context.SimpleQueue()
    fault = None
    for _ in range(2):
        processes = [context.Process(target=_worker, args=(task, faults)) for _ in range(n_workers)]
        for process in processes:
            process.start()
        try:
            for process in processes:
                process.join()
        except BaseException:
            for process in processes:
                process.terminate()
            for process in processes:
                process.join()
            raise
        finally:
            with Store.open(task.db, create=False) as store:
                queue = WorkQueue(store)
                for process in processes:
                    queue.release(_holder(process.pid))
                n_waiting = queue.counts(task.purpose).n_waiting
        while not faults.empty():
            fault = faults.get()
        if not n_waiting or fault is not None:
            break
    return fault


def _holder(pid: int | None) -> str:
    return f"{socket.gethostname()}:{pid}"


def _worker(task: _Task, faults: multiprocessing.SimpleQueue[str]) -> None:
    """One process: takes work until there is none."""
    try:
        config = restore_config(task.config)
        evaluator = make_evaluator(config, make_problem(config))
        try:
            with Store.open(task.db, create=False) as store:
                run = store.open_run(task.run)
                run.check(run.problem_key, evaluator.environment.key)
                queue = WorkQueue(store)
                while (lease := queue.take(task.purpose, _holder(os.getpid()), _LEASE_S)) is not None:
                    _do(lease, queue, store, task, config, evaluator)
        finally:
            evaluator.close()
    except EvoL2Error as error:
        faults.put(str(error))
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(1)


def _do(lease: Lease, queue: WorkQueue, store: Store, task: _Task, config: RunConfig, evaluator: Evaluator) -> None:
    """One kernel: judged, timed, filed under its lease, and the lease ended."""
    digest = lease.work.digest
    kernel = kernel_of(store, digest)
    run = store.open_run(task.run)
    # It is known here when a worker died between filing it and ending its lease, or when a search has found it.
    if run.find(digest=digest) is None:
        try:
            candidate, run = _judge(lease, run, kernel, queue, store, task, config, evaluator)
        except LeaseLostError:
            return
        if candidate.evaluation is not None and candidate.evaluation.status is Status.INCONCLUSIVE:
            _time_again(run, kernel, config, evaluator)
    with contextlib.suppress(LeaseLostError):
        queue.finish(lease)


def _judge(
    lease: Lease,
    run: RunHandle,
    kernel: Kernel,
    queue: WorkQueue,
    store: Store,
    task: _Task,
    config: RunConfig,
    evaluator: Evaluator,
) -> tuple[Candidate, RunHandle]:
    begin = time.perf_counter()
    with _turn(config.target, alone=False):
        prepared = evaluator.prepare(kernel)
    built_s = time.perf_counter() - begin
    evaluation = Evaluation(prepared.verdict) if prepared.verdict is not None else None
    if evaluation is None and run.find(identity=prepared.identity) is None:
        with _turn(config.target, alone=True):
            evaluation = evaluator.measure(prepared, _seed(config, kernel, 0))
    origin = store.run_info(task.source)
    while True:
        known = run.find(digest=kernel.digest, identity=prepared.identity)
        parents = tuple(p for p in parents_of(store, origin, kernel.digest) if run.find(digest=p) is not None)
        index = run.n_candidates
        is_new = known is None and evaluation is not None
        candidate = Candidate(
            index=index,
            operator="reverify",
            parents=parents,
            asked_after=index,
            outcome=Outcome.EVALUATED if is_new else Outcome.DUPLICATE,
            message=lease.work.note,
            kernel=kernel,
            identity=prepared.identity,
            evaluation=evaluation if is_new else None,
            duplicate_of=None if is_new else known,
            seconds={"build": built_s, "measure": evaluation.seconds if evaluation is not None else 0.0},
        )
        queue.check(lease)
        try:
            run.add(candidate)
            return candidate, run
        except (StorageError, ValueError):
            # Workers file into one run, and the index is given once: whoever comes second looks at what came first, be it
            # that the index is taken, or that another's kernel turns out to be the same one.
            run = store.open_run(task.run)
            if run.n_candidates == index:
                raise


def _time_again(run: RunHandle, kernel: Kernel, config: RunConfig, evaluator: Evaluator) -> None:
    """A kernel that is right but could not be timed gets a second and a third chance."""
    for number in range(1, _TIMES):
        prepared = evaluator.prepare(kernel)
        if prepared.verdict is not None:
            return
        with _turn(config.target, alone=True):
            again = evaluator.measure(prepared, _seed(config, kernel, number), purpose="retime")
        file_remeasurement(run, kernel.digest, again)
        if again.status is not Status.INCONCLUSIVE:
            return


def _seed(config: RunConfig, kernel: Kernel, number: int) -> np.random.SeedSequence:
    return np.random.SeedSequence([config.seed, int(kernel.digest[:16], 16), number])


@contextlib.contextmanager
def _turn(target: str, *, alone: bool) -> Iterator[None]:
    """Builds go on side by side; on the CPU, whoever measures is alone on this machine among all that judge again."""
    if target != "cpu":
        yield
        return
    path = cache_dir() / "measuring.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


def _report(task: _Task, info: RunInfo, chosen: list[str], fault: str | None, *, as_json: bool) -> bool:
    """What became of the chosen kernels."""
    with Store.open(task.db, create=False) as store:
        run = store.open_run(task.run)
        statuses: Counter[str] = Counter()
        for digest in chosen:
            evaluation = store.evaluation(run.problem_key, run.environment_key, digest)
            if evaluation is not None:
                statuses[evaluation.status.value] += 1
            else:
                statuses["as another" if run.find(digest=digest) is not None else "left"] += 1
        best = run.best()
        n_left = statuses.pop("left", 0)
        if not n_left:
            run.finish({"stop": "done", "statuses": dict(statuses)})
    facts = {
        "run": task.run,
        "from": {"run": info.name, "problem": info.problem_key, "environment": info.environment.key},
        "environment": run.environment_key,
        "problem": run.problem_key,
        "statuses": dict(sorted(statuses.items())),
        "left": n_left,
        "best": {"digest": best.kernel.digest, "speedup": best.estimate.speedup}
        if best is not None and best.estimate is not None
        else None,
    }
    if as_json:
        print(json.dumps(facts, indent=2))
    else:
        counts = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items())) or "none"
        print(printable(f"run {task.run}, environment {run.environment_key}: {counts}"))
        print(printable(f"evo-l2 archive top {task.db} --run {task.run}"))
    if fault is not None:
        raise DeviceError(f"not all could be judged: {fault}", hint=f"evo-l2 archive reverify {task.db} --run {info.name}")
    if n_left:
        print(printable(f"{n_left} are left: evo-l2 archive reverify {task.db} --run {info.name}"), file=sys.stderr)
    return not n_left
