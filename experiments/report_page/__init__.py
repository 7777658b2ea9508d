"""`evo-l2 report`: an archive's run as one HTML page that needs no network."""

from __future__ import annotations

from experiments.report_page.writing import Written, write_report

__all__ = ["Written", "write_report"]
