"""What an archive teaches: read-only questions about runs, operators, costs, kernels, cells, descent and edits."""

from __future__ import annotations

from archive.mining.cells import CellMap, cells, grid_of, rebin
from archive.mining.columns import COLUMNS, Column
from archive.mining.comparison import Comparison, Difference, SideBySide, compare, diff_lines
from archive.mining.digests import resolve
from archive.mining.edits import KINDS, Edit, TunableChange, edit
from archive.mining.environments import EnvironmentFacts, environments, last_run
from archive.mining.families import Family, Relative, family
from archive.mining.filters import FUNCTIONS, Filter, parse_filter
from archive.mining.fronts import Front, FrontPoint, pareto, pareto_front
from archive.mining.gains import Gain, Mean, Share, gain, mean_gain, share
from archive.mining.kernels import Judgement, KernelFacts, show, top
from archive.mining.lineage import Ancestor, lineage
from archive.mining.members import Field, Member, field, fields, members
from archive.mining.moves import Move, MoveStats, iter_moves, moves, tally
from archive.mining.queries import query, select
from archive.mining.regimes import RegimeElite, elites, regime
from archive.mining.runs import CurvePoint, LedgerLine, OperatorStats, RunStats, curve, ledger, stats
from archive.mining.sql import Answer, is_sql, sql
from archive.mining.tables import TABLES, Table, arrow_of, table, write_parquet

__all__ = [
    "COLUMNS",
    "FUNCTIONS",
    "KINDS",
    "TABLES",
    "Ancestor",
    "Answer",
    "CellMap",
    "Column",
    "Comparison",
    "CurvePoint",
    "Difference",
    "Edit",
    "EnvironmentFacts",
    "Family",
    "Field",
    "Filter",
    "Front",
    "FrontPoint",
    "Gain",
    "Judgement",
    "KernelFacts",
    "LedgerLine",
    "Mean",
    "Member",
    "Move",
    "MoveStats",
    "OperatorStats",
    "RegimeElite",
    "Relative",
    "RunStats",
    "Share",
    "SideBySide",
    "Table",
    "TunableChange",
    "arrow_of",
    "cells",
    "compare",
    "curve",
    "diff_lines",
    "edit",
    "elites",
    "environments",
    "family",
    "field",
    "fields",
    "gain",
    "grid_of",
    "is_sql",
    "iter_moves",
    "last_run",
    "ledger",
    "lineage",
    "mean_gain",
    "members",
    "moves",
    "pareto",
    "pareto_front",
    "parse_filter",
    "query",
    "rebin",
    "regime",
    "resolve",
    "select",
    "share",
    "show",
    "sql",
    "stats",
    "table",
    "tally",
    "top",
    "write_parquet",
]
