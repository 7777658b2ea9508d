"""Which cards are in this machine, by the driver's own tool; needs neither cupy nor a CUDA toolkit."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass

from evo_l2.errors import ConfigurationError, DeviceError
from evo_l2.targets.cuda.cards import CARDS, Card, find_card

__all__ = ["Device", "choose_card", "present_devices"]

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
    path = shutil.which(tool)
    if path is None:
        return ()
    command = [path, "--query-gpu=name,compute_cap", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return ()
    if done.returncode != 0:
        return ()
    found = []
    for line in done.stdout.splitlines():
        name, _, capability = line.rpartition(",")
        major, _, minor = capability.strip().partition(".")
        if name.strip() and major.isdigit() and minor.isdigit():
            found.append(Device(name.strip(), (int(major), int(minor))))
    return tuple(found)


def choose_card(wanted: str, devices: tuple[Device, ...]) -> Card:
    """The card that a run is for.

    Args:
        wanted: Name of a card, or `auto` for the first one in this machine.
        devices: See `present_devices`.

    Raises:
        ConfigurationError: No card has that name.
        DeviceError: The card is not in this machine, or none is.
    """
    known = ", ".join(card.name for card in CARDS)
    without = "to build and check without running: --set cuda.mode=build-only"
    if wanted == "auto":
        for device in devices:
            if device.card is not None:
                return device.card
        found = ", ".join(device.name for device in devices) or "no NVIDIA card (nvidia-smi names none)"
        hint = f"{without} --set cuda.card=A100"
        raise DeviceError("there is no card to run on", expected=f"one of {known}", found=found, hint=hint)
    card = find_card(wanted)
    if not any(device.card == card for device in devices):
        found = ", ".join(device.name for device in devices) or "no NVIDIA card (nvidia-smi names none)"
        raise DeviceError("the run is for another card", expected=card.name, found=found, hint=without)
    return card
