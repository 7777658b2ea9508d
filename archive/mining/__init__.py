"""What an archive teaches: read-only questions about runs, operators, costs and kernels."""

from __future__ import annotations

from archive.mining.digests import resolve
from archive.mining.kernels import Judgement, KernelFacts, show, top
from archive.mining.lineage import Ancestor, lineage
from archive.mining.runs import CurvePoint, LedgerLine, OperatorStats, RunStats, curve, ledger, stats

__all__ = [
    "Ancestor",
    "CurvePoint",
    "Judgement",
    "KernelFacts",
    "LedgerLine",
    "OperatorStats",
    "RunStats",
    "curve",
    "ledger",
    "lineage",
    "resolve",
    "show",
    "stats",
    "top",
]
