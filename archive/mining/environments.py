"""Where a file's numbers were measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from archive.store import Store
from evo_l2.errors import ConfigurationError

__all__ = ["EnvironmentFacts", "environments", "last_run"]


@dataclass(frozen=True, slots=True)
class EnvironmentFacts:
    """One environment of a file; numbers of two are never compared."""

    key: str
    target: str
    identity: Mapping[str, str]
    """What makes it: processor or card, memory, toolchain, baseline, harness."""
    runs: tuple[str, ...]
    """Their names, oldest first."""

    @property
    def machine(self) -> str:
        """The card or processor, as far as it is named."""
        names = (self.identity.get(name) for name in ("card", "processor", "arch"))
        return next((name for name in names if name), "unnamed machine")


def environments(store: Store) -> tuple[EnvironmentFacts, ...]:
    """Every environment in which the file has runs, in the order in which they were first run."""
    found: dict[str, tuple[str, str, list[str]]] = {}
    for key, target, identity, run in store.read(
        "SELECT e.key, e.target, e.identity, r.name FROM runs r JOIN environments e ON e.id = r.environment_id ORDER BY r.id"
    ):
        found.setdefault(key, (target, identity, []))[2].append(run)
    return tuple(
        EnvironmentFacts(key, target, json.loads(identity), tuple(runs)) for key, (target, identity, runs) in found.items()
    )


def last_run(store: Store, prefix: str) -> str:
    """The name of the run that was started last in the environment whose key starts with a prefix.

    Raises:
        ConfigurationError: No environment's key does, or several do.
    """
    known = environments(store)
    found = [facts for facts in known if facts.key.startswith(prefix)]
    if len(found) != 1:
        expected = f"the first digits of one of {', '.join(facts.key for facts in known) or 'none'}"
        raise ConfigurationError("no such environment", expected=expected, found=prefix, hint="evo-l2 archive stats DB")
    return found[0].runs[-1]
