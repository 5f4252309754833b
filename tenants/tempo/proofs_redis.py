"""The same where gateways share a Redis.  Twin: `proofs.MemoryProofs`.

Without an answer nobody knows, so the call fails and whoever asks is refused: a part for each process, as
rates have, would let a proof pass once at each.  What Redis loses is lost: one that is wiped, or begins anew
without what it had, lets what was used in the last minute pass once more.
Keys: of a tenant, as in `redis`; a digest is keyed, and says nothing of who proved what.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from policies.outage import Trouble
from tenants.tempo.link import Failed, Link
from tenants.tempo.proofs import OF_TENANT_MAX, NoRoom

_SAID: Final = {"first": True, "seen": False}


@dataclass(frozen=True, slots=True)
class RedisProofs:
    """`draw`: never the same twice, by which a call that was sent again is known for its own.  In all there
    are as many as tenants have together: each tenant's lie in a slot of their own."""

    link: Link
    draw: Callable[[], str]
    kept_ms: int
    of_tenant_max: int = OF_TENANT_MAX

    async def first(self, tenant: str, digest: str) -> bool:
        of = f"{{t:{quote(tenant, safe='')}}}p"
        keys = [of, f"{of}:{digest}"]
        said = await self.link.run(
            "prove", keys, self.draw(), digest, self.kept_ms, self.of_tenant_max
        )
        if said == ["full"]:
            raise NoRoom
        if len(said) != 1 or said[0] not in _SAID:
            raise Failed(Trouble.WRONG)
        return _SAID[said[0]]
