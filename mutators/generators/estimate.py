"""Tokens of a text where there is no tokenizer."""

from __future__ import annotations

__all__ = ["BYTES_PER_TOKEN", "estimate_tokens"]

BYTES_PER_TOKEN = 2
"""Prompts took 2.3 to 2.6 bytes a token by the embedded model's tokenizer, kernels 2.4 to 2.7; larger ones take more."""


def estimate_tokens(text: str) -> int:
    """Tokens of a text from above: one for every two bytes of UTF-8, begun ones included."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN)
