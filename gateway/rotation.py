"""A tenant's secret is rotated: what is sealed under the old one is sealed anew under the new, while it is read.

Theory of operation.  A rotation adds a version, by which everything is sealed from then on; the old ones open
what they sealed.  One text after the other is then opened and sealed anew, each in one commit that takes effect
only where nobody wrote it meanwhile, so that it may stop anywhere and go on after a restart.  What is kept of
prompts under the old secret is found by nobody any more and ended, without ending who reads it.  An old version
is destroyed on demand, when nothing is sealed by it and nobody can still be sealing with it.

Refuses to know: HTTP, who may, what a text says.  Source: SECURITY.md §6 (Keys), L7, P12.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from gateway.registered import Registered
from gateway.stored import Stored
from security.keyring_tenants import SecretGone
from security.seal import HEAD_BYTES, Place, SealBroken, SealPurpose, secret_version
from tenants.documents import Documents
from tenants.documents_seals import SealedHeads

STRAGGLER_NS: Final = 60_000_000_000
"""Whoever took the old secret to seal with has written or failed by then."""


@dataclass(slots=True)
class Rotations:
    """Whose texts may be sealed under an old secret.  `rotated_ns`: since this process started."""

    pending: set[str] = field(default_factory=set)
    rotated_ns: dict[str, int] = field(default_factory=dict)
    broken: set[tuple[str, int]] = field(default_factory=set)  # texts, each told once

    def rotated(self, tenant: str, now_ns: int) -> None:
        self.pending.add(tenant)
        self.rotated_ns[tenant] = now_ns

    def may_straggle(self, tenant: str, now_ns: int) -> bool:
        at_ns = self.rotated_ns.get(tenant)
        return at_ns is not None and now_ns < at_ns + STRAGGLER_NS

    async def round(self, registered: Registered, stored: Stored, now_ns: int) -> int:
        """All that is known to be sealed by an old secret, stored responses too.  How many were sealed anew."""
        count = 0
        for tenant in sorted(self.pending):
            count += await self._of(registered, tenant)
            count += (await stored.reseal(tenant))[0]
            left = [(each.id, each.version) for each in await stale(registered, tenant)]
            if self.broken.issuperset(left) and not self.may_straggle(tenant, now_ns):
                self.pending.discard(tenant)
        return count

    async def _of(self, registered: Registered, tenant: str) -> int:
        count = 0
        for each in await stale(registered, tenant):
            if (each.id, each.version) in self.broken:
                continue
            try:
                count += await _anew(registered, tenant, each)
            except (SecretGone, SealBroken) as why:
                self.broken.add((each.id, each.version))
                registered.log("registered.broken", error=why)
        return count


async def sealed_by(documents: Documents, stored: Stored, tenant: str) -> Counter[int]:
    """How many texts and stored responses each version of the tenant's secret is needed for."""
    found: Counter[int] = Counter(await stored.table.sealed_by(tenant))
    for each in await documents.heads(tenant, HEAD_BYTES):
        found.update({_version(each.text), _version(each.about)})
    return found


async def stale(registered: Registered, tenant: str) -> list[SealedHeads]:
    try:
        newest = registered.secrets.current(tenant).version
    except SecretGone:
        return []
    return [
        each
        for each in await registered.documents.heads(tenant, HEAD_BYTES)
        if {_version(each.text), _version(each.about)} != {newest}
    ]


def _version(head: bytes) -> int:
    """Of what begins so; 0 where no secret of a tenant's sealed it, and none opens it."""
    try:
        return secret_version(head + bytes(HEAD_BYTES * 4))
    except SealBroken:
        return 0


async def _anew(registered: Registered, tenant: str, sealed: SealedHeads) -> bool:
    """One text, in memory only while it is sealed.  False where it changed or went meanwhile."""
    documents, seals = registered.documents, registered.seals
    at = (sealed.id, sealed.version)
    record, rows = documents.find(sealed.id), await documents.texts([at])
    if record is None or at not in rows:
        return False
    old = rows[at]
    places = [
        Place(purpose, tenant, sealed.id, sealed.version)
        for purpose in (SealPurpose(record.kind.value), SealPurpose.ABOUT)
    ]

    def anew() -> tuple[bytes, bytes]:
        text, about = (
            seals.seal(place, seals.open(place, raw))
            for place, raw in zip(places, old, strict=True)
        )
        return text, about

    return await documents.reseal(*at, old, await asyncio.to_thread(anew))
