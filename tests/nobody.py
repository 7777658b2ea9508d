"""Tests of permissions: root, which no permission stops, becomes somebody else for a while."""

import contextlib
import os


@contextlib.contextmanager
def as_nobody():
    """Without root's rights; nothing changes for anyone else."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
