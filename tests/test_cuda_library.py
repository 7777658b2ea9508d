"""The libraries that kernels on a card are timed against, with stand-ins for what is behind them."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from evo_l2.errors import ConfigurationError, DeviceError, ToolchainError
from evo_l2.targets.cuda.libraries.algorithm_tuning import choose
from evo_l2.targets.cuda.libraries.gemm_call import GemmCall, alignment_bytes
from evo_l2.targets.cuda.libraries.library import baseline_names, make_library

STREAM = 5
WORKSPACE_BYTES = 1 << 20
VENDOR = ("cublas", "cublaslt", "cublaslt-tuned")


def _fakes():
    path = Path(__file__).parent / "fake_vendor.py"
    spec = importlib.util.spec_from_file_location("evo_l2_fake_vendor", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def vendor(monkeypatch):
    """The stand-ins, where the bindings would be imported from."""
    fakes = _fakes()
    driver = fakes.FakeDriver()
    found = SimpleNamespace(driver=driver, cublas=fakes.FakeCublas(driver), lt=fakes.FakeCublasLt(driver))
    cuda, bindings = ModuleType("cuda"), ModuleType("cuda.bindings")
    cuda.bindings, bindings.driver = bindings, driver
    modules = {
        "cuda": cuda, "cuda.bindings": bindings, "cuda.bindings.driver": driver,
        "nvmath": ModuleType("nvmath"), "nvmath.bindings": ModuleType("nvmath.bindings"),
        "nvmath.bindings.cublas": found.cublas, "nvmath.bindings.cublasLt": found.lt,
    }  # fmt: skip
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return found


class Buffers:
    """Operands in this process's memory, and what their product is."""

    def __init__(self, layout, sizes, n_sets=3):
        m, n, k, batch = sizes
        rng = np.random.default_rng(3)
        self.a, self.b, self.c = [], [], []
        for _ in range(n_sets):
            self.a.append(rng.integers(-4, 5, (batch, m, k)).astype(np.float16))
            self.b.append(rng.integers(-4, 5, (batch, k, n) if layout == "nn" else (batch, n, k)).astype(np.float16))
            self.c.append(np.full((batch, m, n), np.nan, np.float16))
        self.layout = layout

    @property
    def sets(self):
        return [
            {"A": a.ctypes.data, "B": b.ctypes.data, "C": c.ctypes.data}
            for a, b, c in zip(self.a, self.b, self.c, strict=True)
        ]

    def expected(self, index):
        b = self.b[index].astype(np.float64)
        return self.a[index].astype(np.float64) @ (b if self.layout == "nn" else b.transpose(0, 2, 1))


@pytest.fixture
def square():
    """Buffers of the product 8x8x8, which must outlive what uses their addresses."""
    return Buffers("nn", (8, 8, 8, 1))


def _make(name, layout="nn", accumulate="fp32", sizes=(8, 8, 8, 1), workspace_bytes=WORKSPACE_BYTES):
    return make_library(name, layout=layout, accumulate=accumulate, sizes=sizes, workspace_bytes=workspace_bytes)


@pytest.mark.parametrize("accumulate", ["fp32", "fp16"])
@pytest.mark.parametrize("sizes", [(5, 7, 3, 1), (5, 7, 3, 4), (1, 9, 2, 2)])
@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize("name", VENDOR)
def test_every_set_gets_its_row_major_product(vendor, name, layout, sizes, accumulate):
    buffers = Buffers(layout, sizes)
    library = _make(name, layout, accumulate, sizes)
    library.prepare(STREAM, buffers.sets)
    for index in (2, 0, 1):
        buffers.c[index][...] = np.nan
        library.launch(STREAM, index)
        np.testing.assert_array_equal(buffers.c[index], buffers.expected(index))
    library.close()


@pytest.mark.parametrize("name", VENDOR)
def test_everything_is_given_back_once(vendor, square, name):
    library = _make(name)
    library.prepare(STREAM, square.sets)
    assert list(vendor.driver.allocated.values()) == [WORKSPACE_BYTES]
    library.prepare(STREAM, square.sets)
    assert len(vendor.driver.allocated) == 1
    library.close()
    library.close()
    assert vendor.cublas.n_open == vendor.lt.n_open == len(vendor.driver.allocated) == 0


def test_single_precision_is_never_reduced_in_half(vendor, square):
    sets = square.sets
    _make("cublas").prepare(STREAM, sets)
    assert ("set_math_mode", 16) in vendor.cublas.calls
    _make("cublaslt").prepare(STREAM, sets)
    assert vendor.lt.preference("REDUCTION_SCHEME_MASK") == 2


def test_half_may_be_reduced_in_half(vendor, square):
    sets = square.sets
    _make("cublas", accumulate="fp16").prepare(STREAM, sets)
    assert "set_math_mode" not in {call[0] for call in vendor.cublas.calls}
    _make("cublaslt", accumulate="fp16").prepare(STREAM, sets)
    assert vendor.lt.preference("REDUCTION_SCHEME_MASK") == 7


def test_all_libraries_have_the_stated_workspace(vendor, square):
    sets = square.sets
    for name in VENDOR:
        _make(name).prepare(STREAM, sets)
    (workspace,) = (call for call in vendor.cublas.calls if call[0] == "set_workspace")
    assert vendor.driver.allocated[workspace[1]] == workspace[2] == WORKSPACE_BYTES
    assert {vendor.driver.allocated[call[2]] for call in vendor.lt.calls} == {WORKSPACE_BYTES}
    assert {call[3] for call in vendor.lt.calls} == {WORKSPACE_BYTES}
    assert vendor.lt.preference("MAX_WORKSPACE_BYTES") == WORKSPACE_BYTES


def test_cublas_gets_its_workspace_again_after_every_change_of_stream(vendor, square):
    library = _make("cublas")
    library.prepare(STREAM, square.sets)
    for stream in (STREAM, 6, 6, STREAM):
        library.launch(stream, 0)
    names = [call[0] for call in vendor.cublas.calls]
    change = ["set_stream", "set_workspace"]
    assert names == ["set_math_mode", *change, "gemm", "gemm", *change, "gemm", "gemm", *change, "gemm"]


def test_cublaslt_is_told_the_alignment_of_the_worst_set(vendor):
    plain = np.zeros(4096, np.float16)
    base = -(-plain.ctypes.data // 512) * 512
    sets = [{"A": base, "B": base + 512, "C": base + 1024}, {"A": base + 16, "B": base + 512, "C": base + 1026}]
    _make("cublaslt").prepare(STREAM, sets)
    # cuBLASLt's first operand is the row-major B.
    asked = {letter: vendor.lt.preference(f"MIN_ALIGNMENT_{letter}_BYTES") for letter in "ABCD"}
    assert asked == {"A": 256, "B": 16, "C": 2, "D": 2}


def test_heuristic_takes_the_first_and_tuning_the_fastest(vendor, square):
    vendor.lt.times_us = [9.0, 4.0, None, 3.0, 8.0]
    sets = square.sets
    first, tuned = _make("cublaslt"), _make("cublaslt-tuned")
    first.prepare(STREAM, sets)
    tuned.prepare(STREAM, sets)
    vendor.lt.calls.clear()
    first.launch(STREAM, 0)
    tuned.launch(STREAM, 0)
    assert [call[1] for call in vendor.lt.calls] == [0, 3]
    assert [most for _, most in vendor.lt.asked] == [1, 256]
    assert "number 3 of 4 timed, 1 failed: algorithm 3, tile 128x64, stages 1" in tuned.description
    assert str(WORKSPACE_BYTES) in tuned.description
    assert "13.1.0" in tuned.description


def test_tuning_runs_every_set_in_turn(vendor):
    vendor.lt.times_us = [200.0]
    buffers = Buffers("nn", (8, 8, 8, 1))
    _make("cublaslt-tuned").prepare(STREAM, buffers.sets)
    assert all(np.isfinite(c).all() for c in buffers.c)


@pytest.mark.parametrize("times", [[], [None], [None, None]])
def test_library_without_a_working_algorithm_says_so_and_leaves_nothing(vendor, square, times):
    vendor.lt.times_us = times
    with pytest.raises(ToolchainError, match="cuBLASLt"):
        _make("cublaslt-tuned").prepare(STREAM, square.sets)
    assert vendor.lt.n_open == len(vendor.driver.allocated) == 0


@pytest.mark.parametrize("name", VENDOR)
def test_no_room_for_the_workspace_is_the_machines_fault(vendor, square, name):
    vendor.driver.room_bytes = 10
    with pytest.raises(DeviceError, match="expected 1048576 free bytes, found OUT_OF_MEMORY"):
        _make(name).prepare(STREAM, square.sets)
    assert vendor.cublas.n_open == vendor.lt.n_open == 0


@pytest.mark.parametrize("sets", [[], [{"A": 256, "B": 512}]])
@pytest.mark.parametrize("name", VENDOR)
def test_buffer_sets_must_be_whole(vendor, name, sets):
    with pytest.raises(ConfigurationError, match="buffer set"):
        _make(name).prepare(STREAM, sets)


@pytest.mark.parametrize("name", VENDOR)
@pytest.mark.parametrize("broken", ["nvmath", "library"])
def test_missing_library_is_one_clear_line(vendor, monkeypatch, name, broken):
    if broken == "nvmath":
        for module in ("nvmath", "nvmath.bindings", "nvmath.bindings.cublas", "nvmath.bindings.cublasLt"):
            monkeypatch.setitem(sys.modules, module, None)
    else:

        def fail(part):
            raise RuntimeError("Failure finding 'libcublas.so'\nin any of: …")

        monkeypatch.setattr(vendor.cublas, "get_property", fail)
        monkeypatch.setattr(vendor.lt, "get_property", fail)
    with pytest.raises(ToolchainError, match=r"expected nvmath-python and a libcublas.*; try: pip install") as raised:
        _make(name)
    assert "\n" not in str(raised.value)


class FakeTorch(ModuleType):
    """torch, as far as a product goes; its tensors are the interfaces that it was given."""

    def __init__(self, cuda="13.0"):
        super().__init__("torch")
        self.__version__ = "2.11.0"
        self.version = SimpleNamespace(cuda=cuda)
        self.switches = SimpleNamespace(allow_fp16_reduced_precision_reduction=True, allow_fp16_accumulation=False)
        self.backends = SimpleNamespace(cuda=SimpleNamespace(matmul=self.switches))
        self.stream = 0
        self.seen = []
        self.cuda = SimpleNamespace(
            ExternalStream=lambda handle: handle,
            set_stream=lambda stream: setattr(self, "stream", stream),
            default_stream=lambda: 0,
            current_stream=lambda: SimpleNamespace(synchronize=lambda: None),
        )

    def as_tensor(self, buffer, device):
        interface = buffer.__cuda_array_interface__
        shape = interface["shape"]
        swapped = SimpleNamespace(shape=(*shape[:-2], shape[-1], shape[-2]))
        return SimpleNamespace(
            shape=shape,
            data_ptr=lambda: interface["data"][0],
            transpose=lambda first, second: swapped,
            dtype=interface["typestr"],
        )

    def matmul(self, a, b, out):
        sums = (self.switches.allow_fp16_reduced_precision_reduction, self.switches.allow_fp16_accumulation)
        self.seen.append((self.stream, sums, a.shape, b.shape, out.shape))


@pytest.fixture
def torch(monkeypatch):
    module = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", module)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    return module


@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_torch_multiplies_what_it_is_given_on_the_stream(torch, monkeypatch, layout):
    single, batch = _make("torch", layout, sizes=(2, 3, 4, 1)), _make("torch", layout, "fp16", sizes=(2, 3, 4, 5))
    sets = [{"A": 256, "B": 512, "C": 768}]
    single.prepare(STREAM, sets)
    batch.prepare(STREAM, sets)
    torch.seen.clear()
    single.launch(STREAM, 0)
    batch.launch(6, 0)
    single.launch(STREAM, 0)
    one = (STREAM, (False, False), (2, 4), (4, 3), (2, 3))
    assert torch.seen == [one, (6, (True, True), (5, 2, 4), (5, 4, 3), (5, 2, 3)), one]
    single.close()
    batch.close()
    assert torch.stream == 0


def test_torch_has_the_stated_workspace(torch, monkeypatch):
    environ = {}
    monkeypatch.setattr("os.environ", environ)
    library = _make("torch", workspace_bytes=32 << 20)
    assert environ == {}
    library.prepare(STREAM, [{"A": 256, "B": 512, "C": 768}])
    assert environ == {"CUBLAS_WORKSPACE_CONFIG": ":32768:1"}
    library.close()


@pytest.mark.parametrize("module", [None, FakeTorch(cuda=None)])
def test_torch_is_missing_where_it_has_no_cuda(monkeypatch, module):
    monkeypatch.setitem(sys.modules, "torch", module)
    with pytest.raises(ToolchainError, match=r"expected torch, built for CUDA, found .*torch.*; try: pip install torch"):
        _make("torch")


def test_old_torch_cannot_sum_in_half(torch):
    del torch.switches.allow_fp16_accumulation
    _make("torch", accumulate="fp32")
    with pytest.raises(ToolchainError, match=r"torch 2\.7 or newer"):
        _make("torch", accumulate="fp16")


def test_names_are_those_of_the_libraries(vendor, torch):
    assert baseline_names() == ("torch", "cublas", "cublaslt", "cublaslt-tuned")
    assert tuple(_make(name).name for name in baseline_names()) == baseline_names()


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "mkl"}, {"layout": "tn"}, {"accumulate": "bf16"}, {"sizes": (1, 2, 3)}, {"sizes": (0, 1, 1, 1)},
        {"workspace_bytes": -1024}, {"workspace_bytes": 1000},
    ],
)  # fmt: skip
def test_what_is_not_admitted_is_refused_by_name(vendor, wrong):
    with pytest.raises(ConfigurationError, match=r"expected .*found"):
        _make(**{"name": "cublas", **wrong})


def test_module_is_imported_without_any_library():
    code = "import sys, evo_l2.targets.cuda.libraries.library; print({'torch', 'nvmath', 'cuda', 'cupy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(("addresses", "expected"), [([0], 256), ([512, 1024], 256), ([512, 24], 8), ([3], 1), ([], 256)])
def test_alignment_is_the_power_of_two_that_divides_all(addresses, expected):
    assert alignment_bytes(addresses) == expected


def test_call_is_the_product_of_the_transposes():
    call = GemmCall("nt", "fp32", (2, 3, 4, 5))
    assert (call.m, call.n, call.k, call.batch) == (3, 2, 4, 5)
    assert (call.row_major("A"), call.row_major("B"), call.row_major("C")) == ((5, 2, 4), (5, 3, 4), (5, 2, 3))
    assert GemmCall("nn", "fp32", (2, 3, 4, 5)).row_major("B") == (5, 4, 3)


class Entry:
    """A recording whose samples are given; the last of them is repeated."""

    def __init__(self, samples):
        self.samples = list(samples)
        self.n_taken = 0
        self.n_open = 0

    def sample_us(self):
        assert self.n_open == 1
        sample = self.samples[min(self.n_taken, len(self.samples) - 1)]
        self.n_taken += 1
        return sample

    def close(self):
        self.n_open -= 1


def _choose(*entries):
    def record(index):
        if entries[index] is not None:
            entries[index].n_open += 1
        return entries[index]

    choice = choose(len(entries), record)
    assert all(entry is None or entry.n_open == 0 for entry in entries)
    return choice


def test_lucky_first_samples_do_not_decide():
    choice = _choose(Entry([6.0]), Entry([1.0, 1.0, 1.0, 9.0]), Entry([5.0]))
    assert (choice.index, choice.time_us, choice.first_us) == (2, 5.0, 6.0)


def test_first_entry_is_in_the_finals_whatever_its_time():
    entries = [Entry([90.0, 90.0, 90.0, 2.0]), *(Entry([10.0 + index]) for index in range(8))]
    assert _choose(*entries).index == 0


def test_hopeless_entry_costs_one_sample_and_failures_are_dropped():
    slow = Entry([50.0])
    choice = _choose(None, *(Entry([1.0]) for _ in range(7)), slow)
    assert slow.n_taken == 1
    assert (choice.n_timed, choice.n_failed, choice.first_us) == (8, 1, None)


def test_nothing_is_chosen_where_all_fail():
    assert _choose(None, None) is None
