"""Kernels on a card: runner, shared memory, judge's stage, pairs, baselines."""
