"""Which card is taken, whether it is free, what it says of itself, and errors of the driver in words."""

import re
import sys
from dataclasses import replace

import pytest

from evo_l2.errors import ConfigurationError, DeviceError, ToolchainError
from evo_l2.targets.cuda import tool_process
from evo_l2.targets.cuda.card.driver_facts import driver_facts
from evo_l2.targets.cuda.card.stage import load_cupy
from evo_l2.targets.cuda.cards import find_card
from evo_l2.targets.cuda.devices import Device, cards_alike, choose_card, driver_complaint, present_devices, refuse_busy
from evo_l2.targets.cuda.driver import CudaError, bindings, checked, retain_context

A100 = Device("NVIDIA A100-SXM4-80GB", (8, 0))
H200 = Device("NVIDIA H200", (9, 0))
T4 = Device("Tesla T4", (7, 5))


# --- the choice -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "number", "name", "place"),
    [
        ("auto", None, "H200", 1), ("auto", 3, "A100", 3), ("A100", None, "A100", 2), ("a100", 3, "A100", 3),
        ("NVIDIA H200", 1, "H200", 1),
    ],
)  # fmt: skip
def test_the_first_card_that_fits_is_taken_or_the_one_of_the_number(wanted, number, name, place):
    card, found = choose_card(wanted, (T4, H200, A100, A100), number)
    assert (card.name, found) == (name, place)


@pytest.mark.parametrize(
    ("wanted", "number", "words"),
    [
        ("A100", 1, "the run is for another card: expected A100 as number 1, found Tesla T4, NVIDIA H200"),
        ("auto", 0, r"there is no card to run on: expected one of A100, .* as number 0, found Tesla T4, NVIDIA H200"),
        ("auto", 7, "as number 7, found Tesla T4, NVIDIA H200; try: .*build-only --set cuda.card=A100"),
    ],
)
def test_a_number_without_a_card_that_fits_is_refused_with_what_is_there(wanted, number, words):
    with pytest.raises(DeviceError, match=words):
        choose_card(wanted, (T4, H200), number)


def test_a_card_that_nobody_knows_is_the_users_mistake_and_one_that_is_absent_the_machines():
    with pytest.raises(ConfigurationError, match="no such card"):
        choose_card("Voodoo 3", (H200,), 0)
    with pytest.raises(DeviceError, match=r"found no NVIDIA card \(nvidia-smi names none\)"):
        choose_card("H200", (), 0)


def test_cards_of_one_kind_are_taken_from_a_number_on():
    devices = (H200, A100, T4, A100, A100)
    assert cards_alike(A100.card, devices, 1, 2) == (1, 3)
    assert cards_alike(A100.card, devices, 3, 2) == (3, 4)
    with pytest.raises(DeviceError, match=r"expected 3 cards A100 from number 3 on.*4: NVIDIA A100.*--set workers\.cards=2"):
        cards_alike(A100.card, devices, 3, 3)


# --- whether it is free -----------------------------------------------------------------------------------------------


@pytest.fixture
def tool(tmp_path):
    """Makes a stand-in for the driver's tool that notes what it was asked."""

    def make(script):
        path = tmp_path / "tool"
        path.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n{script}\n')
        path.chmod(0o755)
        return str(path)

    return make


def test_a_card_that_others_use_is_refused_with_their_names(tool, tmp_path):
    with pytest.raises(DeviceError) as raised:
        refuse_busy(2, tool("printf '11, a\\n12,   b  c\\n13, d\\n14, e\\n'"))
    assert str(raised.value) == (
        "the card is in use: expected no other process on card 2, found 11, a; 12, b c; 13, d and more; "
        "try: wait for them; or another card: --device 1 (of run: --set cuda.device=1, or --set cuda.allow_busy=true)"
    )
    asked = (tmp_path / "asked").read_text().split()
    assert asked == ["--query-compute-apps=pid,process_name", "--id=2", "--format=csv,noheader"]


@pytest.mark.parametrize(
    "script", ["exit 0", 'echo "$PPID, python"', "echo '11, a'; exit 9", "echo '[N/A], [N/A]'", "kill -SEGV $$"]
)
def test_a_card_that_nobody_else_is_known_to_use_is_free(tool, script):
    refuse_busy(0, tool(script))
    refuse_busy(0, "no-such-tool")


def test_a_driver_that_hangs_is_told_and_is_not_no_card(tool, monkeypatch):
    monkeypatch.setattr(tool_process, "_TIMEOUT_S", 1.0)
    hangs = tool("sleep 30")
    says = (
        f"nobody knows which cards are here: expected {hangs} to answer, found no answer: tool, which "
        f"had not ended after 1 s; try: {hangs}, "
    )
    for ask in (present_devices, lambda name: refuse_busy(0, name)):
        with pytest.raises(DeviceError) as raised:
            ask(hangs)
        assert str(raised.value).startswith(says)
        assert "evo-l2 verify KERNEL.cu --arch sm_80" in str(raised.value)


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (
            "echo 'NVIDIA-SMI has failed because of something'; exit 9",
            "returns 9: NVIDIA-SMI has failed because of something",
        ),
        ("exit 0", "names none"),
    ],
)
def test_why_there_is_no_card_is_told_in_words(tool, script, says):
    assert says in driver_complaint(tool(script))
    assert driver_complaint("no-such-tool") == "there is no no-such-tool"


# --- what it says of itself -------------------------------------------------------------------------------------------


def test_a_card_is_what_the_device_says_of_itself(fake_card):
    facts = driver_facts(0)
    assert (facts.name, facts.compute_capability, facts.driver) == (A100.name, (8, 0), "13.2")
    assert facts.memory_bytes == 1 << 30
    table = find_card("A100")
    assert facts.fitted(table) == replace(table, n_sms=4, l2_bytes=1 << 16, shared_per_block_bytes=163 << 10)


def test_a_device_of_another_kind_than_the_table_says_is_refused(fake_card):
    facts = driver_facts(0)
    with pytest.raises(DeviceError) as raised:
        facts.fitted(find_card("H200"))
    assert str(raised.value) == (
        "CUDA counts another card under this number: expected H200, compute capability 9.0, "
        "found NVIDIA A100-SXM4-80GB, 8.0; try: unset CUDA_VISIBLE_DEVICES, or --set cuda.card=auto"
    )
    fake_card.set(HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED=0)
    with pytest.raises(DeviceError, match=r"cannot be judged here: expected device memory that two processes can share"):
        driver_facts(0).fitted(find_card("A100"))


@pytest.mark.parametrize(
    ("settings", "device", "words"),
    [
        ({"init": 100}, 0, r"CUDA_ERROR_NO_DEVICE \(100\)"), ({}, 3, r"CUDA_ERROR_NO_DEVICE \(100\)"),
        ({"no_driver": True}, 0, r"Failed to dlopen libcuda\.so\.1"),
    ],
)  # fmt: skip
def test_a_driver_or_device_that_is_missing_is_one_clear_line(fake_card, settings, device, words):
    fake_card.set(**settings)
    expected = rf"the card cannot be used: expected CUDA device {device}, found {words}; try: nvidia-smi; .*build-only$"
    with pytest.raises(DeviceError, match=expected):
        driver_facts(device)


# --- the driver -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "package"),
    [(bindings, "cuda"), (lambda: driver_facts(0), "cuda"), (lambda: retain_context(0), "cuda"), (load_cupy, "cupy")],
)
def test_a_missing_package_is_one_clear_line_with_the_command_to_type(monkeypatch, ask, package):
    for name in ("cuda", "cuda.bindings", "cuda.bindings.driver", "cupy"):
        monkeypatch.setitem(sys.modules, name, None)
    needed = {"cuda": "kernels cannot be run: expected cuda-bindings", "cupy": "kernels cannot be judged: expected cupy"}
    with pytest.raises(ToolchainError) as raised:
        ask()
    pattern = rf"{needed[package]}, found .*{package}.*; try: pip install 'evo-l2\[cuda13\]' \(or cuda12\)"
    assert re.fullmatch(pattern, str(raised.value))


def test_a_status_is_an_error_by_name_and_values_come_as_they_are(fake_card):
    statuses = fake_card.driver.CUresult
    assert checked((statuses.CUDA_SUCCESS,)) is None
    assert checked((statuses.CUDA_SUCCESS, 5)) == 5
    assert checked((statuses.CUDA_SUCCESS, 5, 6)) == (5, 6)
    with pytest.raises(CudaError) as raised:
        checked((statuses.CUDA_ERROR_ILLEGAL_ADDRESS, None))
    assert (raised.value.code, raised.value.name) == (700, "CUDA_ERROR_ILLEGAL_ADDRESS")
    assert str(raised.value) == "CUDA_ERROR_ILLEGAL_ADDRESS (700)"
    with pytest.raises(CudaError, match=r"^999 \(999\)$"):
        checked((999,))


def test_a_context_is_that_of_the_device(fake_card):
    assert retain_context(0) == 0
    with pytest.raises(CudaError, match="NO_DEVICE"):
        retain_context(1)


@pytest.mark.parametrize(
    "line", ["NVIDIA H200, ².²", "NVIDIA H200, " + "9" * 5000 + ".0", "NVIDIA H200, 9", ", 9.0", "\x1b[2J"]
)
def test_odd_words_of_the_drivers_tool_are_no_card(tmp_path, line):
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\ncat <<'END'\n{line}\nEND\n", encoding="utf-8")
    tool.chmod(0o755)
    assert present_devices(str(tool)) == ()
    refuse_busy(0, str(tool))


def test_what_a_terminal_would_obey_is_named(tmp_path):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nprintf 'NVIDIA \\033[2JH200, 9.0\\n'\n", encoding="utf-8")
    tool.chmod(0o755)
    (device,) = present_devices(str(tool))
    assert device.name == "NVIDIA <U+001B>[2JH200"


def test_a_tool_that_writes_without_end_is_no_card(tmp_path):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nyes 'NVIDIA H200, 9.0'\n")
    tool.chmod(0o755)
    assert present_devices(str(tool)) == ()
