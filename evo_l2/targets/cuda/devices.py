"""Which cards are in this machine, by the driver's own tool; needs neither cupy nor a CUDA toolkit."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass

from evo_l2.errors import ConfigurationError, DeviceError
from evo_l2.targets.cuda.cards import CARDS, Card, find_card

__all__ = ["Device", "choose_card", "present_devices", "refuse_busy"]

_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Device:
    """One card in this machine."""

    name: str
    """As the driver says it: `NVIDIA A100-SXM4-80GB`."""
    compute_capability: tuple[int, int]

    @property
    def card(self) -> Card | None:
        """Its row in the table of cards; None for a card that is not in it."""
        try:
            return find_card(self.name)
        except ConfigurationError:
            return None


def present_devices(tool: str = "nvidia-smi") -> tuple[Device, ...]:
    """The cards in order of index; none where there is no driver, or it does not answer within 20 s."""
    found = []
    for line in _ask(tool, "--query-gpu=name,compute_cap"):
        name, _, capability = line.rpartition(",")
        major, _, minor = capability.strip().partition(".")
        if name.strip() and major.isdigit() and minor.isdigit():
            found.append(Device(name.strip(), (int(major), int(minor))))
    return tuple(found)


def refuse_busy(device: int, tool: str = "nvidia-smi") -> None:
    """Nothing, where no other process computes on a card, or the driver's tool does not tell.

    Raises:
        DeviceError: Others use it, so that no time measured there would mean anything.
    """
    names = _ask(tool, "--query-compute-apps=pid,process_name", f"--id={device}")
    others = [line for line in names if line.partition(",")[0].strip().isdigit() and not _is_ours(line)]
    if others:
        found = "; ".join(" ".join(line.split()) for line in others[:3]) + (" and more" if len(others) > 3 else "")
        hint = "wait for them, or another card: --set cuda.device=1; or --set cuda.allow_busy=true"
        raise DeviceError("the card is in use", expected=f"no other process on card {device}", found=found, hint=hint)


def _is_ours(line: str) -> bool:
    return int(line.partition(",")[0]) == os.getpid()


def _ask(tool: str, *words: str) -> list[str]:
    """Lines of the driver's tool; none where it is missing, fails, or does not answer within 20 s."""
    path = shutil.which(tool)
    if path is None:
        return []
    command = [path, *words, "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []


def choose_card(wanted: str, devices: tuple[Device, ...], number: int | None = None) -> tuple[Card, int]:
    """The card that a run is for, and its number in this machine.

    Args:
        wanted: Name of a card, or `auto` for any of the table.
        devices: See `present_devices`.
        number: Which of them; the first that fits when left out.

    Raises:
        ConfigurationError: No card has that name.
        DeviceError: The card is not in this machine, or none is.
    """
    asked = find_card(wanted) if wanted != "auto" else None
    for place, device in enumerate(devices):
        fits = device.card is not None and asked in (None, device.card)
        if device.card is not None and fits and number in (None, place):
            return device.card, place
    expected = asked.name if asked is not None else "one of " + ", ".join(card.name for card in CARDS)
    expected += f" as number {number}" if number is not None and devices else ""
    found = ", ".join(device.name for device in devices) or "no NVIDIA card (nvidia-smi names none)"
    hint = "to build and check without running: --set cuda.mode=build-only"
    hint += " --set cuda.card=A100" if asked is None else ""
    what = "there is no card to run on" if asked is None else "the run is for another card"
    raise DeviceError(what, expected=expected, found=found, hint=hint)
