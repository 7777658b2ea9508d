"""Shared by the tests: the instant evaluator of the benchmarks, a cache of builds, the pinned CUDA toolkit, golden texts."""

import contextlib
import functools
import importlib
import importlib.util
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from evo_l2.errors import ToolchainError
from evo_l2.targets.cuda.reading.cubin import read_cubin
from evo_l2.targets.cuda.reading.sass import parse_sass
from evo_l2.targets.cuda.toolchain.compiler import CudaCompiler
from evo_l2.targets.cuda.toolchain.toolkit import PINNED_VERSION, find_toolkit

# How long an example takes says more of the machine than of the code.
settings.register_profile("evo-l2", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("evo-l2")


@pytest.fixture(scope="session")
def instant():
    """The module `benchmarks/instant.py`."""
    path = Path(__file__).parent.parent / "benchmarks" / "instant.py"
    spec = importlib.util.spec_from_file_location("evo_l2_instant", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def session_cache(tmp_path_factory):
    """A folder of caches, laid out as XDG_CACHE_HOME is, for tests that want a build and not a certain cache.

    The workers of a session share it: builds are kept by content, and several processes may use one cache at once.
    """
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"


@dataclass(frozen=True)
class Unwritable:
    """A cache that cannot be written, and the folder for temporary files that the embedded model is converted in instead."""

    cache: Path
    temporary: Path


@pytest.fixture(scope="session")
def embedded_elsewhere(session_cache):
    """Where a session converts the embedded model, once: it takes twenty seconds."""
    places = Unwritable(session_cache / "in-the-way", session_cache / "temporary")
    places.temporary.mkdir(parents=True, exist_ok=True)
    places.cache.write_text("no folder")
    return places


@pytest.fixture(scope="session")
def cuda_wheels():
    """The pinned CUDA toolkit, whole: what builds and messages look like must not depend on the machine."""
    needed = f"CUDA {PINNED_VERSION} is needed (pip install 'evo-l2[cuda-toolkit]')"
    try:
        toolkit = find_toolkit(wheels_first=True)
    except ToolchainError as error:
        pytest.skip(f"{needed}: {error}")
    if toolkit.source != "wheels" or ".".join(map(str, toolkit.major_minor)) != PINNED_VERSION:
        pytest.skip(f"{needed}, found {toolkit.version} of {toolkit.source}")
    for tool in ("nvcc", "ptxas", "nvrtc", "nvdisasm", "cuobjdump"):
        if getattr(toolkit, tool) is None:
            pytest.skip(f"{needed}: no {tool}")
    return toolkit


@pytest.fixture(scope="session")
def nvrtc(cuda_wheels, session_cache):
    """A compiler by NVRTC, which takes a sixth of the time of nvcc: for tests that want a build and not a certain builder."""
    with CudaCompiler(cuda_wheels, session_cache / "evo-l2" / "cuda", builder="nvrtc") as compiler:
        yield compiler


class FakeCard:
    """The settings of `tests/fake_card`, which this process and those that it starts read at every call."""

    def __init__(self, path):
        self._path = path
        self.reset()

    def set(self, **settings):
        """Changes what the card is like from now on."""
        self._settings |= settings
        self._write()

    def reset(self):
        """Makes it a card without a defect again."""
        self._settings = {}
        self._write()

    def _write(self):
        # In one step: a runner that starts meanwhile reads the old or the new.
        self._path.with_suffix(".new").write_text(json.dumps(self._settings), encoding="utf-8")
        self._path.with_suffix(".new").replace(self._path)

    @property
    def driver(self):
        """The driver's stand-in in this process."""
        return importlib.import_module("cuda.bindings.driver")


@contextlib.contextmanager
def _fake_card(path, monkeypatch):
    tests = Path(__file__).parent
    packages = ("cuda", "cupy", "nvmath")
    for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
        monkeypatch.delitem(sys.modules, name)
    card = FakeCard(path)
    monkeypatch.setenv("FAKE_CARD", str(path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (tests / "fake_card", tests, tests.parent))))
    monkeypatch.syspath_prepend(tests / "fake_card")
    yield card
    for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
        del sys.modules[name]


@pytest.fixture
def fake_card(tmp_path, monkeypatch):
    """A card made of this machine's memory, here and in every process that is started."""
    with _fake_card(tmp_path / "card.json", monkeypatch) as card:
        yield card


@pytest.fixture(scope="module")
def shared_card(tmp_path_factory):
    """One for a process that several tests use; what they set they have to set back."""
    path = tmp_path_factory.mktemp("card") / "card.json"
    with pytest.MonkeyPatch.context() as monkeypatch, _fake_card(path, monkeypatch) as card:
        yield card


class Goldens:
    """What real tools made of the kernels in `golden/cuda/`.

    They are of toolkit 13.2.86: cubin and log by `nvcc -cubin -arch=A -Xptxas -v`, `res_usage` by `cuobjdump -res-usage`,
    `sass` by `nvdisasm -c -gi -ndf` of a build with `-lineinfo`, folders taken out of the names of files; `constants` by
    NVRTC.
    """

    folder = Path(__file__).parent / "golden" / "cuda"
    listed = sorted(path.name.removesuffix(".sass.txt") for path in folder.glob("*.sass.txt"))
    """Kernels with their architectures, such as `tiles.sm_80`, of which there is a listing."""
    built = sorted(path.name.removesuffix(".ptxas.txt") for path in folder.glob("*.ptxas.txt"))
    """Of which there is a log."""

    def text(self, name):
        return (self.folder / name).read_text(encoding="utf-8")

    @functools.cache  # noqa: B019
    def sass(self, name):
        return parse_sass(self.text(f"{name}.sass.txt"))

    def cubin(self, name):
        return read_cubin(self.folder / f"{name}.cubin")


@pytest.fixture(scope="session")
def goldens():
    """The golden texts and cubins of CUDA."""
    return Goldens()


def pytest_generate_tests(metafunc):
    """`golden_listing` is the name of each golden kernel that has a listing, `golden_build` of each that has a log."""
    for name, values in (("golden_listing", Goldens.listed), ("golden_build", Goldens.built)):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, values)


@pytest.fixture(scope="session")
def postgres():
    """A PostgreSQL server for all tests of this process; `postgres.fresh()` is the URL of an empty place for an archive."""
    spec = importlib.util.spec_from_file_location("postgres_server", Path(__file__).parent / "postgres_server.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    server = module.start()
    yield server
    server.close()


ALONE = {
    "test_bad_input", "test_cli", "test_cpu_blas", "test_cpu_runner", "test_docs", "test_python_docs", "test_rogues_cpu",
    "test_run", "test_seeds_cpu", "test_soak_hostile",
}  # fmt: skip
"""Files whose tests time kernels on this machine, or expect that it holds still; those marked `beside` do not."""


LONG = {
    ("test_embedded_model", "test_processes_that_convert_at_once_share_one_conversion"),
    ("test_embedded_model", "test_embedded_model_speaks_where_its_cache_cannot_be_written"),
    ("test_local_generator", "test_dead_worker_costs_one_call_and_is_replaced"),
    ("test_local_generator", "test_same_seed_gives_the_same_reply_whatever_the_batch"),
    ("test_cuda_builders", "test_a_compiler_that_hangs_over_one_kernel_costs_that_kernel_and_is_tried_again"),
    ("test_cuda_prepare", "test_sass_shows_what_a_gate_refuses"),
}
"""Tests that take too long for every change; `make soak` has them."""


def pytest_collection_modifyitems(items):
    """Marks what must not run beside other tests, and leaves the longest to `make soak`."""
    for item in items:
        if item.path.stem in ALONE and item.get_closest_marker("beside") is None:
            item.add_marker(pytest.mark.alone)
        if (item.path.stem, item.originalname) in LONG:
            item.add_marker(pytest.mark.slow)
            if not os.environ.get("EVO_L2_SOAK"):
                item.add_marker(pytest.mark.skip(reason="takes long: EVO_L2_SOAK=1"))
