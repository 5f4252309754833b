"""The scripts as calls: what goes into each, and its words read as values.

Keeps nothing and decides nothing: a script admits or refuses, and `policies.admission` words the refusal
over what the script saw.  Refuses to know: outages (`shared`), connections (`link`).

Keys.  Everything of a tenant shares the hash tag `{t:<tenant>}`, so that a script stays in one slot of a
cluster: `r:<request>` its record, `b:<scope>:<who>` a hash of buckets, `s:<scope>:<who>` a sorted set of
seats by when each lapses.  Users and keys stand there by pseudonym (`name`), since whoever reads Redis
need not know who asks.  Each key has a time to live, none longer than a lease or a minute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import quote

from policies.admission import admit
from policies.outage import Trouble
from policies.rate import PER_MINUTE_MAX, Bucket
from policies.verdict import Allow, Deny
from tenants.scopes import ScopeLimits
from tenants.tempo.contract import (
    LEASE_MS,
    Cost,
    Headroom,
    TempoAsk,
    costs,
    seat,
    seated,
    tightest,
)
from tenants.tempo.link import Failed, Link, Untaken

TOKENS_MAX: Final = 2**53
RENEWED_AT_ONCE: Final = 100
TRIED_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class RedisTempo:
    """Every call may raise Failed, and then it is not known whether it was done."""

    link: Link
    name: Callable[[str], str]
    lease_ms: int = LEASE_MS

    async def admit(self, ask: TempoAsk) -> Allow[Headroom] | Deny:
        keys = _Keys(ask.tenant, self.name)
        record = keys.record(ask.request_id)
        asked = tuple(map(_exact, costs(ask.scopes, ask)))
        seats = tuple(seated(ask.scopes))
        args: list[object] = [ask.request_id, self.lease_ms, len(asked)]
        for cost in asked:
            args += [keys.buckets(cost.scope), cost.limit_name, cost.limit, _sent(cost.tokens)]
        args.append(len(seats))
        for scope, limit in seats:
            args += [keys.seats(scope), min(max(0, limit), PER_MINUTE_MAX)]
        assert record == 1
        said = await self.link.run("admit", keys.all, *args)
        if said == ["ended"]:
            raise Untaken(Trouble.WRONG)
        admitted, numbers = _numbers(said, {"0", "1"})
        now_ms, *rest = numbers
        buckets = _buckets(rest[: 2 * len(asked)])
        if admitted == "1":
            return Allow(tightest(asked, buckets, now_ms))
        taken = rest[2 * len(asked) :]
        verdict = admit(
            [cost.draw(bucket) for cost, bucket in zip(asked, buckets, strict=True)],
            [seat(scope, limit, out) for (scope, limit), out in zip(seats, taken, strict=True)],
            now_ms,
        )
        if isinstance(verdict, Allow):  # the twins differ
            raise Failed(Trouble.WRONG)
        return verdict

    async def leave(self, ask: TempoAsk, back: Iterable[Cost]) -> bool:
        """Seats free, `back` given; False where it was not admitted any more, or ever."""
        keys = _Keys(ask.tenant, self.name)
        record = keys.record(ask.request_id)
        gifts = [_exact(cost) for cost in back if cost.tokens]
        args: list[object] = [ask.request_id, self.lease_ms, len(gifts)]
        for gift in gifts:
            args += [keys.buckets(gift.scope), gift.limit_name, gift.limit, _sent(gift.tokens)]
        seats = [keys.seats(scope) for scope, _ in seated(ask.scopes)]
        assert record == 1
        said = await self.link.run("leave", keys.all, *args, len(seats), *seats)
        return said == ["1"]

    async def renew(self, asks: Iterable[TempoAsk]) -> tuple[str, ...]:
        """Those that had lapsed."""
        of: dict[str, list[TempoAsk]] = {}
        for ask in asks:
            of.setdefault(ask.tenant, []).append(ask)
        lost: list[str] = []
        for tenant, mine in of.items():
            for first in range(0, len(mine), RENEWED_AT_ONCE):
                some = mine[first : first + RENEWED_AT_ONCE]
                keys = _Keys(tenant, self.name)
                args: list[object] = []
                for ask in some:
                    seats = [keys.seats(scope) for scope, _ in seated(ask.scopes)]
                    args += [ask.request_id, keys.record(ask.request_id), len(seats), *seats]
                said = await self.link.run("renew", keys.all, self.lease_ms, len(some), *args)
                if len(said) != len(some):
                    raise Failed(Trouble.WRONG)
                lost += [
                    ask.request_id for ask, word in zip(some, said, strict=True) if word != "1"
                ]
        return tuple(lost)

    async def headroom(self, tenant: str, scopes: tuple[ScopeLimits, ...]) -> Headroom:
        keys = _Keys(tenant, self.name)
        limited = tuple(map(_exact, costs(scopes)))
        if not limited:
            return Headroom(None, None)
        args: list[object] = [len(limited)]
        for cost in limited:
            args += [keys.buckets(cost.scope), cost.limit_name, cost.limit]
        _, numbers = _numbers(["0", *await self.link.run("headroom", keys.all, *args)], {"0"})
        now_ms, *rest = numbers
        return tightest(limited, _buckets(rest), now_ms)

    async def attempt(self) -> None:
        """Whether it would do what is asked of it, writing included."""
        await self.link.run("leave", ["{lockgate}tried"], "tried", TRIED_MS, 0, 0, forced=True)


@dataclass(slots=True)
class _Keys:
    """The keys of one call, each once; places are counted from 1, as in Lua."""

    tenant: str
    name: Callable[[str], str]
    places: dict[str, int] = field(default_factory=dict)

    @property
    def all(self) -> list[str]:
        return list(self.places)

    def record(self, request_id: str) -> int:
        return self._place(f"r:{request_id}")

    def buckets(self, scope: ScopeLimits) -> int:
        return self._place(f"b:{scope.scope}:{self.name(scope.id)}")

    def seats(self, scope: ScopeLimits) -> int:
        return self._place(f"s:{scope.scope}:{self.name(scope.id)}")

    def _place(self, name: str) -> int:
        key = f"{{t:{quote(self.tenant, safe='')}}}{name}"
        return self.places.setdefault(key, len(self.places) + 1)


def _exact(cost: Cost) -> Cost:
    """The scripts count exactly up to a bound that no plan needs to pass (`settings` refuses more)."""
    limit = min(max(0, cost.limit), PER_MINUTE_MAX)
    return cost if limit == cost.limit else replace(cost, limit=limit)


def _sent(tokens: int) -> int:
    """More than any bucket holds is all the same."""
    return min(max(0, tokens), TOKENS_MAX)


def _numbers(said: Sequence[str], first: set[str]) -> tuple[str, list[int]]:
    """A word and then whole numbers.  Failed where it is anything else."""
    if len(said) < 2 or said[0] not in first or not all(map(str.isdigit, said[1:])):
        raise Failed(Trouble.WRONG)
    return said[0], list(map(int, said[1:]))


def _buckets(numbers: Sequence[int]) -> list[Bucket]:
    return [Bucket(parts, at_ms) for parts, at_ms in zip(numbers[::2], numbers[1::2], strict=True)]
