"""The first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Makes everything."""
    _provenance()
    _kernels()
    _candidates()
    _model_calls()
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    if not is_sqlite:
        op.execute(_APPEND_ONLY)
    for table in ("verdicts", "timing_sessions", "candidates", "kernels"):
        if not is_sqlite:
            op.execute(
                f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table}"
                " FOR EACH STATEMENT EXECUTE FUNCTION archive_append_only()"
            )
            continue
        for change in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER {table}_no_{change.lower()} BEFORE {change} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
            )
    for view in (_V_CANDIDATES, _V_ELITES, _V_BEST, _V_MODEL_CALLS):
        # PostgreSQL wants a name for every subquery; in SQLite the text stays that of the files there are.
        op.execute(view if is_sqlite else view.replace(")\nWHERE place = 1", ") t\nWHERE place = 1"))


def _key() -> sa.Column[int]:
    return sa.Column("id", sa.Integer, primary_key=True, autoincrement=True)


def _text(name: str, *, nullable: bool = False, unique: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=nullable, unique=unique)


def _integer(name: str, *, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.Integer, nullable=nullable)


def _real(name: str, *, nullable: bool = False) -> sa.Column[float]:
    return sa.Column(name, sa.Float, nullable=nullable)


def _to(name: str, table: str, *, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.Integer, sa.ForeignKey(f"{table}.id"), nullable=nullable)


def _provenance() -> None:
    op.create_table(
        "problems",
        _key(),
        _text("key", unique=True),
        _text("name"),
        _text("title"),
        _text("definition"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "environments",
        _key(),
        _text("key", unique=True),
        _text("target"),
        _text("identity"),
        sqlite_autoincrement=True,
    )
    op.create_table("measures_schemas", _key(), _text("version", unique=True), _text("axes"), sqlite_autoincrement=True)
    op.create_table(
        "runs",
        _key(),
        _text("name", unique=True),
        _to("problem_id", "problems"),
        _to("environment_id", "environments"),
        _to("schema_id", "measures_schemas"),
        _text("target"),
        _text("config"),
        _text("seed"),
        _text("provenance"),
        _integer("base_verdict"),
        _integer("base_session"),
        _integer("base_candidate"),
        _text("created"),
        _text("finished", nullable=True),
        _text("summary", nullable=True),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "run_states",
        _to("run_id", "runs"),
        _text("name"),
        _text("value"),
        _text("updated"),
        sa.PrimaryKeyConstraint("run_id", "name"),
    )


def _kernels() -> None:
    op.create_table(
        "kernels",
        _key(),
        _text("digest", unique=True),
        _text("target"),
        _text("source"),
        _text("created"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "run_seeds",
        _to("run_id", "runs"),
        _integer("position"),
        _to("kernel_id", "kernels"),
        sa.PrimaryKeyConstraint("run_id", "position"),
    )
    op.create_table(
        "verdicts",
        _key(),
        _to("kernel_id", "kernels"),
        _to("problem_id", "problems"),
        _to("environment_id", "environments"),
        _integer("attempt"),
        _to("run_id", "runs"),
        _text("identity", nullable=True),
        _text("status"),
        _text("gate", nullable=True),
        _text("message", nullable=True),
        _text("build", nullable=True),
        _text("measures", nullable=True),
        _text("created"),
        sa.UniqueConstraint("kernel_id", "problem_id", "environment_id", "attempt"),
        sqlite_autoincrement=True,
    )
    op.create_index("verdicts_identity", "verdicts", ["identity"])
    op.create_table(
        "timing_sessions",
        _key(),
        _to("verdict_id", "verdicts"),
        _to("run_id", "runs"),
        _integer("after"),
        _integer("candidate_index", nullable=True),
        _text("purpose"),
        _text("samples"),
        _real("log_ratio", nullable=True),
        _real("log_low", nullable=True),
        _real("log_high", nullable=True),
        _integer("n_blocks", nullable=True),
        _text("created"),
        sqlite_autoincrement=True,
    )
    op.create_index("timing_sessions_verdict", "timing_sessions", ["verdict_id"])
    later = sa.text("candidate_index IS NULL")
    op.create_index("timing_sessions_later", "timing_sessions", ["run_id"], sqlite_where=later, postgresql_where=later)
    op.create_table(
        "standings",
        _to("problem_id", "problems"),
        _to("environment_id", "environments"),
        _text("identity"),
        _to("kernel_id", "kernels"),
        _to("verdict_id", "verdicts"),
        _to("schema_id", "measures_schemas"),
        _text("cell", nullable=True),
        _real("log_ratio"),
        _real("log_low"),
        _real("log_high"),
        _real("speedup"),
        _real("speedup_low"),
        _real("speedup_high"),
        _integer("n_blocks"),
        _integer("n_sessions"),
        sa.PrimaryKeyConstraint("problem_id", "environment_id", "identity"),
    )


def _candidates() -> None:
    op.create_table(
        "candidates",
        _key(),
        _to("run_id", "runs"),
        _integer("idx"),
        _text("operator"),
        _integer("asked_after"),
        _text("outcome"),
        _text("message", nullable=True),
        _to("kernel_id", "kernels", nullable=True),
        _text("identity", nullable=True),
        _to("verdict_id", "verdicts", nullable=True),
        _to("session_id", "timing_sessions", nullable=True),
        _real("evaluation_s", nullable=True),
        _to("duplicate_of", "kernels", nullable=True),
        _text("seconds"),
        _text("add_status"),
        _real("add_value", nullable=True),
        _text("cell", nullable=True),
        _text("created"),
        sa.UniqueConstraint("run_id", "idx"),
        sqlite_autoincrement=True,
    )
    op.create_index("candidates_kernel", "candidates", ["kernel_id"])
    op.create_table(
        "candidate_parents",
        _to("candidate_id", "candidates"),
        _integer("position"),
        _to("kernel_id", "kernels"),
        sa.PrimaryKeyConstraint("candidate_id", "position"),
    )
    op.create_index("candidate_parents_kernel", "candidate_parents", ["kernel_id"])


def _model_calls() -> None:
    op.create_table(
        "texts",
        _key(),
        sa.Column("digest", sa.LargeBinary, nullable=False, unique=True),
        _integer("n_characters"),
        sa.Column("content", sa.LargeBinary, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "model_calls",
        _key(),
        _to("candidate_id", "candidates"),
        _integer("position"),
        _text("generator"),
        _text("prompt"),
        _to("reply_id", "texts"),
        _integer("n_prompt_tokens"),
        _integer("n_reply_tokens"),
        _real("latency_s"),
        _real("cost_usd"),
        _integer("n_retries"),
        _text("error", nullable=True),
        _text("seed"),
        _integer("max_tokens"),
        _text("created"),
        sa.UniqueConstraint("candidate_id", "position"),
        sqlite_autoincrement=True,
    )


_APPEND_ONLY = """
CREATE FUNCTION archive_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME;
END
$$
"""

_V_CANDIDATES = """
CREATE VIEW v_candidates AS
SELECT r.name AS run, c.idx AS idx, c.operator, c.outcome, v.status, v.gate, COALESCE(c.message, v.message) AS message,
       k.digest, c.identity, c.cell, s.log_ratio, s.log_low, s.log_high, c.add_status, c.add_value, c.created
FROM candidates c
JOIN runs r ON r.id = c.run_id
LEFT JOIN kernels k ON k.id = c.kernel_id
LEFT JOIN verdicts v ON v.id = c.verdict_id
LEFT JOIN timing_sessions s ON s.id = c.session_id
"""

_V_ELITES = """
CREATE VIEW v_elites AS
SELECT p.key AS problem, e.key AS environment, t.cell, k.digest, t.identity, t.speedup, t.speedup_low, t.speedup_high,
       t.log_ratio, t.log_low, t.log_high, t.n_blocks, t.n_sessions, k.source
FROM (
    SELECT s.*, ROW_NUMBER() OVER (PARTITION BY s.problem_id, s.environment_id, s.cell
                                   ORDER BY s.log_low DESC, d.digest) AS place
    FROM standings s JOIN kernels d ON d.id = s.kernel_id
    WHERE s.cell IS NOT NULL
) t
JOIN kernels k ON k.id = t.kernel_id
JOIN problems p ON p.id = t.problem_id
JOIN environments e ON e.id = t.environment_id
WHERE t.place = 1
"""

_V_BEST = """
CREATE VIEW v_best AS
SELECT * FROM (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY problem, environment ORDER BY log_low DESC, digest) AS place FROM v_elites
)
WHERE place = 1
"""

_V_MODEL_CALLS = """
CREATE VIEW v_model_calls AS
SELECT r.name AS run, c.idx AS idx, c.operator, m.generator, m.n_prompt_tokens, m.n_reply_tokens, m.latency_s, m.cost_usd,
       m.n_retries, m.error, m.max_tokens, m.created
FROM model_calls m
JOIN candidates c ON c.id = m.candidate_id
JOIN runs r ON r.id = c.run_id
"""
