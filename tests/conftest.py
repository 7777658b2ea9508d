"""Shared by the tests: the instant evaluator of the benchmarks, loaded from its file."""

import importlib.util
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def instant():
    """The module `benchmarks/instant.py`."""
    path = Path(__file__).parent.parent / "benchmarks" / "instant.py"
    spec = importlib.util.spec_from_file_location("evo_l2_instant", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
