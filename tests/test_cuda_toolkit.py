"""Which CUDA toolkit is found, what it is completed with, and what is said of one that does not do."""

import dataclasses
import shutil
import sys
import time

import pytest

from evo_l2.errors import ToolchainError
from evo_l2.targets.cuda.toolchain.compiler import CudaCompiler
from evo_l2.targets.cuda.toolchain.toolkit import find_toolkit


def clean_environment(monkeypatch, path):
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{path}:/usr/bin:/bin")


def fake_nvcc(folder, script):
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "nvcc").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "bin" / "nvcc").chmod(0o755)
    return folder


def test_a_script_that_stands_for_nvcc_leads_to_its_toolkit(cuda_wheels, tmp_path, monkeypatch):
    clean_environment(monkeypatch, fake_nvcc(tmp_path, f'exec {cuda_wheels.nvcc} "$@"') / "bin")
    found = find_toolkit()
    assert (found.source, found.version) == ("PATH", cuda_wheels.version)
    assert (found.nvcc, found.ptxas, found.include_dirs) == (cuda_wheels.nvcc, cuda_wheels.ptxas, cuda_wheels.include_dirs)
    assert {"sm_80", "sm_86", "sm_90a", "sm_100a"} <= set(found.architectures)


def test_what_is_named_comes_before_what_is_on_path_and_wheels_come_last(cuda_wheels, tmp_path, monkeypatch):
    clean_environment(monkeypatch, tmp_path)
    assert find_toolkit().source == "wheels"
    script = f'exec {cuda_wheels.nvcc} "$@"'
    monkeypatch.setenv("PATH", f"{fake_nvcc(tmp_path / 'path', script)}/bin:/usr/bin:/bin")
    assert find_toolkit().source == "PATH"
    monkeypatch.setenv("CUDA_PATH", str(fake_nvcc(tmp_path / "cuda path", script)))
    assert find_toolkit().source == "CUDA_PATH"
    monkeypatch.setenv("CUDA_HOME", str(fake_nvcc(tmp_path / "home", script)))
    assert find_toolkit().source == "CUDA_HOME"
    assert find_toolkit(wheels_first=True).source == "wheels"
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "nothing"))
    found = find_toolkit()
    assert found.source == "CUDA_PATH"
    assert "CUDA_HOME passed over" in found.notes[0]


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo 'Cuda compilation tools, release 11.8, V11.8.89'; echo sm_80", "11.8.89 is too old"),
        ("exit 3", "nvcc returns 3"),
        ("echo hello", "does not say its version"),
        ("echo 'Cuda compilation tools, V13999.0.88'; echo sm_80", "does not say its version"),
    ],
)
@pytest.mark.usefixtures("cuda_wheels")
def test_an_nvcc_that_cannot_be_used_is_passed_over_and_told(tmp_path, monkeypatch, script, says):
    folder = fake_nvcc(tmp_path, script)
    shutil.copy(folder / "bin" / "nvcc", folder / "bin" / "ptxas")
    clean_environment(monkeypatch, folder / "bin")
    found = find_toolkit()
    assert found.source == "wheels"
    assert says in found.notes[0]


def test_no_toolkit_is_one_clear_line(tmp_path, monkeypatch):
    clean_environment(monkeypatch, tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(
        ToolchainError, match=r"^no CUDA toolkit: expected nvcc 12\.4 .*try: pip install 'evo-l2\[cuda-toolkit\]'"
    ) as caught:
        find_toolkit()
    assert "\n" not in str(caught.value)


def test_a_toolkit_without_disassembler_is_completed_from_the_wheels(cuda_wheels, tmp_path, monkeypatch):
    dry = f"echo '#$ TOP={tmp_path}/bin/..'" + " ; exit 0"
    script = f'case "$1" in --dryrun) {dry};; esac\nexec {cuda_wheels.nvcc} "$@"'
    folder = fake_nvcc(tmp_path, script)
    shutil.copy(folder / "bin" / "nvcc", folder / "bin" / "ptxas")
    (folder / "include").mkdir()
    clean_environment(monkeypatch, folder / "bin")
    found = find_toolkit()
    assert found.source == "PATH"
    assert found.nvdisasm.samefile(cuda_wheels.nvdisasm)
    assert found.cuobjdump.samefile(cuda_wheels.cuobjdump)
    assert "nvdisasm and cuobjdump 13" in found.notes[0]
    assert "come from the wheels" in found.notes[0]


def test_a_missing_part_is_one_clear_line_with_its_wheel(cuda_wheels, tmp_path):
    toolkit = dataclasses.replace(cuda_wheels, nvdisasm=None)
    with pytest.raises(ToolchainError, match=r"no nvdisasm.*pip install 'nvidia-cuda-nvdisasm==13\.2\.\*'"):
        toolkit.tool("nvdisasm")
    with pytest.raises(ToolchainError, match=r"no nvrtc.*nvidia-cuda-nvrtc"):
        CudaCompiler(dataclasses.replace(toolkit, nvrtc=None), tmp_path, builder="nvrtc")


@pytest.mark.usefixtures("cuda_wheels")
def test_a_tool_without_an_end_to_what_it_says_is_passed_over_at_once(tmp_path, monkeypatch):
    folder = fake_nvcc(tmp_path, "exec yes nonsense")
    clean_environment(monkeypatch, folder / "bin")
    begin = time.monotonic()
    found = find_toolkit()
    assert found.source == "wheels"
    assert "nvcc writes more than 1048576 bytes" in found.notes[0]
    assert time.monotonic() - begin < 20


def test_a_host_compiler_that_is_missing_is_what_to_install(tmp_path, monkeypatch):
    folder = fake_nvcc(tmp_path, "echo 'gcc: No such file or directory' >&2; exit 1")
    clean_environment(monkeypatch, folder / "bin")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(ToolchainError, match=r"try: put gcc on PATH \(apt-get install g\+\+\): nvcc needs it"):
        find_toolkit()
