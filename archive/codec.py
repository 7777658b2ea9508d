"""Domain objects to column values and back; what is stored is JSON, so that it can be read without this project."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from evo_l2.evaluation import BuildReport, CaseTiming, Environment, Estimate, TimingSession
from evo_l2.measures import Axis, Cell, MeasuresSchema

__all__ = [
    "Text",
    "dump",
    "load",
    "load_build",
    "load_cell",
    "load_environment",
    "load_estimate",
    "load_measures",
    "load_schema",
    "load_session",
    "load_text",
    "now",
    "pack_text",
    "store_build",
    "store_measures",
    "store_schema",
    "store_session",
    "store_text",
    "text_digest",
    "unpack_text",
]

Text = str | bytes
"""Text as it is stored: a string. Files of before revision 0004 have bytes where it holds lone surrogates."""

_ODD = "\x01json:"
"""What odd text begins with where it is stored; the rest is a JSON string."""


def _encoding() -> Callable[[object], str]:
    encoder = json.JSONEncoder(separators=(",", ":"))
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return encoder.encode
    # `JSONEncoder.encode` makes one of these on every call, which takes longer than what it does with a small value.
    chunks = make(None, encoder.default, json.encoder.encode_basestring_ascii, None, ":", ",", False, False, True)
    return lambda value: "".join(chunks(value, 0))


_encode = _encoding()


def now() -> str:
    """The present moment in UTC, as ISO 8601 with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def dump(value: object) -> str:
    """Compact JSON in the order given."""
    return _encode(value)


def load(text: str | None) -> Any:
    """The inverse of `dump`; None for None."""
    return None if text is None else json.loads(text)


def store_text(text: str | None) -> Text | None:
    """Text as a column value: as it is, or as JSON where it holds NUL or lone surrogates, which not every database can."""
    if text is None:
        return None
    if "\0" in text or text.startswith(_ODD):
        return _ODD + json.dumps(text)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return _ODD + json.dumps(text)
    return text


def load_text(value: Text) -> str:
    """The inverse of `store_text`."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogatepass")
    return json.loads(value[len(_ODD) :]) if value.startswith(_ODD) else value


def text_digest(text: str) -> bytes:
    """SHA-256 of a text, 32 bytes."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def pack_text(text: str) -> bytes:
    """A long text, compressed with zlib."""
    return zlib.compress(text.encode("utf-8", "surrogatepass"), 6)


def unpack_text(blob: bytes) -> str:
    """The inverse of `pack_text`."""
    return zlib.decompress(blob).decode("utf-8", "surrogatepass")


def store_build(build: BuildReport | None) -> str | None:
    """A build report as JSON."""
    if build is None:
        return None
    return dump(
        {
            "seconds": build.seconds,
            "log": build.log,
            "machine_code": build.machine_code,
            "resources": dict(build.resources),
        }
    )


def load_build(text: str | None) -> BuildReport | None:
    """The inverse of `store_build`."""
    return None if text is None else BuildReport(**json.loads(text))


def store_measures(measures: tuple[float | None, ...] | None) -> str | None:
    """Measures as a JSON list; NaN, which JSON has not, means what null means: unknown."""
    return None if measures is None else dump([None if value != value else value for value in measures])


def load_measures(text: str | None) -> tuple[float | None, ...] | None:
    """Measures from a JSON list."""
    return None if text is None else tuple(json.loads(text))


def store_session(session: TimingSession) -> str:
    """The samples of a session as JSON: a list of cases, times in microseconds."""
    return dump(
        [
            {
                "sizes": case.sizes,
                "kernel_us": case.kernel_us,
                "baseline_us": case.baseline_us,
                "kept": [int(kept) for kept in case.kept],
                "bare_baseline_us": case.bare_baseline_us,
            }
            for case in session.cases
        ]
    )


def load_session(samples: str, purpose: str) -> TimingSession:
    """The inverse of `store_session`."""
    cases = tuple(
        CaseTiming(
            tuple(case["sizes"]),
            tuple(case["kernel_us"]),
            tuple(case["baseline_us"]),
            tuple(bool(kept) for kept in case["kept"]),
            case["bare_baseline_us"],
        )
        for case in json.loads(samples)
    )
    return TimingSession(cases, purpose)


def load_estimate(
    log_ratio: float | None, log_low: float | None, log_high: float | None, n_blocks: int | None
) -> Estimate | None:
    """An estimate from its four columns."""
    if log_ratio is None or log_low is None or log_high is None or n_blocks is None:
        return None
    return Estimate(log_ratio, log_low, log_high, n_blocks)


def load_cell(text: str | None) -> Cell | None:
    """A cell from a JSON list."""
    return None if text is None else tuple(json.loads(text))


def store_schema(schema: MeasuresSchema) -> str:
    """The axes as JSON."""
    return dump([{"name": a.name, "boundaries": a.boundaries, "labels": a.labels} for a in schema.axes])


def load_schema(text: str) -> MeasuresSchema:
    """The inverse of `store_schema`."""
    return MeasuresSchema(tuple(Axis(a["name"], tuple(a["boundaries"]), tuple(a["labels"])) for a in json.loads(text)))


def load_environment(target: str, identity: str, provenance: str) -> Environment:
    """An environment from its columns."""
    return Environment(target, json.loads(identity), json.loads(provenance))
