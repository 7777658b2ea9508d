"""What a run's opening, its best kernels and its numbers are read from, without reading every row."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds tables that follow from the others; `archive.database` fills them when it has upgraded a file."""
    op.create_index("standings_rank", "standings", ["problem_id", "environment_id", "schema_id", "cell", "log_low"])
    op.create_table(
        "pending",
        _to("problem_id", "problems"),
        _to("environment_id", "environments"),
        sa.Column("identity", sa.Text, nullable=False),
        _to("kernel_id", "kernels"),
        sa.Column("digest", sa.Text, nullable=False),
        _to("verdict_id", "verdicts"),
        _to("schema_id", "measures_schemas"),
        sa.Column("cell", sa.Text, nullable=True),
        sa.Column("is_run", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("problem_id", "environment_id", "identity"),
    )
    op.create_index("pending_place", "pending", ["problem_id", "environment_id", "schema_id", "is_run", "cell", "digest"])
    op.create_table(
        "revisits",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        _to("problem_id", "problems"),
        _to("environment_id", "environments"),
        sa.Column("identity", sa.Text, nullable=False),
        sa.UniqueConstraint("problem_id", "environment_id", "identity"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "run_tallies",
        _to("run_id", "runs"),
        sa.Column("operator", sa.Text, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("added", sa.Text, nullable=False),
        sa.Column("n", sa.Integer, nullable=False),
        sa.Column("wall_us", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "operator", "outcome", "status", "added"),
    )
    op.create_table(
        "run_operators",
        _to("run_id", "runs"),
        sa.Column("operator", sa.Text, nullable=False),
        sa.Column("first_idx", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "operator"),
    )
    op.create_table(
        "run_records",
        _to("run_id", "runs"),
        sa.Column("idx", sa.Integer, nullable=False),
        sa.Column("operator", sa.Text, nullable=False),
        sa.Column("log_low", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "idx"),
    )


def _to(name: str, table: str) -> sa.Column[int]:
    return sa.Column(name, sa.Integer, sa.ForeignKey(f"{table}.id"), nullable=False)
