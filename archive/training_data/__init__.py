"""Training data out of an archive: rows for SFT, DPO, KTO, GRPO and contrastive prompts, split so that nothing leaks.

Prompts are rendered by whoever knows how (`Renderer`), since the archive knows nothing of operators.
"""

from __future__ import annotations

from archive.training_data.exporting import ExportedData, Options, export_training_data
from archive.training_data.rendering import Rendered, Renderer

__all__ = ["ExportedData", "Options", "Rendered", "Renderer", "export_training_data"]
