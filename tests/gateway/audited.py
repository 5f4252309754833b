"""A deployment as the audits see it, with a cache of its own and a clock that only its requests move.

`scope` says whose cache a request uses: what it says wrongly is what an audit must find.  Broken ones exist
here alone; nothing that ships can be told to be so (DESIGN.md, 16).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.cli.audit_asking import Answer
from security.isolation_audit import Ask
from security.timing_audit_plan import Role

CHUNK = 32
Scope = Callable[[Ask], object]


def by_user(ask: Ask) -> object:
    return ask.role, tuple(sorted((k, str(v)) for k, v in ask.fields.items())), ask.model


def by_tenant(ask: Ask) -> object:
    return ask.role is Role.STRANGER


def unscoped(_: Ask) -> object:
    return None


def by_request(ask: Ask) -> object:
    """Nothing is ever found again."""
    return object()


@dataclass
class Deployment:
    """`discloses`: whether usage tells of hits."""

    scope: Scope = by_user
    discloses: bool = True
    noise_ns: float = 1e4
    rng: random.Random = field(default_factory=lambda: random.Random(4))
    _kept: set[tuple[object, int]] = field(default_factory=set)

    def ask(self, what: Ask, text: str) -> Answer:
        scope, chunks = self.scope(what), len(text) // CHUNK
        keys = [(scope, hash(text[: at * CHUNK])) for at in range(1, chunks + 1)]
        hits = next((at for at, key in enumerate(keys) if key not in self._kept), chunks)
        self._kept.update(keys)
        took_ns = 1e6 + (chunks - hits) * 1e6 + abs(self.rng.gauss(0, self.noise_ns))
        return Answer(
            ttft_ns=int(took_ns),
            prompt_tokens=(len(text) + 1) // 2,
            cached_tokens=hits * CHUNK // 2 if self.discloses else 0,
        )

    def timed(self, role: Role, text: str, _: bool) -> Answer:
        return self.ask(Ask(role), text)
