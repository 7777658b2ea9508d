"""Kernels proved and timed on a card made of this machine's memory; what is whose fault, and what is left behind."""

import os
import re
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from evo_l2.contracts import Prepared
from evo_l2.errors import DeviceError, ToolchainError
from evo_l2.evaluation import BuildReport, Environment, Status
from evo_l2.judge import Failure, Judge
from evo_l2.kernel import Kernel
from evo_l2.problem import Instance
from evo_l2.problems.hgemm import Hgemm
from evo_l2.targets.cuda.card import rig as rig_module
from evo_l2.targets.cuda.card.pairs import CardTimingSettings
from evo_l2.targets.cuda.card.rig import Rig
from evo_l2.targets.cuda.card.runner import Refused, RunnerFault
from evo_l2.targets.cuda.cards import find_card
from evo_l2.targets.cuda.evaluator import CudaEvaluator

SIZES = (32, 24, 40, 1)
PROBLEM = Hgemm((SIZES,))
INSTANCE = Instance(PROBLEM, SIZES, "nn")
TIMING = CardTimingSettings(blocks=8, final_blocks=9, sample_us=100.0)
SEED = np.random.SeedSequence(1)


@pytest.fixture(scope="module")
def opened(cuda_wheels, shared_card, session_cache):
    folder = session_cache / "evo-l2" / "cuda"
    with Rig(folder, find_card("A100"), builder="nvrtc", timing=TIMING, call_s=0.3, baselines=("cublas",)) as rig:
        yield rig


@pytest.fixture
def card(shared_card):
    """The card of `rig`; its defects end with the test."""
    yield shared_card
    shared_card.reset()


@pytest.fixture
def rig(opened, card, monkeypatch):
    monkeypatch.setattr(rig_module, "_PROBE_PAUSES_S", (0.0, 0.0))
    return opened


@pytest.fixture
def prepared(tmp_path):
    """A kernel that does what its entry is called, as if it had been built."""

    def make(entry="product", cubin=b"good"):
        source = f"//! layout nn\n//! launch {entry}(A: in, B: in, C: out, M, N, K)\n//! grid 1\n//! block 32\n"
        (tmp_path / "built").write_bytes(cubin)
        build = BuildReport(0.1, machine_code="0" * 16)
        return Prepared(Kernel(source, "cuda"), "id", None, build, (None,) * 5, tmp_path / "built")

    return make


def runners(of=b""):
    """Processes of this one's in which kernels run, or a library, those that ended left out."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if int(parent) == os.getpid() and state != "Z" and b"evo_l2.targets.cuda.card.runner_process" in words:
            found |= {int(entry.name)} if words[-2] == of else set()
    return found


# --- proving and timing -----------------------------------------------------------------------------------------------


def test_a_right_kernel_is_proved_and_timed_against_the_library(rig, card, prepared):
    kernel = prepared()
    assert rig.prove(kernel, INSTANCE, Judge(), SEED) == pytest.approx(10.0)
    card.set(kernel_us=8.0, cublas_us=12.0)
    timing = rig.time(kernel, INSTANCE, 10.0, Judge(), SEED)
    assert timing.kernel_us == pytest.approx((8.0,) * 8)
    assert timing.baseline_us == pytest.approx((12.0,) * 8)
    assert timing.kept == (True,) * 8
    assert len(rig.time(kernel, INSTANCE, 10.0, Judge(), SEED, final=True).kept) == 9
    rig.baselines.release(INSTANCE)


@pytest.mark.parametrize(
    ("entry", "status", "gate", "words"),
    [
        ("wrong", Status.INCORRECT, "exact-integers", r"expected \d+, found 0, first at C"),
        ("scribbles", Status.RUNTIME_ERROR, "guards", "wrote outside of C"),
        ("traps", Status.RUNTIME_ERROR, "run", "ILLEGAL_ADDRESS"),
        ("hangs", Status.TIMEOUT, "time-limit", r"a call took longer than 0\.3 s"),
        ("too_big", Status.UNLAUNCHABLE, "launch", "more registers or shared memory"),
        ("absent", Status.UNLAUNCHABLE, "launch", "no such entry"),
    ],
)
def test_a_kernels_fault_is_its_own_and_the_next_kernel_finds_a_card_that_works(rig, prepared, entry, status, gate, words):
    failure = rig.prove(prepared(entry), INSTANCE, Judge(), SEED)
    assert isinstance(failure, Failure)
    assert (failure.status, failure.gate) == (status, gate)
    assert re.search(words, failure.message)
    assert rig.prove(prepared(), INSTANCE, Judge(), SEED) == pytest.approx(10.0)
    assert len(runners()) == 1


def test_an_evaluator_times_every_case_and_finalists_in_a_fresh_process(rig, prepared):
    evaluator = CudaEvaluator(PROBLEM, rig)
    first = evaluator.measure(prepared(), SEED)
    pid = rig.runner().pid
    assert (first.status, len(first.session.cases[0].kept)) == (Status.PASSED, 8)
    final = evaluator.measure(prepared(), SEED, purpose="final")
    assert rig.runner().pid != pid
    assert (final.session.purpose, len(final.session.cases[0].kept)) == ("final", 9)
    failed = evaluator.measure(prepared("wrong"), SEED)
    assert (failed.status, failed.session) == (Status.INCORRECT, None)
    rig.baselines.release(INSTANCE)


def test_two_cards_measure_two_kernels_at_once(rig, card, prepared, session_cache):
    card.set(cards=2)
    other = Rig(
        session_cache / "evo-l2" / "cuda", find_card("A100"), 1, builder="nvrtc", timing=TIMING, baselines=("cublas",)
    )
    with other, ThreadPoolExecutor(2) as pool:
        evaluator = CudaEvaluator(PROBLEM, rig, other)
        assert evaluator.environment.provenance["device"] == "0, 1"
        assert evaluator.environment.key == rig.environment.key
        found = [pool.submit(evaluator.measure, prepared(), SEED) for _ in range(4)]
        assert [future.result(60).status for future in found] == [Status.PASSED] * 4
        assert rig.runner().pid != other.runner().pid
        assert len(runners()) == 2
    assert len(runners()) == 1
    rig.baselines.release(INSTANCE)


def test_cards_whose_numbers_cannot_be_compared_do_not_share_a_run(rig, card, session_cache, monkeypatch):
    card.set(cards=2)
    with Rig(session_cache / "evo-l2" / "cuda", find_card("A100"), 1, builder="nvrtc", baselines=("cublas",)) as other:
        identity = {**other.environment.identity, "memory": "2 GiB"}
        monkeypatch.setattr(other, "_environment", Environment("cuda", identity, other.environment.provenance))
        with pytest.raises(DeviceError, match=r"numbers of these cards cannot be compared.*2 GiB"):
            CudaEvaluator(PROBLEM, rig, other)


def test_numbers_are_compared_only_on_the_card_that_they_were_measured_on(rig):
    identity = rig.environment.identity
    assert (identity["card"], identity["memory"], identity["multiprocessors"]) == ("NVIDIA A100-SXM4-80GB", "1 GiB", "4")
    assert rig.environment.provenance["driver"] == "13.2"


def test_a_kernel_that_was_stopped_or_is_gone_from_the_cache_is_not_run(rig, prepared, tmp_path):
    kernel = prepared()
    (tmp_path / "built").unlink()
    with pytest.raises(ToolchainError, match=r"gone from the cache.*run again"):
        rig.stage(kernel, INSTANCE, 1)


# --- faults -----------------------------------------------------------------------------------------------------------


def raising(error):
    def step():
        raise error

    return step


def test_what_a_step_raises_is_blamed_on_whom_it_belongs_to(rig):
    assert rig.guarded(lambda: 5.0) == 5.0
    assert rig.guarded(raising(Refused("too large"))) == Failure(Status.UNLAUNCHABLE, "launch", "too large")
    late, crash = (RunnerFault("why", is_time_limit=is_late) for is_late in (True, False))
    assert rig.guarded(raising(late)) == Failure(Status.TIMEOUT, "time-limit", "why")
    assert rig.guarded(raising(crash)) == Failure(Status.RUNTIME_ERROR, "run", "why")
    with pytest.raises(DeviceError, match="out of order"):
        rig.guarded(raising(DeviceError("out of order")))


def test_a_card_that_does_not_recover_from_a_fault_stops_the_run_and_leaves_no_process(rig, card, prepared):
    card.set(sick=True)
    with pytest.raises(DeviceError) as raised:
        rig.prove(prepared("traps"), INSTANCE, Judge(), SEED)
    assert str(raised.value) == (
        "the card does not answer: expected card 0 to run a known-good kernel after a kernel's fault, "
        "found a known-good kernel wrote nothing; try: nvidia-smi; evo-l2 doctor; resume the run once the card is well"
    )
    assert runners() == set()
    card.reset()
    assert rig.prove(prepared(), INSTANCE, Judge(), SEED) == pytest.approx(10.0)


def test_a_card_is_asked_again_after_a_pause(rig, card, prepared, monkeypatch):
    def pauses():
        card.set(init=100)
        yield 0.0
        card.set(init=0, sick=True)
        yield 0.0
        card.set(sick=False)
        yield 0.0

    monkeypatch.setattr(rig_module, "_PROBE_PAUSES_S", pauses())
    failure = rig.prove(prepared("traps"), INSTANCE, Judge(), SEED)
    assert failure.status is Status.RUNTIME_ERROR
    assert rig.runner().is_alive
    assert len(runners()) == 1


def test_a_fresh_process_is_a_fresh_process_and_faults_leave_no_descriptors(rig, prepared):
    pid = rig.runner().pid
    assert rig.runner().pid == pid
    rig.renew()
    assert runners() == set()
    before = len(os.listdir("/proc/self/fd"))
    rig.prove(prepared("traps"), INSTANCE, Judge(), SEED)
    rig.renew()
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_is_missing_or_does_not_fit_is_said_before_anything_is_started(card, cuda_wheels, session_cache, monkeypatch):
    with pytest.raises(DeviceError, match="CUDA counts another card"):
        Rig(session_cache / "evo-l2" / "cuda", find_card("H200"))
    with pytest.raises(DeviceError, match="CUDA device 1"):
        Rig(session_cache / "evo-l2" / "cuda", find_card("A100"), 1)
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ToolchainError, match="expected cupy"):
        Rig(session_cache / "evo-l2" / "cuda", find_card("A100"))


# --- baselines --------------------------------------------------------------------------------------------------------


@pytest.fixture
def both(cuda_wheels, card, session_cache):
    """A rig with two libraries."""
    card.set(cublas_us=20.0, cublaslt_us=15.0)
    names = ("cublas", "cublaslt")
    with Rig(session_cache / "evo-l2" / "cuda", find_card("A100"), builder="nvrtc", timing=TIMING, baselines=names) as rig:
        yield rig


def test_the_fastest_library_is_chosen_once_a_case_and_processes_are_used_again(both):
    def libraries():
        return runners(b"cublas") | runners(b"cublaslt")

    others = runners(b"cublas")
    chosen = both.baselines.at(INSTANCE)
    assert (chosen.name, chosen.side.stage.instance.sizes) == ("cublaslt", SIZES)
    assert "cuBLASLt 13.1.0" in chosen.description
    assert [(c.name, c.median_us) for c in chosen.candidates] == [
        ("cublas", pytest.approx(20.0)), ("cublaslt", pytest.approx(15.0)),
    ]  # fmt: skip
    assert both.baselines.at(INSTANCE) is chosen
    pids = libraries()
    assert len(pids - others) == 2
    both.baselines.release(INSTANCE)
    both.baselines.release(INSTANCE)
    assert libraries() == pids
    assert both.baselines.at(Instance(Hgemm((SIZES,), layouts=("nt",)), SIZES, "nt")).name == "cublaslt"
    assert libraries() == pids
    both.close()
    both.close()
    assert libraries() == others


def test_a_library_whose_process_was_killed_is_started_again(both):
    others = runners(b"cublas")
    both.baselines.at(INSTANCE)
    (pid,) = runners(b"cublas") - others
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    both.baselines.release(INSTANCE)
    assert [c.median_us for c in both.baselines.at(INSTANCE).candidates] == [pytest.approx(20.0), pytest.approx(15.0)]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cublaslt_us": None}, r"a baseline is missing: .*no cuBLASLt here"),
        ({"cublaslt": "wrong"}, r"the baseline cublaslt is wrong: expected a library that passes every gate, found \w"),
        ({"cublaslt": "traps"}, "ILLEGAL_ADDRESS"),
    ],
)
def test_a_library_that_is_missing_wrong_or_crashes_is_left_out_and_says_why(both, card, settings, words):
    card.set(**settings)
    chosen = both.baselines.at(INSTANCE)
    left_out = chosen.candidates[1]
    assert (chosen.name, left_out.name, left_out.median_us) == ("cublas", "cublaslt", None)
    assert re.search(words, left_out.description)


def test_without_any_library_there_is_nothing_to_compare_with(both, card):
    card.set(cublaslt_us=None, cublas="wrong")
    with pytest.raises(
        DeviceError, match=r"no baseline runs: expected cublas or cublaslt, found cublas: .*wrong.*; cublaslt: "
    ):
        both.baselines.at(INSTANCE)
    card.set(cublas="right")
    assert both.baselines.at(INSTANCE).name == "cublas"


def test_a_library_that_is_refused_in_a_graph_is_never_a_kernels_fault(both, card, prepared):
    card.set(cublaslt="uncapturable")
    kernel = prepared()
    with pytest.raises(DeviceError, match=r"the baseline cublaslt fails: found .*STREAM_CAPTURE_UNSUPPORTED"):
        both.time(kernel, INSTANCE, 10.0, Judge(), SEED)


def test_where_sums_in_half_are_admitted_libraries_with_single_precision_are_opponents_too(both):
    instance = Instance(Hgemm((SIZES,), "fp16"), SIZES, "nn")
    chosen = both.baselines.at(instance)
    assert [candidate.name for candidate in chosen.candidates] == ["cublas", "cublaslt", "cublas/fp32"]
    assert all(candidate.median_us is not None for candidate in chosen.candidates)
