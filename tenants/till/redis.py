"""The scripts `till_*` as calls: what goes into each, and its words read as values.

Keeps nothing and decides nothing.  Keys: in the tenant's slot, `f:<scope>:<who>` a till, `e:<scope>:<who>` the
least that was refused there, `d:<request>` what it drew; users and keys by pseudonym.  Each key has a time to
live.  Refuses to know: outages, connections (`tempo.link`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import quote

from policies.outage import Trouble
from policies.till import NANO_USD_BELOW, Seen
from tenants.places import Place
from tenants.tempo.link import Failed, Link
from tenants.till.contract import DrawAsk, Dry, Lives, Told


@dataclass(frozen=True, slots=True)
class RedisTills:
    """Every call may raise Failed, and then it is not known whether it was done."""

    link: Link
    name: Callable[[str], str]
    lives: Lives = field(default_factory=Lives)

    async def draw(self, ask: DrawAsk) -> tuple[Seen, ...] | Dry:
        amounts = (min(ask.nano_usd, NANO_USD_BELOW), min(ask.least_nano_usd, NANO_USD_BELOW))
        said = await self.link.run("till_draw", self._keys(ask), self.lives.mark_ms, *amounts)
        if said == ["ended"]:
            return tuple(Seen() for _ in ask.places)
        if said[:1] == ["dry"] and said[1:] in [[str(at + 1)] for at in range(len(ask.places))]:
            return Dry(ask.places[int(said[1]) - 1])
        if len(said) != 3 * len(ask.places) or not all(map(str.isdigit, said)):
            raise Failed(Trouble.WRONG)
        epochs, issued, drawn = (map(int, said[at::3]) for at in range(3))
        found = zip(epochs, issued, drawn, strict=True)
        return tuple(Seen(*each) for each in found)

    async def give_back(self, ask: DrawAsk) -> None:
        keys = self._keys(ask)
        await self.link.run("till_return", [keys[0], *keys[1::2]], self.lives.mark_ms)

    async def fill(self, tenant: str, told: tuple[Told, ...]) -> None:
        args: list[int] = []
        for each in told:
            args += [each.epoch, each.since, each.issued]
            args.append(min(each.refused_nano_usd, NANO_USD_BELOW))
        keys = [key for each in told for key in self._till(tenant, each.place)]
        await self.link.run("till_fill", keys, self.lives.till_ms, self.lives.dry_ms, *args)

    def _keys(self, ask: DrawAsk) -> list[str]:
        of_tills = [key for place in ask.places for key in self._till(ask.tenant, place)]
        return [f"{_tag(ask.tenant)}d:{ask.request_id}", *of_tills]

    def _till(self, tenant: str, place: Place) -> tuple[str, str]:
        which = f"{place.scope}:{self.name(place.account)}"
        return f"{_tag(tenant)}f:{which}", f"{_tag(tenant)}e:{which}"


def _tag(tenant: str) -> str:
    return f"{{t:{quote(tenant, safe='')}}}"
