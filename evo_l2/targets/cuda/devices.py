"""Which cards are in this machine, by the driver's own tool; needs neither cupy nor a CUDA toolkit."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass

from evo_l2.errors import ConfigurationError, DeviceError, ToolchainError
from evo_l2.targets.cuda.cards import CARDS, Card, find_card
from evo_l2.targets.cuda.tool_process import SilentToolError, tool_output
from evo_l2.targets.messages import printable

__all__ = ["Device", "cards_alike", "choose_card", "driver_complaint", "present_devices", "refuse_busy"]

_LONGEST_NAME = 120
_VERSION = re.compile(r"(\d{1,3})\.(\d{1,3})", re.ASCII)
_PROCESS = re.compile(r"\d{1,9}", re.ASCII)


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
    """The cards in order of index; none where there is no driver, or it names none.

    Raises:
        DeviceError: The driver's tool hangs, so that nobody knows.
    """
    found = []
    for line in _ask(tool, "--query-gpu=name,compute_cap"):
        name, _, capability = line.rpartition(",")
        version = _VERSION.fullmatch(capability.strip())
        if name.strip() and version is not None:
            found.append(Device(printable(name.strip())[:_LONGEST_NAME], (int(version[1]), int(version[2]))))
    return tuple(found)


def refuse_busy(device: int, tool: str = "nvidia-smi") -> None:
    """Nothing, where no other process computes on a card, or the driver's tool does not tell.

    Raises:
        DeviceError: Others use it, so that no time measured there would mean anything; or the driver's tool hangs.
    """
    names = _ask(tool, "--query-compute-apps=pid,process_name", f"--id={device}")
    processes = [(line.partition(",")[0].strip(), line) for line in names]
    others = [line for number, line in processes if _PROCESS.fullmatch(number) and int(number) != os.getpid()]
    if others:
        shown = [printable(" ".join(line.split()))[:_LONGEST_NAME] for line in others[:3]]
        found = "; ".join(shown) + (" and more" if len(others) > 3 else "")
        hint = "wait for them; or another card: --device 1 (of run: --set cuda.device=1, or --set cuda.allow_busy=true)"
        raise DeviceError("the card is in use", expected=f"no other process on card {device}", found=found, hint=hint)


def _ask(tool: str, *words: str) -> list[str]:
    """Lines of the driver's tool; none where it is missing, or fails.

    Raises:
        DeviceError: It hangs.
    """
    path = shutil.which(tool)
    if path is None:
        return []
    try:
        return tool_output([path, *words, "--format=csv,noheader"], with_errors=False).splitlines()
    except SilentToolError as error:
        hint = (
            f"{tool}, and restart the machine if that hangs too; without a card: evo-l2 verify KERNEL.cu --arch sm_80, "
            "or of run: --set cuda.mode=build-only --set cuda.card=A100"
        )
        what, expected = "nobody knows which cards are here", f"{tool} to answer"
        raise DeviceError(what, expected=expected, found=f"no answer: {error.found}", hint=hint) from error
    except ToolchainError:
        return []


def driver_complaint(tool: str = "nvidia-smi") -> str:
    """Why there is no card, in words: the driver's tool is missing, fails, or names none."""
    path = shutil.which(tool)
    if path is None:
        return f"there is no {tool}"
    try:
        tool_output([path, "--query-gpu=name", "--format=csv,noheader"])
    except ToolchainError as error:
        return printable(error.found or error.what)[: 2 * _LONGEST_NAME]
    return f"{tool} names none"


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
    hint = "evo-l2 doctor; without a card: evo-l2 verify KERNEL.cu --arch sm_80, or of run: --set cuda.mode=build-only"
    hint += " --set cuda.card=A100" if asked is None else ""
    what = "there is no card to run on" if asked is None else "the run is for another card"
    raise DeviceError(what, expected=expected, found=found, hint=hint)


def cards_alike(card: Card, devices: tuple[Device, ...], first: int, count: int) -> tuple[int, ...]:
    """Numbers of `count` cards of one kind, from number `first` on.

    Raises:
        DeviceError: There are fewer.
    """
    alike = [place for place, device in enumerate(devices) if device.card == card and place >= first][:count]
    if len(alike) < count:
        expected = f"{count} cards {card.name} from number {first} on, as workers.cards says"
        found = ", ".join(f"{place}: {device.name}" for place, device in enumerate(devices))
        raise DeviceError("there are too few cards", expected=expected, found=found, hint=f"--set workers.cards={len(alike)}")
    return tuple(alike)
