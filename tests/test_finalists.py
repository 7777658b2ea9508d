"""What a run measures again at its end, and what comes of it."""

import dataclasses

import pytest

import experiments.run
from archive.store import Store
from evo_l2.evaluation import Evaluation, Status, TimingSession, Verdict
from evo_l2.pipeline import Stop
from experiments.config import load_config

FINALISTS = 3


class Notes:
    """An observer that keeps the notes."""

    def __init__(self):
        self.lines = []

    def started(self, info):
        pass

    def told(self, candidate, result, archive):
        pass

    def note(self, text):
        self.lines.append(text)

    def stopped(self):
        pass


@pytest.fixture
def run_with(instant, tmp_path, monkeypatch):
    """Runs `smoke` on an instant evaluator whose final measurements a function may change."""

    def run(change, evaluations=40):
        class Changed(instant.InstantEvaluator):
            n_finals = 0

            def measure(self, prepared, seed, *, purpose="search"):
                evaluation = super().measure(prepared, seed, purpose=purpose)
                if purpose != "final":
                    return evaluation
                self.n_finals += 1
                return change(evaluation, self.n_finals, prepared)

        evaluator = Changed()
        monkeypatch.setattr(experiments.run, "make_evaluator", lambda config, problem: evaluator)
        seed = tmp_path / "seed.c"
        seed.write_text(instant.kernel_source())
        settings = (f"seeds=[{seed}]", f"budget.evaluations={evaluations}", "budget.wall_s=null", "generator.kind=none")
        operators = ("search.operators={parametric: 1}", f"timing.finalists={FINALISTS}")
        notes = Notes()
        db = tmp_path / "a.db"
        done = experiments.run.execute(load_config("smoke", (*settings, *operators)), db=db, observer=notes)
        with Store.open(db) as store:
            handle = store.open_run()
            return done, notes.lines, list(handle.remeasurements()), handle.best(), list(handle.ranked())

    return run


def slower(evaluation, factor):
    """The same evaluation with a kernel that takes longer."""
    case = evaluation.session.cases[0]
    case = dataclasses.replace(case, kernel_us=tuple(us * factor for us in case.kernel_us))
    return dataclasses.replace(evaluation, session=TimingSession((case,), "final"))


def is_final(elite):
    return any(session.purpose == "final" for session in elite.sessions)


def test_the_best_few_and_the_best_seed_are_measured_again(run_with):
    done, _, again, best, ranked = run_with(lambda evaluation, n, prepared: evaluation)
    assert done.stop is Stop.EVALUATIONS
    assert [one.after for one in again] == [40] * (FINALISTS + 1)
    assert is_final(best)
    assert done.best == best
    assert is_final(done.best_seed)
    assert sum(is_final(elite) for elite in ranked) == FINALISTS + 1


def test_a_winner_by_luck_falls_back_and_the_next_is_measured_until_the_best_has_been(run_with):
    _, _, again, best, _ = run_with(lambda evaluation, n, prepared: slower(evaluation, 3.0) if n <= 3 else evaluation)
    assert len(again) > FINALISTS + 1
    assert best.kernel.digest not in {one.digest for one in again[:3]}
    assert is_final(best)


def test_a_finalist_that_fails_is_withdrawn_and_said(run_with):
    def change(evaluation, n, prepared):
        if n != 1:
            return evaluation
        return Evaluation(Verdict(Status.INCORRECT, "determinism", "two runs differ", prepared.build, prepared.measures))

    done, notes, again, best, ranked = run_with(change)
    (withdrawn,) = [one.digest for one in again if one.evaluation.session is None]
    assert withdrawn not in {elite.kernel.digest for elite in ranked}
    assert best.kernel.digest == done.best.kernel.digest != withdrawn
    assert is_final(best)
    assert any("withdrawn: two runs differ" in line for line in notes)


def test_a_machine_that_never_holds_still_ends_the_measuring(run_with):
    def restless(evaluation, n, prepared):
        case = evaluation.session.cases[0]
        case = dataclasses.replace(case, kept=(False,) * len(case.kept))
        return dataclasses.replace(evaluation, session=TimingSession((case,), "final"))

    done, _, again, _, _ = run_with(restless)
    assert done.stop is Stop.EVALUATIONS
    assert len(again) == 2 * (FINALISTS + 1)


def test_ctrl_c_while_finalists_are_measured_keeps_the_run_and_its_summary(run_with):
    def interrupt(evaluation, n, prepared):
        if n == 2:
            raise KeyboardInterrupt
        return evaluation

    done, _, again, best, _ = run_with(interrupt)
    assert done.stop is Stop.REQUESTED
    assert done.n_candidates == 40
    assert len(again) == 1
    assert best is not None
