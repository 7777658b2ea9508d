"""evo-l2: evolution of matrix-multiplication kernels, with a language model as the variation operator."""

__version__ = "0.1.0"
