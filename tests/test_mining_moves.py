"""What an edit touched, what it gained, and families of kernels."""

import importlib.util
import math
import shutil
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from archive import Store, mining
from archive.mining import edits
from evo_l2.contracts import Candidate, Outcome
from evo_l2.evaluation import Estimate, Evaluation, Status
from evo_l2.kernel import LONGEST_SOURCE_BYTES, Kernel


def _load_cases():
    path = Path(__file__).parent.parent / "benchmarks" / "archive_cases.py"
    spec = importlib.util.spec_from_file_location("archive_cases", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cases = _load_cases()

PARENT = """//! layout nn
//! launch hgemm(A: in, B: in, C: out, M, N, K)
// a comment
#include <stddef.h>
#define BM 64 //? 32 64 128
constexpr int BK = 8; //? 8 16
#define PLAIN 3
void hgemm(const _Float16 *A)
{
    for (int i = 0; i < BM; i++) {
        x = y + i;
        z = y;
    }
}
"""


def changed(old, new):
    assert old in PARENT
    return PARENT.replace(old, new)


@pytest.mark.parametrize(
    ("offspring", "kinds"),
    [
        (PARENT, ()),
        (changed("#define BM 64", "#define BM 128"), ("tunable",)),
        (changed("//? 32 64 128", "//? 64 256"), ("constant",)),
        (changed("#define PLAIN 3", "#define PLAIN 4"), ("constant",)),
        (changed("layout nn", "layout nt"), ("launch",)),
        (changed("<stddef.h>", "<stdint.h>"), ("include",)),
        (changed("// a comment", "// another"), ("comment",)),
        (changed("// a comment", "/* one\n of two lines */"), ("comment",)),
        (changed("x = y", "x =  y"), ("comment",)),
        (changed("        x = y + i;\n        z = y;", "        z = y;\n        x = y + i;"), ("order",)),
        (changed("x = y + i;", "x = y - i;"), ("other",)),
        (changed("    for (int i", "#pragma GCC unroll 4\n    for (int i"), ("pragma",)),
        (changed("i < BM; i++", "i < BM; i += 2"), ("loop",)),
        (changed("x = y + i;", "float4 v = y;"), ("vector width",)),
        (changed("x = y + i;", "x = _mm256_loadu_ps(y);"), ("vector width",)),
        (changed("x = y + i;", "x = __builtin_fma(a, b, c);"), ("multiply-add",)),
        (changed("x = y + i;", "x = fmaf(a, b, c);"), ("multiply-add",)),
        (changed("x = y + i;", 'asm volatile("wgmma.mma_async.sync" : : );'), ("multiply-add",)),
        (changed("x = y + i;", 'asm volatile("cp.async.cg.global" : : );'), ("copy",)),
        (changed("x = y + i;", "memcpy(a, b, 4);"), ("copy",)),
        (changed("x = y + i;", "__builtin_prefetch(a);"), ("prefetch",)),
        (changed("x = y + i;", "__syncthreads();"), ("barrier",)),
        (changed("x = y + i;", "__shared__ int s[4];"), ("shared memory",)),
        (changed("x = y + i;", "if (i) x = y;"), ("branch",)),
        (changed("#define BM 64", "#define BM 32").replace("x = y + i;", "__syncthreads();"), ("tunable", "barrier")),
    ],
)  # fmt: skip
def test_an_edit_is_of_the_kinds_that_its_lines_are_of(offspring, kinds):
    assert mining.edit(PARENT, offspring).kinds == tuple(kinds)


def test_tunables_are_told_by_name_and_direction_and_their_lines_count_for_nothing_else():
    found = mining.edit(PARENT, changed("BM 64", "BM 128").replace("BK = 8", "BK = 16"))
    assert [(c.name, c.before, c.after, c.direction) for c in found.tunables] == [("BM", 64, 128, "up"), ("BK", 8, 16, "up")]
    assert (found.n_added, found.n_removed) == (0, 0)
    assert mining.edit(changed("BM 64", "BM 128"), PARENT).tunables[0].direction == "down"


LINES = st.lists(
    st.sampled_from([*PARENT.split("\n"), "int q;", "//? 1", "#define X 1 //? 1 2", "\ud800", "/*", "*/", ""]), max_size=20
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(before=LINES, after=LINES)
def test_every_edit_has_a_kind_exactly_when_sources_differ_and_mirrors_its_reverse(before, after):
    one, other = "\n".join(before), "\n".join(after)
    there, back = mining.edit(one, other), mining.edit(other, one)
    assert bool(there.kinds) == (one != other)
    assert set(there.kinds) <= set(mining.KINDS)
    assert there.kinds == back.kinds
    assert (there.n_added, there.n_removed) == (back.n_removed, back.n_added)


LOGS = st.floats(-2, 2)
WIDTHS = st.floats(0, 0.5)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(a=st.tuples(LOGS, WIDTHS, WIDTHS), b=st.tuples(LOGS, WIDTHS, WIDTHS))
def test_a_gain_is_the_ratio_and_its_interval_lies_within_that_of_the_ends(a, b):
    one, other = (Estimate(log, log - below, log + above, 6) for log, below, above in (a, b))
    found = mining.gain(one, other)
    assert found.ratio == pytest.approx(one.speedup / other.speedup)
    assert one.log_low - other.log_high - 1e-9 <= found.log_low <= found.log_ratio <= found.log_high
    assert found.log_high <= one.log_high - other.log_low + 1e-9
    back = mining.gain(other, one)
    assert (back.log_low, back.log_high) == pytest.approx((-found.log_high, -found.log_low))
    if one.log_low > other.log_high + 1e-9:
        assert found.is_sure


def test_wilsons_interval_is_that_of_the_textbook():
    found = mining.share(8, 10)
    # Brown, Cai and DasGupta, 2001: 8 of 10 at 95 %.
    assert (found.low, found.high) == (pytest.approx(0.4902, abs=5e-4), pytest.approx(0.9433, abs=5e-4))
    assert (mining.share(0, 5).low, mining.share(5, 5).high) == (0.0, 1.0)
    assert mining.share(0, 0) is None


def test_a_mean_gain_has_an_interval_that_does_not_depend_on_the_order():
    values = [math.log(x) for x in (1.1, 1.2, 1.3, 0.9)]
    found = mining.mean_gain(values)
    assert found == mining.mean_gain(values[::-1])
    assert found.low < found.value < found.high
    assert mining.mean_gain([0.5]).interval is None
    assert mining.mean_gain([]) is None


def candidate(index, source, parents=(), speedup=1.0, operator="edit", status=Status.PASSED, conclusive=True):
    kernel = Kernel(source, "cpu")
    timed = cases.session(index, speedup, conclusive=conclusive) if status is Status.PASSED else None
    evaluation = Evaluation(cases.verdict(index, status=status), timed, 0.1)
    return Candidate(
        index, operator if parents else "seed", parents, index, Outcome.EVALUATED, kernel=kernel,
        identity=f"identity-{index}", evaluation=evaluation, seconds={"wall": 0.1},
    )  # fmt: skip


SOURCES = (
    PARENT,
    changed("BM 64", "BM 128"),
    changed("BM 64", "BM 32"),
    changed("BM 64", "BM 128").replace("x = y + i;", "__syncthreads();"),
    changed("BM 64", "BM 128").replace("x = y + i;", "__syncwarp();"),
)
DIGESTS = tuple(Kernel(source, "cpu").digest for source in SOURCES)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A seed; BM up gains, BM down is wrong; of the first, one barrier loses, another is not timed, and one is repeated."""
    folder = tmp_path_factory.mktemp("moves")
    Store.open(folder / "empty.db").close()
    with Store.open(shutil.copy(folder / "empty.db", folder / "a.db")) as opened:
        run = opened.start_run("one", cases.PROBLEM, cases.ENVIRONMENT, "cpu", {}, 1)
        run.add(candidate(0, SOURCES[0]))
        run.add(candidate(1, SOURCES[1], (DIGESTS[0],), 2.0))
        run.add(candidate(2, SOURCES[2], (DIGESTS[0],), status=Status.INCORRECT))
        run.add(candidate(3, SOURCES[3], (DIGESTS[1], DIGESTS[0]), 1.0, "crossover"))
        run.add(candidate(4, SOURCES[4], (DIGESTS[1],), conclusive=False))
        run.add(cases.failed(5, parents=(DIGESTS[1],)))
        run.add(
            Candidate(6, "tune", (DIGESTS[3],), 6, Outcome.DUPLICATE, "known", Kernel(changed("BM 64", "BM 64 "), "cpu"),
                      duplicate_of=DIGESTS[0])
        )  # fmt: skip
        yield opened


def test_moves_count_what_was_made_valid_and_gained(store):
    found = {(row.kind, row.name, row.direction): row for row in mining.moves(store)}
    up, down = found["tunable", "BM", "up"], found["tunable", "BM", "down"]
    assert (up.n, up.validity.n_hits, up.gained.n_hits, up.gained.n_trials) == (1, 1, 1, 1)
    assert up.mean.ratio == pytest.approx(2.0, rel=0.1)
    assert up.best.digest == DIGESTS[1]
    # The wrong one, and the repeat, which no share counts.
    assert (down.n, down.n_known, down.validity.n_hits, down.validity.n_trials) == (2, 1, 0, 1)
    assert down.gained is down.mean is down.best is None
    barrier = found["barrier", None, None]
    assert (barrier.n, barrier.n_known, barrier.validity.n_hits, barrier.validity.n_trials) == (3, 1, 2, 2)
    assert (barrier.lost.n_hits, barrier.gained.n_hits, barrier.gained.n_trials) == (1, 0, 1)
    assert barrier.mean_alone.n == 1
    assert mining.moves(store, "one") == mining.moves(store)


def test_a_family_has_ancestors_and_descendants_with_their_gains(store):
    found = mining.family(store, DIGESTS[1][:12])
    assert (found.kernel.digest, found.kernel.depth, found.n_left_out) == (DIGESTS[1], 0, 0)
    assert [a.digest for a in found.ancestors] == [DIGESTS[0]]
    assert found.kernel.gains[0].ratio == pytest.approx(2.0, rel=0.1)
    # The crossover, which was timed, before the one that was not.
    assert [d.digest for d in found.descendants[:2]] == [DIGESTS[3], DIGESTS[4]]
    assert [len(d.gains) for d in found.descendants[:2]] == [2, 1]
    assert found.descendants[0].gains[0].is_loss
    assert found.descendants[1].gains == (None,)
    assert found.kernel.n_offspring == 3
    seed = mining.family(store, DIGESTS[0], limit=1)
    assert (len(seed.descendants), seed.n_left_out) == (1, 3)
    assert [d.depth for d in mining.family(store, DIGESTS[0], depth=1).descendants] == [1, 1, 1]
    assert mining.family(store, DIGESTS[0], depth=0).descendants == ()


def test_two_kernels_are_compared_where_both_were_judged(store):
    found = mining.compare(store, DIGESTS[0][:12], DIGESTS[1][:12])
    assert [(d.name, d.left, d.right) for d in found.tunables] == [("BM", "64", "128")]
    assert found.launch == ()
    assert "+#define BM 128 //? 32 64 128" in found.diff
    (place,) = found.places
    assert place.gain.ratio == pytest.approx(2.0, rel=0.1)
    assert place.parts
    wrong = mining.compare(store, DIGESTS[0], DIGESTS[2]).places[0]
    assert (wrong.gain, wrong.right.status, wrong.parts) == (None, Status.INCORRECT, False)


@pytest.mark.parametrize("piece", ["/* ", "?", "_mm_", "for ", "//?", "#define A 1 //? 1 2\n", "*/", "fma", "(", "\t"])
def test_long_odd_sources_take_no_time(piece):
    source = piece * (LONGEST_SOURCE_BYTES // len(piece))
    started = time.process_time()
    assert mining.edit(PARENT, source).kinds
    assert time.process_time() - started < 2


def test_a_diff_of_very_long_sources_is_one_change():
    # Lines that repeat, but not often enough for difflib to leave them out.
    old, new = ([str(i % n) for i in range(40_000)] for n in (250, 251))
    started = time.process_time()
    found = mining.diff_lines("\n".join(old), "\n".join(new), "a", "b")
    assert time.process_time() - started < 2
    assert found[:4] == ("--- a", "+++ b", "@@ -251,39750 +251,39750 @@", "-0")
    assert [line[1:] for line in found[3:] if line[0] == "+"] == new[250:]
    assert mining.diff_lines("\n".join(old), "\n".join(old), "a", "b") == ()


def test_the_page_lists_the_kinds_as_the_module_does():
    page = (Path(__file__).parent.parent / "docs" / "ARCHIVE.md").read_text(encoding="utf-8")
    rows = [line for line in edits.__doc__.splitlines() if line.startswith("| ")]
    assert [row.split("|")[1].strip() for row in rows[1:]] == [kind for kind in mining.KINDS if kind != "tunable"]
    assert all(row in page.splitlines() for row in rows)
