"""Classes of work: who is served in which, what each is promised, and whether that was kept.

A class is reserved (a part of the machine is kept for it), weighted (it takes turns), or backfill (it
takes what others leave).  `service_tier`, a wish of the client, maps onto these kinds, within what the
plan has and never against the credential: a wish that cannot be had is served in the principal's own
class, and the answer names the tier that was used.

A promise is judged once, when its request has ended, by what the client saw of it: the time to its first
token, and the mean time between its tokens.  A mean and not the longest gap, for tokens arrive together
(steps are shared, guesses hold, updates merge) and a gap of one request is nobody's experience.

Refuses to know: how time is measured, how shares are kept (executor).  Source: SCHEDULER.md §2 (Classes,
Admission), API.md §1 (service_tier).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from policies.facts import Principal, Standing


class Kind(StrEnum):
    RESERVED = "reserved"
    WEIGHTED = "weighted"
    BACKFILL = "backfill"


@dataclass(frozen=True, slots=True)
class ServiceClass:
    """`weight` None: what others leave.  `ttft_ms`, `itl_ms`: what is promised; None: nothing."""

    name: str
    weight: float | None = 1.0
    reserved: float = 0.0
    floor: float = 0.0
    ttft_ms: int | None = None
    itl_ms: int | None = None

    @property
    def kind(self) -> Kind:
        if self.reserved > 0:
            return Kind.RESERVED
        return Kind.BACKFILL if self.weight is None else Kind.WEIGHTED


# Tiers


class Tier(StrEnum):
    """What an answer may name."""

    DEFAULT = "default"
    FLEX = "flex"
    PRIORITY = "priority"


_WISHES: Mapping[str, Kind] = {
    "flex": Kind.BACKFILL,
    "priority": Kind.RESERVED,
    "fast": Kind.RESERVED,
}
_TIERS: Mapping[Kind, Tier] = {
    Kind.RESERVED: Tier.PRIORITY,
    Kind.WEIGHTED: Tier.DEFAULT,
    Kind.BACKFILL: Tier.FLEX,
}


def wished(
    tier: str | None,
    principal: Principal,
    standing: Standing,
    classes: Mapping[str, ServiceClass],
) -> str | None:
    """The class that a wish comes to: the plan's first of that kind.  None: the principal's own, for lack
    of one, or because its credential is bound to a class."""
    kind = None if tier is None else _WISHES.get(tier)
    if kind is None or principal.service_class is not None:
        return None
    for name in standing.classes:
        if name in classes and classes[name].kind is kind:
            return name
    return None


def tier_used(name: str, classes: Mapping[str, ServiceClass]) -> Tier:
    return _TIERS[classes[name].kind] if name in classes else Tier.DEFAULT


# Promises


class Verdict(StrEnum):
    KEPT = "kept"
    BROKEN = "broken"
    NONE = "none"  # nothing was promised, or there is nothing to judge by


class Fate(StrEnum):
    """How a request fared that was authorised: what its promises are judged by, beside its times."""

    SERVED = "admitted"  # and served to its end
    LEFT = "cancelled"  # its caller left before the end: judged by what had come until then
    BACKLOG = "refused_backlog"  # too much of its tenant's own waited: told at once
    DISPLACED = "displaced"  # the same, after it had waited: it made room for others
    PLATFORM = "refused_platform"  # we could not, though it was within its share; or we lost it
    OTHER = "other"  # a limit, a budget, a mistake: no promise covers it


@dataclass(frozen=True, slots=True)
class Times:
    """`ttft_ns`: from arrival until the first token left; None if none did.  `life_ns`: from arrival until
    the last word, or until the caller left.  `decode_ns`: from the first token to the last of `tokens`, and
    no further: what had not come when the caller left says nothing.  `promised`: False where
    the prompt alone takes longer than the first token is promised: then that is promised nothing."""

    life_ns: int
    ttft_ns: int | None = None
    decode_ns: int = 0
    tokens: int = 0
    promised: bool = True


@dataclass(frozen=True, slots=True)
class Judged:
    ttft: Verdict = Verdict.NONE
    itl: Verdict = Verdict.NONE

    @property
    def whole(self) -> Verdict:
        """Broken if either is."""
        for verdict in (Verdict.BROKEN, Verdict.KEPT):
            if verdict in {self.ttft, self.itl}:
                return verdict
        return Verdict.NONE


def judge(promised: ServiceClass, fate: Fate, times: Times) -> Judged:
    """Who was refused for a backlog of its own was promised nothing; who was refused or lost for a
    reason of ours was not served in time.  A caller who left before the first token proves a broken
    promise only by having waited that long."""
    if fate in {Fate.BACKLOG, Fate.DISPLACED, Fate.OTHER}:
        return Judged()
    lost = fate is Fate.PLATFORM
    return Judged(_ttft(promised.ttft_ms, times, lost=lost), _itl(promised.itl_ms, times))


def _ttft(promised_ms: int | None, times: Times, *, lost: bool) -> Verdict:
    if promised_ms is None or not times.promised:
        return Verdict.NONE
    if times.ttft_ns is not None:
        return _within(times.ttft_ns, promised_ms)
    if lost:
        return Verdict.BROKEN
    late = _within(times.life_ns, promised_ms) is Verdict.BROKEN
    return Verdict.BROKEN if late else Verdict.NONE


def _itl(promised_ms: int | None, times: Times) -> Verdict:
    if promised_ms is None or times.ttft_ns is None or times.tokens < 2:
        return Verdict.NONE
    return _within(times.decode_ns // (times.tokens - 1), promised_ms)


def _within(taken_ns: int, promised_ms: int) -> Verdict:
    return Verdict.KEPT if taken_ns <= promised_ms * 1_000_000 else Verdict.BROKEN
