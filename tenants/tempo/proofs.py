"""Which proofs of possession have been used: each counts once, for as long as it could pass again.

Refuses to know what a proof is: it is given a digest.  `MemoryProofs` is one process's, and the
specification of `scripts/prove.lua`.  Bounded a tenant and in all; where there is no room nobody passes,
since to forget one would be to let it pass again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

OF_TENANT_MAX: Final = 65_536
"""In a minute and a half: 690 a second.  A digest takes about 200 bytes."""
IN_ALL_MAX: Final = 262_144


class NoRoom(Exception):
    """So many are remembered that this one could not be."""


class Proofs(Protocol):
    async def first(self, tenant: str, digest: str) -> bool:
        """Whether this is the first time.  NoRoom; `link.Failed` where it cannot be known."""
        ...


class MemoryProofs:
    """`clock_ms` is monotonic.  All live equally long, so the oldest is always the first to go."""

    def __init__(
        self,
        clock_ms: Callable[[], int],
        kept_ms: int,
        *,
        of_tenant_max: int = OF_TENANT_MAX,
        in_all_max: int = IN_ALL_MAX,
    ) -> None:
        self._clock_ms = clock_ms
        self._kept_ms = kept_ms
        self._of_tenant_max = of_tenant_max
        self._in_all_max = in_all_max
        self._until_ms: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._of_tenant: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._until_ms)

    async def first(self, tenant: str, digest: str) -> bool:
        now_ms = self._clock_ms()
        self._forget(now_ms)
        if (tenant, digest) in self._until_ms:
            return False
        held = self._of_tenant.get(tenant, 0)
        if held >= self._of_tenant_max or len(self._until_ms) >= self._in_all_max:
            raise NoRoom
        self._until_ms[tenant, digest] = now_ms + self._kept_ms
        self._of_tenant[tenant] = held + 1
        return True

    def _forget(self, now_ms: int) -> None:
        """Each is put in once and taken out once, so what a call does is what calls before it left."""
        while self._until_ms:
            (tenant, digest), until_ms = next(iter(self._until_ms.items()))
            if until_ms > now_ms:
                return
            del self._until_ms[tenant, digest]
            left = self._of_tenant[tenant] - 1
            if left:
                self._of_tenant[tenant] = left
            else:
                del self._of_tenant[tenant]
