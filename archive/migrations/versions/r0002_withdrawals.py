"""Verdicts that withdraw a kernel: a later measurement that failed, and when it came."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds how many candidates the run had told; null for a candidate's own verdict."""
    op.add_column("verdicts", sa.Column("after", sa.Integer, nullable=True))
