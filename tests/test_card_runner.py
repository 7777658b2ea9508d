"""The process that kernels run in and its client, end to end, on a card made of this machine's memory."""

import contextlib
import json
import mmap
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from evo_l2.errors import DeviceError
from evo_l2.kernel import Kernel
from evo_l2.problems.hgemm import Hgemm
from evo_l2.targets.cuda.card import runner as client
from evo_l2.targets.cuda.card.memory import Region
from evo_l2.targets.cuda.card.requests import LibrarySpec, fault_in_words
from evo_l2.targets.cuda.card.runner import Refused, Runner, RunnerFault
from evo_l2.targets.cuda.launching.plan import plan

SIZES = (8, 12, 16, 1)
N_SETS = 3
OPERANDS = (Region("A", 2 * 8 * 16, N_SETS), Region("B", 2 * 16 * 12, N_SETS), Region("C", 2 * 8 * 12, N_SETS))
GRAIN = 4096


def planned(entry="product", shared=""):
    source = f"//! layout nn\n//! launch {entry}(A: in, B: in, C: out, M, N, K)\n//! grid 1\n//! block 32\n{shared}"
    return plan(Kernel(source, "cuda"), Hgemm((SIZES,)), SIZES, 4)


def n_descriptors():
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def harness(tmp_path):
    (tmp_path / "harness").write_bytes(b"harness")
    return tmp_path / "harness"


@pytest.fixture
def runner(fake_card, harness):
    """One with memory for three sets, that a test may ruin."""
    with Runner(0, harness) as it:
        allocate(it)
        yield it


@pytest.fixture(scope="module")
def lasting(shared_card, tmp_path_factory):
    """One that no test ruins."""
    harness = tmp_path_factory.mktemp("lasting") / "harness"
    harness.write_bytes(b"harness")
    with Runner(0, harness) as it:
        yield it


def allocate(runner):
    for descriptor in runner.allocate(OPERANDS):
        os.close(descriptor)


def left_open(runner, path):
    """What the runner has not given back, after a kernel was loaded."""
    runner.load_kernel(f"tells|{path}".encode(), planned())
    return json.loads(path.read_text())


def is_gone(pid):
    """Whether a process ended, as a zombie or for good."""
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def wait_until(condition, limit_s=20.0):
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# --- work -------------------------------------------------------------------------------------------------------------


def test_a_kernel_multiplies_what_the_parent_wrote_on_the_sets_that_were_named(lasting):
    descriptors = lasting.allocate(OPERANDS)
    views = {}
    for region, descriptor in zip(OPERANDS, descriptors, strict=True):
        views[region.name] = np.frombuffer(mmap.mmap(descriptor, region.mapped_bytes(GRAIN)), np.float16)
        os.close(descriptor)
    shapes = {"A": (8, 16), "B": (16, 12), "C": (8, 12)}
    sets = []
    for index in range(N_SETS):
        arrays = {}
        for region in OPERANDS:
            first = region.offset(index, GRAIN) // 2
            arrays[region.name] = views[region.name][first : first + region.n_bytes // 2].reshape(shapes[region.name])
        arrays["A"][...], arrays["B"][...], arrays["C"][...] = np.eye(8, 16), index + 1, np.nan
        sets.append(arrays)
    lasting.load_kernel(b"good", planned())
    assert lasting.run(1, 2, 5.0) == 20_000
    assert np.isnan(sets[0]["C"]).all()
    assert [(arrays["C"] == index + 1).all() for index, arrays in enumerate(sets)] == [False, True, True]
    assert lasting.replay(1, 5.0) == client.Sample(10_000, pytest.approx(1410, rel=1e-3))
    assert (sets[0]["C"] == 1).all()


def test_calls_are_counted_one_by_one_for_the_host_and_at_their_arrivals_for_a_server(lasting):
    allocate(lasting)
    lasting.load_kernel(b"good", planned())
    assert len(lasting.host(3, 5.0)) == 3
    begin = time.monotonic()
    latencies = lasting.serve((0, 1_000_000, 60_000_000), 5.0)
    assert len(latencies) == 3
    assert min(latencies) > 0
    assert time.monotonic() - begin >= 0.06


def test_a_known_good_kernel_says_on_how_many_multiprocessors_it_ran(lasting, shared_card):
    assert lasting.probe() == 4
    shared_card.set(sick=True)
    assert lasting.probe() == 0
    shared_card.set(sick=False)


def test_a_cubin_may_be_larger_than_any_message(lasting):
    allocate(lasting)
    lasting.load_kernel(b"good|" + bytes(9 << 20), planned())
    assert lasting.run(0, 1, 5.0) > 0


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_what_the_driver_refuses_is_said_and_costs_no_process(lasting, tmp_path):
    allocate(lasting)
    pid = lasting.pid
    for cubin, entry, words in (
        (b"damaged", "product", "the driver does not load the cubin (CUDA_ERROR_INVALID_IMAGE)"),
        (b"good", "absent", "the cubin has no such entry (CUDA_ERROR_NOT_FOUND)"),
    ):
        with pytest.raises(Refused) as raised:
            lasting.load_kernel(cubin, planned(entry))
        assert str(raised.value) == words
    with pytest.raises(Refused, match="does not take the launch"):
        lasting.load_kernel(b"good", planned(shared="//! shared 200000\n"))
    lasting.load_kernel(b"good", planned("too_big"))
    for step in (lambda: lasting.run(0, 1, 5.0), lambda: lasting.replay(2, 5.0), lambda: lasting.serve((0,), 5.0)):
        with pytest.raises(Refused, match="more registers or shared memory than the card has"):
            step()
    lasting.load_kernel(b"good", planned())
    lasting.replay(2, 5.0)
    assert (lasting.pid, lasting.is_alive) == (pid, True)
    # The harness's module, two events, and the memory: of what was refused nothing is left.
    assert left_open(lasting, tmp_path / "open") == {"module": 1, "event": 2, "handle": 3, "reservation": 3}


def test_an_entry_may_be_launched_twice_with_more_shared_memory_and_less(lasting):
    again = "//! launch product(A: in, B: in, C: out, M, N, K)\n//! grid 1\n//! block 32\n//! shared 50000\n"
    lasting.allocate(OPERANDS, ())
    lasting.load_kernel(b"good", planned(shared=f"//! shared 100000\n{again}"))
    assert lasting.run(0, N_SETS, 5.0) > 0


def test_a_graph_that_cannot_be_made_leaves_none_behind(lasting, shared_card, tmp_path):
    allocate(lasting)
    lasting.load_kernel(b"good", planned())
    shared_card.set(instantiate=2)
    with pytest.raises(Refused, match="no memory left"):
        lasting.replay(2, 5.0)
    shared_card.set(instantiate=0)
    assert lasting.replay(2, 5.0).ns == 20_000
    left = left_open(lasting, tmp_path / "open")
    assert "graph" not in left
    assert "executable" not in left


def test_memory_that_is_not_there_is_the_machines_fault_and_can_be_asked_for_again(lasting, shared_card, tmp_path):
    huge = Region("A", 1 << 29)
    with pytest.raises(DeviceError, match=r"the card has no room: expected 512 MiB of shareable .*OUT_OF_MEMORY\)"):
        lasting.allocate((OPERANDS[0], huge))
    shared_card.set(export=1)
    with pytest.raises(DeviceError, match="no room"):
        lasting.allocate(OPERANDS)
    shared_card.set(export=0, map=1)
    with pytest.raises(DeviceError, match="no room"):
        lasting.allocate(OPERANDS)
    shared_card.set(map=0, access=1)
    with pytest.raises(DeviceError, match="no room"):
        lasting.allocate(OPERANDS)
    shared_card.set(access=0)
    allocate(lasting)
    left = left_open(lasting, tmp_path / "open")
    assert (left["handle"], left["reservation"]) == (3, 3)


def test_a_library_that_is_missing_or_raises_is_the_machines_fault(lasting, shared_card):
    allocate(lasting)
    spec = LibrarySpec("cublaslt", "nn", "fp32", SIZES, 1024)
    with pytest.raises(DeviceError, match=r"a baseline is missing: expected nvmath-python .*no cuBLASLt here"):
        lasting.load_library(spec)
    with pytest.raises(DeviceError, match="RuntimeError: a library's own words"):
        lasting.load_kernel(b"raises", planned())
    with pytest.raises(DeviceError, match="nothing is loaded"):
        lasting.run(0, 1, 5.0)
    assert lasting.is_alive


def test_a_library_is_loaded_and_described(lasting):
    allocate(lasting)
    words = lasting.load_library(LibrarySpec("cublas", "nn", "fp32", SIZES, 1024))
    assert words.startswith("cuBLAS 13.1.0, cublasGemmEx")
    assert lasting.replay(3, 5.0).ns == 60_000


# --- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["host", "serve"])
def test_a_fault_of_a_kernel_is_told_once_and_ends_the_process(runner, step):
    runner.load_kernel(b"good", planned("traps"))
    asked = {"host": (1, 5.0), "serve": ((0,), 5.0)}
    with pytest.raises(RunnerFault, match=r"memory that is not mapped \(CUDA_ERROR_ILLEGAL_ADDRESS\)") as raised:
        getattr(runner, step)(*asked[step])
    assert not raised.value.is_time_limit
    assert not runner.is_alive
    assert runner.pid is None
    with pytest.raises(ValueError, match="closed"):
        runner.probe()


@pytest.mark.parametrize("step", ["run", "serve"])
def test_a_kernel_that_does_not_end_is_ended_at_its_limit(runner, step):
    runner.load_kernel(b"good", planned("hangs"))
    begin = time.monotonic()
    with pytest.raises(RunnerFault, match="did not end in time") as raised:
        runner.run(0, 1, 0.2) if step == "run" else runner.serve((0,), 0.2)
    assert raised.value.is_time_limit
    assert 0.2 <= time.monotonic() - begin < 10
    assert not runner.is_alive


def test_a_runner_that_itself_hangs_is_ended_by_the_parent(runner, monkeypatch):
    runner.load_kernel(b"good", planned("hangs"))
    pid = runner.pid
    monkeypatch.setattr(client, "_GRACE_S", 0.2)
    with pytest.raises(RunnerFault) as raised:
        runner.host(1, 0.1)
    assert raised.value.is_time_limit
    assert is_gone(pid)


def test_a_runner_that_dies_is_the_machines_fault(runner):
    with pytest.raises(DeviceError, match=r"the runner ended without an answer.*try: evo-l2 doctor"):
        runner.load_kernel(b"dies", planned())
    assert not runner.is_alive


def test_a_runner_that_was_killed_between_two_requests_is_the_machines_fault(runner):
    runner.probe()
    os.kill(runner.pid, signal.SIGKILL)
    wait_until(lambda: not runner.is_alive)
    with pytest.raises(DeviceError, match="runner"):
        runner.probe()


@pytest.mark.parametrize(("defect", "words"), [("hangs", "it did not end in time"), ("traps", "ILLEGAL_ADDRESS")])
def test_a_baseline_that_hangs_or_crashes_while_it_loads_is_never_a_kernels_fault(
    runner, fake_card, monkeypatch, defect, words
):
    fake_card.set(cublas=defect)
    monkeypatch.setattr(client, "_TUNE_S", 1.0)
    monkeypatch.setattr(client, "_GRACE_S", 0.0)
    with pytest.raises(DeviceError, match=words):
        runner.load_library(LibrarySpec("cublas", "nn", "fp32", SIZES, 1024))


# --- answers that make no sense ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", ["no JSON", "[1]", '{"ns": [1, true]}'])
def test_an_answer_that_makes_no_sense_is_the_machines_fault(runner, answer):
    runner.load_kernel(f"says|{answer}|3".encode(), planned())
    before = n_descriptors()
    with pytest.raises(DeviceError, match=r"answer makes no sense: expected .*found"):
        runner.host(2, 5.0)
    assert not runner.is_alive
    # Its two ends are closed, and so is what came with the answer.
    assert n_descriptors() == before - 2


def test_a_clock_that_makes_no_sense_is_no_clock(runner):
    runner.load_kernel(b'says|{"ns": 7, "clock_mhz": NaN}|0', planned())
    assert runner.replay(2, 5.0) == client.Sample(7, None)


# --- start and end ----------------------------------------------------------------------------------------------------


def test_a_card_that_cannot_be_used_is_said_by_the_first_request(fake_card, harness):
    before = n_descriptors()
    for settings, name, words in (
        ({"init": 100}, "harness", "CUDA_ERROR_NO_DEVICE"),
        ({"init": 0, "no_driver": True}, "harness", "Failed to dlopen libcuda"),
        ({"no_driver": False}, "nothing", "No such file"),
    ):
        fake_card.set(**settings)
        with Runner(0, harness.with_name(name)) as runner:
            pid = runner.pid
            with pytest.raises(DeviceError, match=words):
                runner.probe()
            assert not runner.is_alive
        assert is_gone(pid)
    assert n_descriptors() == before


def test_a_runner_that_does_not_start_in_time_is_the_machines_fault(fake_card, harness, monkeypatch):
    fake_card.set(start_s=60)
    monkeypatch.setattr(client, "_START_S", 0.1)
    with Runner(0, harness) as runner, pytest.raises(DeviceError, match="the runner does not start"):
        runner.probe()


def test_a_runner_that_cannot_be_started_leaves_no_descriptor(fake_card, harness, monkeypatch):
    before = n_descriptors()
    monkeypatch.setattr(sys, "executable", "no-python")
    with pytest.raises(FileNotFoundError):
        Runner(0, harness)
    assert n_descriptors() == before


def test_closing_ends_the_process_gives_descriptors_back_and_may_be_repeated(fake_card, harness):
    before = n_descriptors()
    started, unused = Runner(0, harness), Runner(0, harness)
    started.probe()
    pids = started.pid, unused.pid
    for _ in range(2):
        started.close()
        unused.close()
    assert all(map(is_gone, pids))
    assert n_descriptors() == before


PARENT = """
import sys
from pathlib import Path
from types import SimpleNamespace
from evo_l2.targets.cuda.card.memory import Region
from evo_l2.targets.cuda.card.runner import Runner
runner = Runner(0, Path(sys.argv[1]))
runner.allocate((Region("A", 8),))
print(runner.pid, flush=True)
runner.load_kernel(b"sleeps", SimpleNamespace(workspaces=(), entries=(), launches=()))
"""


def test_a_runner_that_is_busy_ends_with_its_parent_whatever_that_dies_of(fake_card, harness):
    command = [sys.executable, "-c", PARENT, str(harness)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        time.sleep(0.3)
        assert not is_gone(pid)
        parent.kill()
        wait_until(lambda: is_gone(pid))
        assert parent.stderr.read() == ""


# --- words ------------------------------------------------------------------------------------------------------------


def test_every_known_fault_is_told_in_words_with_the_drivers_name():
    assert fault_in_words("CUDA_ERROR_MISALIGNED_ADDRESS") == (
        "the kernel made an access that is not aligned to its size (CUDA_ERROR_MISALIGNED_ADDRESS)"
    )
    assert fault_in_words("CUDA_ERROR_OF_TOMORROW") == "the driver says CUDA_ERROR_OF_TOMORROW"


def test_a_tensor_map_is_handed_to_the_driver_innermost_first(fake_card):
    from evo_l2.targets.cuda.driver import encode_tensor_map

    content = encode_tensor_map("float16", 4096, (3, 5, 64), (640, 128), (1, 4, 64), 128, 256)
    assert content == b"map" + bytes(125)
    assert fake_card.driver.CARD.encoded == (
        "half", 3, 4096, [64, 5, 3], [128, 640], [64, 4, 1], [1, 1, 1],
        "no interleave", "swizzle 128", "promote 256", "zeros",
    )  # fmt: skip
