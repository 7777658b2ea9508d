"""A unique id for every run, what a merged run had seen, and a table of work that is leased."""

from __future__ import annotations

import hashlib
import json

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_CONTENT = (
    "SELECT r.id, r.name, r.target, r.config, r.seed, r.provenance, r.created, p.key, e.key, m.version FROM runs r"
    " JOIN problems p ON p.id = r.problem_id JOIN environments e ON e.id = r.environment_id"
    " JOIN measures_schemas m ON m.id = r.schema_id ORDER BY r.id"
)


def upgrade() -> None:
    """Runs get an id that no file gives twice; for those of before it follows from their content, so that copies agree."""
    for name in ("uid", "home_name", "merged"):
        op.add_column("runs", sa.Column(name, sa.Text, nullable=True))
    bind = op.get_bind()
    for run_id, *content in bind.execute(sa.text(_CONTENT)).all():
        uid = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]
        bind.execute(sa.text("UPDATE runs SET uid = :uid WHERE id = :id"), {"uid": uid, "id": run_id})
    op.create_index("runs_uid", "runs", ["uid"], unique=True)
    op.create_table(
        "run_bases",
        sa.Column("run_id", sa.Integer, sa.ForeignKey("runs.id"), nullable=False),
        sa.Column("seen_run_id", sa.Integer, sa.ForeignKey("runs.id"), nullable=False),
        sa.Column("n_verdicts", sa.Integer, nullable=False),
        sa.Column("n_sessions", sa.Integer, nullable=False),
        sa.Column("n_candidates", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "seen_run_id"),
    )
    op.create_table(
        "work",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("kernel_id", sa.Integer, sa.ForeignKey("kernels.id"), nullable=False),
        sa.Column("problem_id", sa.Integer, sa.ForeignKey("problems.id"), nullable=False),
        sa.Column("environment_id", sa.Integer, sa.ForeignKey("environments.id"), nullable=False),
        sa.Column("purpose", sa.Text, nullable=False),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("created", sa.Text, nullable=False),
        sa.Column("token", sa.Integer, nullable=False),
        sa.Column("holder", sa.Text, nullable=True),
        sa.Column("taken_s", sa.Float, nullable=True),
        sa.Column("expires_s", sa.Float, nullable=True),
        sa.Column("done", sa.Text, nullable=True),
        sa.UniqueConstraint("kernel_id", "problem_id", "environment_id", "purpose"),
        sqlite_autoincrement=True,
    )
    op.create_index("work_waiting", "work", ["purpose", "done", "expires_s"])
    op.create_index("work_taken", "work", ["taken_s"])
