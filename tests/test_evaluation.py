"""Measures, verdicts, timings and estimates keep their invariants."""

import math

import pytest

from evo_l2.evaluation import (
    FEWEST_BLOCKS,
    BuildReport,
    CaseTiming,
    Environment,
    Evaluation,
    Status,
    TimingSession,
    Verdict,
)
from evo_l2.measures import Axis, MeasuresSchema
from evo_l2.timing import pooled_estimate

PASSED = Verdict(Status.PASSED, build=BuildReport(0.1, machine_code="m"), measures=(1.0,))


def session(kernel, baseline, kept=None):
    return TimingSession((CaseTiming((1,), tuple(kernel), tuple(baseline), tuple(kept or [True] * len(kernel))),))


def test_an_axis_is_lower_inclusive_with_unknown_apart():
    axis = Axis("n", (1, 8), ("0", "1-7", "8+"))
    assert [axis.index(v) for v in (-5, 0, 1, 7.9, 8, 1e9, None, math.nan)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert axis.label(3) == "unknown"


def test_the_schema_has_a_version_that_follows_its_boundaries():
    one = MeasuresSchema((Axis("n", (1,), ("a", "b")),))
    other = MeasuresSchema((Axis("n", (2,), ("a", "b")),))
    assert one.version != other.version
    assert one.n_cells == 3
    with pytest.raises(ValueError, match="zip"):
        one.cell((1, 2))


@pytest.mark.parametrize(
    "arguments",
    [
        {"status": Status.PASSED},
        {"status": Status.INCORRECT},
        {"status": Status.INCORRECT, "gate": "g"},
        {"status": Status.INCONCLUSIVE, "gate": "g", "message": "m"},
        {"status": Status.PASSED, "gate": "g", "build": PASSED.build, "measures": (1.0,)},
    ],
)
def test_a_verdict_that_contradicts_itself_cannot_be_made(arguments):
    with pytest.raises(ValueError, match=r"\w"):
        Verdict(**arguments)


def test_only_a_passed_kernel_is_timed():
    with pytest.raises(ValueError, match="timed exactly when"):
        Evaluation(PASSED, None)


def test_times_that_are_no_times_are_refused():
    for bad in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="finite and positive"):
            session([bad], [1.0])


def test_the_estimate_is_the_median_ratio_inside_its_interval():
    value = pooled_estimate([session([2.0] * 7, [1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 1.0])])
    assert value.speedup == pytest.approx(0.5)
    low, high = value.interval
    assert 0.45 <= low <= 0.5 <= high <= 0.55
    assert value.n_blocks == 7


def test_dropped_blocks_do_not_count_and_too_many_make_it_inconclusive():
    kept = session([1] * 7 + [50], [2] * 8, [True] * 7 + [False])
    assert pooled_estimate([kept]).speedup == pytest.approx(2.0)
    for n_kept, n_blocks in ((9, 40), (FEWEST_BLOCKS - 1, FEWEST_BLOCKS - 1)):
        lost = session([1] * n_blocks, [2] * n_blocks, [i < n_kept for i in range(n_blocks)])
        assert Evaluation(PASSED, lost).status is Status.INCONCLUSIVE
        assert pooled_estimate([lost]) is None


def test_more_sessions_narrow_the_interval():
    noisy = [1.0, 1.2, 0.8, 1.1, 0.9, 1.0, 1.3, 0.7]
    one = pooled_estimate([session([1.0] * 8, noisy)])
    many = pooled_estimate([session([1.0] * 8, noisy)] * 8)
    assert many.log_high - many.log_low < one.log_high - one.log_low


def test_the_environments_key_ignores_provenance_and_order():
    a = Environment("cpu", {"x": "1", "y": "2"}, {"host": "a"})
    b = Environment("cpu", {"y": "2", "x": "1"}, {"host": "b"})
    assert a.key == b.key
    assert a.key != Environment("cpu", {"x": "1", "y": "3"}).key
