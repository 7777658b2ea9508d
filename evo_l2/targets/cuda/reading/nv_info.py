"""The records of a cubin's `.nv.info` sections: what a kernel's launch needs, by keys of NVIDIA's own.

Names of keys are those that `cuobjdump -elf` prints; see `cubin`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Attribute", "attributes", "parameter_rows", "triple"]

_PARAMETER, _PARAMETER_V2 = 0x17, 0x45


@dataclass(frozen=True, slots=True)
class Attribute:
    """One record of `.nv.info`: a key with a byte, a half word, or bytes."""

    key: int
    value: bytes

    def words(self) -> tuple[int, ...]:
        """Its value as words of 32 bits."""
        return struct.unpack(f"<{len(self.value) // 4}I", self.value[: len(self.value) // 4 * 4])


def attributes(data: bytes) -> Iterator[Attribute]:
    """Records are a format byte, a key byte and two bytes; in format 4 these are the length of what follows."""
    at = 0
    while at + 4 <= len(data):
        form, key = data[at], data[at + 1]
        if form == 0:
            return
        length = int.from_bytes(data[at + 2 : at + 4], "little") if form == 4 else 0
        start = at + 4 if form == 4 else at + 2
        end = start + (length if form == 4 else 2)
        yield Attribute(key, data[start:end])
        at = end


def triple(found: Mapping[int, Sequence[Attribute]], key: int) -> tuple[int, int, int] | None:
    """The three words of a key; None where there is none."""
    if key not in found:
        return None
    x, y, z = found[key][0].words()[:3]
    return x, y, z


def parameter_rows(found: Mapping[int, Sequence[Attribute]]) -> tuple[tuple[int, int], ...]:
    """Offset and size of each parameter in bytes, in the order of the source.

    The first form packs the size above bit 18 of its last word; the second, for more than 4 KiB of arguments, has the size
    in the low half of that word (the most is 32,764 bytes) and the address space at its top.
    """
    rows: list[tuple[int, int, int]] = []
    for attribute in found.get(_PARAMETER, []):
        _, ordinal, offset, packed = struct.unpack("<IHHI", attribute.value[:12])
        rows.append((ordinal, offset, packed >> 18))
    for attribute in found.get(_PARAMETER_V2, []):
        _, ordinal, offset, packed = struct.unpack("<IHHI", attribute.value[:12])
        rows.append((ordinal, offset, packed & 0xFFFF))
    return tuple((offset, size) for _, offset, size in sorted(rows))
