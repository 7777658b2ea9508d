"""What a card says of itself: read off the device, so that nothing about it is taken for granted."""

from __future__ import annotations

from dataclasses import dataclass, replace

from evo_l2.errors import ConfigurationError, DeviceError
from evo_l2.targets.cuda.cards import Card, find_card
from evo_l2.targets.cuda.driver import CudaError, bindings, checked

__all__ = ["DriverFacts", "driver_facts"]


@dataclass(frozen=True, slots=True)
class DriverFacts:
    """One device."""

    name: str
    compute_capability: tuple[int, int]
    n_sms: int
    l2_bytes: int
    memory_bytes: int
    shared_per_block_bytes: int
    shares_memory: bool
    """Whether its memory can be shared with another process."""
    driver: str
    """Highest version of CUDA that the driver knows."""

    def fitted(self, card: Card) -> Card:
        """The table's card with what this device says.

        Raises:
            DeviceError: It is another card, or lacks what running kernels needs.
        """
        if self.compute_capability != card.compute_capability or not _is_named(self.name, card):
            expected = f"{card.name}, compute capability {'.'.join(map(str, card.compute_capability))}"
            found = f"{self.name}, {'.'.join(map(str, self.compute_capability))}"
            hint = "unset CUDA_VISIBLE_DEVICES, or --set cuda.card=auto"
            raise DeviceError("CUDA counts another card under this number", expected=expected, found=found, hint=hint)
        if not self.shares_memory:
            raise DeviceError("kernels cannot be judged here", expected="device memory that two processes can share")
        return replace(card, n_sms=self.n_sms, l2_bytes=self.l2_bytes, shared_per_block_bytes=self.shared_per_block_bytes)


def _is_named(name: str, card: Card) -> bool:
    try:
        return find_card(name) == card
    except ConfigurationError:
        return False


def driver_facts(device: int) -> DriverFacts:
    """Asks the driver.

    Raises:
        DeviceError: There is no driver or no such device.
        ToolchainError: cuda-bindings are missing.
    """
    cu = bindings()
    try:
        checked(cu.cuInit(0))
        handle = checked(cu.cuDeviceGet(device))
        ask = cu.CUdevice_attribute

        def attribute(name: str) -> int:
            return int(checked(cu.cuDeviceGetAttribute(getattr(ask, f"CU_DEVICE_ATTRIBUTE_{name}"), handle)))

        version = int(checked(cu.cuDriverGetVersion()))
        raw = checked(cu.cuDeviceGetName(256, handle))
        return DriverFacts(
            bytes(raw).split(b"\0")[0].decode(errors="replace").strip(),
            (attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")),
            attribute("MULTIPROCESSOR_COUNT"),
            attribute("L2_CACHE_SIZE"),
            int(checked(cu.cuDeviceTotalMem(handle))),
            attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
            attribute("HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED") == 1,
            f"{version // 1000}.{version % 1000 // 10}",
        )
    except (CudaError, RuntimeError) as error:  # the bindings raise RuntimeError where libcuda is missing
        hint = "nvidia-smi; to build and check without running: --set cuda.mode=build-only"
        raise DeviceError("the card cannot be used", expected=f"CUDA device {device}", found=str(error), hint=hint) from error
