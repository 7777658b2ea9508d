"""The best kernels of an archive as a small package that stands alone: `evo-l2 library build`."""
