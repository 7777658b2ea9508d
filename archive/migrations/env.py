"""Runs migrations on the connection that `archive.database` hands over, inside the transaction that it has opened."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
