"""Timing sessions in queries: which of a kernel's sessions counts for what."""

from __future__ import annotations

__all__ = ["FIRST"]

FIRST = "(SELECT MIN(t.id) FROM timing_sessions t WHERE t.verdict_id = c.verdict_id AND t.log_low IS NOT NULL)"
"""The first session of a candidate's kernel whose times can be trusted; `c` is the candidate."""
