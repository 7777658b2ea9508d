"""The tree of descent, laid out: depth to the right, siblings below each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from evo_l2.contracts import Outcome
from experiments.report_page.facts import CandidateRow, CellRow

__all__ = ["MOST_NODES", "Node", "Tree", "lay_out"]

MOST_NODES = 260
"""Above that a tree cannot be read; it is cut to the ancestors of the best."""


@dataclass(frozen=True, slots=True)
class Node:
    """A right kernel of the run."""

    row: CandidateRow
    depth: int
    height: float
    """Its place among the leaves, from 0."""


@dataclass(frozen=True, slots=True)
class Tree:
    """Nodes and the pairs (parent, child) between them, both by place in `nodes`."""

    nodes: tuple[Node, ...]
    edges: tuple[tuple[int, int], ...]
    """By first parents."""
    further: tuple[tuple[int, int], ...]
    """By the other parents of a crossover."""
    n_left_out: int
    n_leaves: int


def lay_out(rows: Sequence[CandidateRow], cells: Sequence[CellRow] = (), *, most: int = MOST_NODES) -> Tree:
    """The descent of the right kernels.

    Args:
        rows: The run's candidates.
        cells: The elites, the best first: where there are too many kernels, these are kept with their ancestors.
        most: How many nodes there may be.
    """
    right = {row.digest: row for row in rows if row.outcome is Outcome.EVALUATED and row.is_right and row.digest is not None}
    kept = right if len(right) <= most else _ancestry(right, cells, most)
    order = sorted(kept.values(), key=lambda row: row.index)
    place = {row.digest: i for i, row in enumerate(order)}
    children: dict[int, list[int]] = defaultdict(list)
    roots: list[int] = []
    edges, further = [], []
    for i, row in enumerate(order):
        parents = [place[p] for p in row.parents if p in place and place[p] < i]
        if parents and row.parents[0] in place:
            children[parents[0]].append(i)
            edges.append((parents[0], i))
            further += [(parent, i) for parent in parents[1:]]
        else:
            roots.append(i)
            further += [(parent, i) for parent in parents]
    depth, height, n_leaves = _places(roots, children, len(order))
    nodes = tuple(Node(row, depth[i], height[i]) for i, row in enumerate(order))
    return Tree(nodes, tuple(edges), tuple(further), len(right) - len(kept), n_leaves)


def _ancestry(right: dict[str, CandidateRow], cells: Sequence[CellRow], most: int) -> dict[str, CandidateRow]:
    kept: dict[str, CandidateRow] = {}
    for cell in cells:
        line: dict[str, CandidateRow] = {}
        level = [cell.digest]
        while level:
            digest = level.pop()
            if digest in right and digest not in kept and digest not in line:
                line[digest] = right[digest]
                level.extend(right[digest].parents)
        if len(kept) + len(line) <= most:
            kept |= line
    return kept


def _places(roots: Sequence[int], children: dict[int, list[int]], n: int) -> tuple[list[int], list[float], int]:
    """Depth and height of every node: a leaf has the next line, a parent the middle of its children."""
    depth, height = [0] * n, [0.0] * n
    n_leaves = 0
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        node, is_done = stack.pop()
        own = children.get(node, [])
        if is_done:
            height[node] = (height[own[0]] + height[own[-1]]) / 2
        elif own:
            stack.append((node, True))
            for child in reversed(own):
                depth[child] = depth[node] + 1
                stack.append((child, False))
        else:
            height[node] = float(n_leaves)
            n_leaves += 1
    return depth, height, n_leaves
