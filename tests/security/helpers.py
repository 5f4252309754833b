"""Small things that several tests of this package need."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from security.audit_signer import AuditKeys, Signer

T = TypeVar("T")

AUDIT_KEYS = AuditKeys(b"a" * 32, Signer.from_seed(b"s" * 32, "lockgate-audit/test"))


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run to its end, and never longer than a test may take."""
    return asyncio.run(asyncio.wait_for(work, 20))


@dataclass(slots=True)
class Clock:
    """Time that passes when told to."""

    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


def byte_source(seed: int = 0) -> Any:
    """Random bytes for tests: the same in each run, different at each call."""
    import random

    source = random.Random(seed)
    return source.randbytes
