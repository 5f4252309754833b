"""What requests felt: waiting, stalls, goodput, promises, waste.  Pure functions over `Record`s.

Percentiles are nearest-rank: the ⌈p·n/100⌉-th smallest value, always one that was measured.

A request that was told "no" is never left out of a number that would look better without it: goodput
counts it as missed, promises count a 503 (the house's fault) as broken and a 429 (beyond the tenant's
own share) as no promise.

Refuses to know: fairness (`metrics`), schedulers, clocks.  Source: SCHEDULER.md §3; DistServe
(OSDI'24) for goodput.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from fractions import Fraction
from itertools import pairwise

from executor.simulation.metrics import Service


class Ending(Enum):
    FINISHED = auto()
    CANCELLED = auto()
    """By its client."""
    OVER_SHARE = auto()
    """429: more than the tenant's own share could take in time."""
    NO_ROOM = auto()
    """503: the house could not, though the tenant was within its share."""
    EXPIRED = auto()
    """Accepted, then its deadline passed."""


REFUSED = frozenset({Ending.OVER_SHARE, Ending.NO_ROOM})


@dataclass(frozen=True, slots=True)
class Record:
    """One request from arrival to its end.  `dispatched_s`: its first step; `None` what never was.
    `kind` is its workload class."""

    tenant: str
    arrived_s: float
    prompt_tokens: int
    output_tokens: int
    ended_s: float
    ending: Ending = Ending.FINISHED
    dispatched_s: float | None = None
    first_token_s: float | None = None
    kind: str = ""

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_token_s is None else self.first_token_s - self.arrived_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time a token after the first; 0 for a single one."""
        if self.first_token_s is None:
            return None
        return (self.ended_s - self.first_token_s) / max(1, self.output_tokens - 1)

    def cost(self, per_prompt: float = 1.0, per_output: float = 2.0) -> float:
        return per_prompt * self.prompt_tokens + per_output * self.output_tokens


def asked(records: Iterable[Record]) -> list[Service]:
    """Demand as a log: each request's whole cost in tokens (in + 2·out) at its arrival."""
    return [Service(r.arrived_s, r.tenant, r.cost()) for r in records]


def given(records: Iterable[Record]) -> list[Service]:
    """Service as VTC's evaluation counts it from the outside: a request's whole cost evenly from
    its first token to its end, the prompt's part too.  Without a first token: nothing."""
    return [
        Service(r.first_token_s, r.tenant, r.cost(), r.ended_s - r.first_token_s)
        for r in records
        if r.first_token_s is not None
    ]


def tokens_per_s(records: Iterable[Record], total_s: float) -> float:
    """Prompt and output tokens of what got a first token, over the time of the whole run."""
    return (
        sum(r.prompt_tokens + r.output_tokens for r in records if r.first_token_s is not None)
        / total_s
    )


def percentile(values: Iterable[float], percent: float) -> float:
    """Nearest-rank, 0 < percent ≤ 100, of at least one value.  Exact: 7 % of 100 is the 7th."""
    assert 0 < percent <= 100
    ordered = sorted(values)
    assert ordered, "a percentile of nothing"
    return ordered[math.ceil(Fraction(str(percent)) * len(ordered) / 100) - 1]


def isolation(disturbed: Iterable[float], solo: Iterable[float], percent: float = 99) -> float:
    """How much worse a victim's tail is with an aggressor than alone: 1 is not at all."""
    return percentile(disturbed, percent) / percentile(solo, percent)


def in_flight_alone(records: Iterable[Record]) -> list[Record]:
    """First-in-flight: requests whose tenant had nothing else waiting or running at their arrival.
    What a refused one would have held is not in flight.  Of several at one instant, one is first."""
    alone: list[Record] = []
    busy_until_s: dict[str, float] = {}
    for record in sorted(records, key=lambda r: r.arrived_s):
        until_s = busy_until_s.get(record.tenant, -math.inf)
        if record.ending not in REFUSED:
            if until_s <= record.arrived_s:
                alone.append(record)
            busy_until_s[record.tenant] = max(until_s, record.ended_s)
    return alone


@dataclass(frozen=True, slots=True)
class Stall:
    p99_s: float
    max_s: float


def stall(streams: Iterable[Sequence[float]], from_s: float, to_s: float) -> Stall | None:
    """Time between tokens of other tenants' streams while something long ran in [from_s, to_s).

    A stream is the times of its tokens, in order.  Each pause that reaches into the window counts
    whole, even if it began before or ended after.  `None` if there is no such pause."""
    pauses = [
        later - earlier
        for times in streams
        for earlier, later in pairwise(times)
        if earlier < to_s and later > from_s
    ]
    return Stall(percentile(pauses, 99), max(pauses)) if pauses else None


@dataclass(frozen=True, slots=True)
class Target:
    ttft_s: float
    tpot_s: float = math.inf

    def met(self, record: Record) -> bool:
        if record.ending is not Ending.FINISHED or record.ttft_s is None or record.tpot_s is None:
            return False
        return record.ttft_s <= self.ttft_s and record.tpot_s <= self.tpot_s


def attainment(records: Sequence[Record], target: Target) -> float:
    """The part of *offered* requests that met both targets: refused, expired and cancelled ones
    missed.  1 of none."""
    return sum(map(target.met, records)) / len(records) if records else 1.0


def goodput(measured: Mapping[float, float], bar: float = 0.9) -> float | None:
    """The highest offered rate whose attainment, and that of every lower measured rate, reaches the
    bar: a lucky point beyond the first miss is no capacity.  `None` if the lowest rate misses."""
    best = None
    for rate in sorted(measured):
        if measured[rate] < bar:
            break
        best = rate
    return best


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens computed, and those of them for nothing."""

    computed: int
    recomputed: int = 0
    after_cancel: int = 0
    expired_after_prefill: int = 0


def waste(tokens: Tokens) -> float:
    """The part of all computed tokens that helped nobody."""
    lost = tokens.recomputed + tokens.after_cancel + tokens.expired_after_prefill
    return lost / tokens.computed if tokens.computed else 0.0


@dataclass(frozen=True, slots=True)
class Retry:
    """A refusal said `promised_s`; a request would have been taken after `achieved_s`."""

    promised_s: float
    achieved_s: float

    @property
    def error_s(self) -> float:
        return self.promised_s - self.achieved_s

    def within(self, part: float) -> bool:
        return abs(self.error_s) <= part * self.achieved_s


@dataclass(frozen=True, slots=True)
class Kept:
    promised: int = 0
    kept: int = 0

    @property
    def broken(self) -> int:
        return self.promised - self.kept


def promises(
    records: Iterable[Record], targets: Mapping[str, Target]
) -> dict[tuple[str, str], Kept]:
    """Promised and kept by (class, tenant).  A class without a target promises nothing; nor does a
    429.  A client that left before the first token was due has nothing to complain of: not counted;
    one that left later is judged by what it had seen."""
    found: dict[tuple[str, str], Kept] = {}
    for record in records:
        target = targets.get(record.kind)
        verdict = None if target is None else _verdict(record, target)
        if verdict is not None:
            before = found.get((record.kind, record.tenant), Kept())
            found[record.kind, record.tenant] = Kept(before.promised + 1, before.kept + verdict)
    return found


def _verdict(record: Record, target: Target) -> bool | None:
    """Kept, broken, or (`None`) never promised."""
    if record.ending is Ending.OVER_SHARE:
        return None
    if record.ending is not Ending.CANCELLED:
        return target.met(record)
    if record.ttft_s is None:
        return None if record.ended_s - record.arrived_s <= target.ttft_s else False
    return record.ttft_s <= target.ttft_s
