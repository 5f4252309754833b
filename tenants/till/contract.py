"""What tills are asked and told, whoever keeps them (tests/twins is the table of both).

Refuses to know: what a request costs, what SQL makes of a draw.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from policies.till import Seen
from tenants.places import Place


@dataclass(frozen=True, slots=True)
class Lives:
    """How long things are kept.  `mark_ms`: a draw is known by its request's id.  `till_ms`: a till that
    nobody has filled for so long goes away, and the next request begins another.  `dry_ms`: what SQL has
    refused is refused without asking it, also where money came back meanwhile."""

    mark_ms: int = 60_000
    till_ms: int = 600_000
    dry_ms: int = 1_000


@dataclass(frozen=True, slots=True)
class DrawAsk:
    """`nano_usd` from each of the tills; `least_nano_usd` is what would do, if need be."""

    request_id: str
    tenant: str
    places: tuple[Place, ...]
    nano_usd: int
    least_nano_usd: int


@dataclass(frozen=True, slots=True)
class Dry:
    """Nothing was drawn: SQL has just refused as much as this in this place."""

    place: Place


@dataclass(frozen=True, slots=True)
class Told:
    """What SQL says of one till.  `since`: what a till that knows nothing of `epoch` takes for known of what
    was `issued`; so that one that was lost begins with what is new alone.  `refused`: the least amount that
    did not fit, 0 for none."""

    place: Place
    epoch: int
    since: int
    issued: int
    refused_nano_usd: int = 0


class Tills(Protocol):
    """The same calls, the same answers, in memory and in Redis."""

    async def draw(self, ask: DrawAsk) -> tuple[Seen, ...] | Dry:
        """What was found in each, and drawn.  Of one request once: again, it is the first answer.  Nothing
        for one that gave back before."""
        ...

    async def give_back(self, ask: DrawAsk) -> None:
        """What was drawn is not held.  Once, and only where it was drawn."""
        ...

    async def fill(self, tenant: str, told: tuple[Told, ...]) -> None:
        """Repeated, lost or out of order: it comes to the same, or to less."""
        ...
