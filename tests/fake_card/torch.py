"""Keeps the real one away, whose import takes seconds."""

raise ImportError("no torch here")
