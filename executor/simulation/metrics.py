"""What was served, to whom, and how far from fair: pure functions over a log of service.

A log is a sequence of `Service`; its unit is the caller's (device milliseconds, or tokens as
input + 2·output).  W_u(t1, t2) is what a log gives u in [t1, t2): an entry at one instant counts
where it stands, an entry spread over a time counts by the part of it that lies inside.  So adjoining
windows share nothing and lose nothing.

Weights: a tenant that the mapping does not name weighs 1.

Refuses to know: requests (`metrics_requests`), schedulers, clocks.
Source: VTC (Sheng et al., OSDI'24) §3, §5; Jain et al., DEC-TR-301, 1984; SCHEDULER.md §3.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, pvariance
from typing import Final

Log = Sequence["Service"]
Window = tuple[float, float]
"""[from, to), seconds."""

_EVEN: Final[Mapping[str, float]] = {}


@dataclass(frozen=True, slots=True)
class Service:
    """`amount` given to `tenant`, at once at `at_s` or evenly over the `over_s` after it."""

    at_s: float
    tenant: str
    amount: float
    over_s: float = 0.0

    def within(self, window: Window) -> float:
        from_s, to_s = window
        if self.over_s <= 0.0:
            return self.amount if from_s <= self.at_s < to_s else 0.0
        inside_s = min(to_s, self.at_s + self.over_s) - max(from_s, self.at_s)
        return self.amount * inside_s / self.over_s if inside_s > 0.0 else 0.0


def served(log: Iterable[Service], window: Window) -> dict[str, float]:
    """W_u of every tenant of the log, 0 for who got nothing in the window."""
    amounts: dict[str, float] = {}
    for entry in log:
        amounts[entry.tenant] = amounts.get(entry.tenant, 0.0) + entry.within(window)
    return amounts


@dataclass(frozen=True, slots=True)
class Backlog:
    """In [from_s, to_s) the tenant had at least one request waiting."""

    tenant: str
    from_s: float
    to_s: float


def backlogs(waits: Iterable[tuple[str, float, float]]) -> list[Backlog]:
    """Waiting times of single requests (tenant, arrived, dispatched) joined where they touch."""
    joined: list[Backlog] = []
    for tenant, from_s, to_s in sorted(waits):
        if joined and joined[-1].tenant == tenant and from_s <= joined[-1].to_s:
            last = joined.pop()
            joined.append(Backlog(tenant, last.from_s, max(last.to_s, to_s)))
        elif to_s > from_s:
            joined.append(Backlog(tenant, from_s, to_s))
    return joined


def gap(
    log: Log,
    backlogged: Iterable[Backlog],
    window: Window,
    weights: Mapping[str, float] = _EVEN,
) -> float:
    """Gap(t1, t2): the largest |W_f/w_f − W_g/w_g| over pairs that were backlogged throughout.  0
    with fewer than two such tenants."""
    from_s, to_s = window
    whole = {b.tenant for b in backlogged if b.from_s <= from_s and to_s <= b.to_s}
    if len(whole) < 2:
        return 0.0
    amounts = served(log, window)
    shares = [amounts.get(tenant, 0.0) / weights.get(tenant, 1.0) for tenant in whole]
    return max(shares) - min(shares)


def worst_gap(
    log: Log, backlogged: Collection[Backlog], weights: Mapping[str, float] = _EVEN
) -> float:
    """The largest gap over *every* window: what the published bounds speak of (2U; 2(Q+G+C)).

    For a pair in a time that both were backlogged, D = W_f/w_f − W_g/w_g moves with each entry, and
    the worst window runs from its lowest point to its highest.  Entries at one instant count as one.
    O(pairs × entries): for checks, not for a running server.  Wants entries at instants."""
    assert all(entry.over_s <= 0.0 for entry in log), "spread entries have no last word on D"
    moves: dict[str, list[tuple[float, float]]] = {}
    for entry in log:
        share = entry.amount / weights.get(entry.tenant, 1.0)
        moves.setdefault(entry.tenant, []).append((entry.at_s, share))
    worst = 0.0
    for one, other in combinations(backlogged, 2):
        from_s, to_s = max(one.from_s, other.from_s), min(one.to_s, other.to_s)
        if one.tenant == other.tenant or to_s <= from_s:
            continue
        pair = [(at, share) for at, share in moves.get(one.tenant, ()) if from_s <= at < to_s]
        pair += [(at, -share) for at, share in moves.get(other.tenant, ()) if from_s <= at < to_s]
        worst = max(worst, _range(sorted(pair)))
    return worst


def _range(moves: Sequence[tuple[float, float]]) -> float:
    """Highest minus lowest point of the sum of `moves` (in order of time), its start at 0 too."""
    level = low = high = 0.0
    for index, (at_s, move) in enumerate(moves):
        level += move
        if index + 1 == len(moves) or moves[index + 1][0] > at_s:
            low, high = min(low, level), max(high, level)
    return high - low


def differences(asked: Log, given: Log, windows: Iterable[Window]) -> list[float]:
    """VTC's service difference a window, per second: Σ_u min(W_max − W_u, |demand_u − W_u|).

    A tenant is short by what separates it from the best served one, but by no more than what
    separates it from what it asked for in that window.  `asked` holds each request's whole cost at
    its arrival: who is refused is in it or not as the caller decides (VTC leaves refused ones out,
    by which a rate limit looks fairer than it is)."""
    found = []
    for window in windows:
        length_s = window[1] - window[0]
        demand, got = served(asked, window), served(given, window)
        most = max(got.values(), default=0.0)
        short = 0.0
        for tenant in demand.keys() | got.keys():
            mine = got.get(tenant, 0.0)
            short += min(most - mine, abs(demand.get(tenant, 0.0) - mine))
        found.append(short / length_s)
    return found


@dataclass(frozen=True, slots=True)
class Difference:
    """A row of VTC's Table 2: the largest, the mean and the (population) variance over windows."""

    most: float
    mean: float
    variance: float


def difference(values: Sequence[float]) -> Difference:
    assert values
    return Difference(max(values), fmean(values), pvariance(values))


def due(
    demand: Mapping[str, float], capacity: float, weights: Mapping[str, float] = _EVEN
) -> dict[str, float]:
    """The weighted max-min fair part of each: min(demand_u, w_u·level), with the one level at which
    the parts use up the capacity or all demand is met.  The `min(demand, fair share)` of SCHEDULER.md."""
    parts: dict[str, float] = {}
    left, weight = capacity, math.fsum(weights.get(tenant, 1.0) for tenant in demand)
    for tenant in sorted(demand, key=lambda name: (demand[name] / weights.get(name, 1.0), name)):
        mine = weights.get(tenant, 1.0)
        parts[tenant] = min(demand[tenant], max(0.0, left) * mine / max(weight, mine))
        left -= parts[tenant]
        weight -= mine
    return parts


def attained(got: Mapping[str, float], parts: Mapping[str, float]) -> dict[str, float]:
    """x_u: what a tenant got of what it was due; 1 is all of it.  Who is due nothing has no x."""
    return {tenant: got.get(tenant, 0.0) / part for tenant, part in parts.items() if part > 0.0}


def jain(shares: Collection[float]) -> float:
    """(Σx)²/(nΣx²): 1 if all are equal, 1/n if one has everything.  Nobody, or nothing for anybody,
    is equal."""
    squares = math.fsum(x * x for x in shares)
    return math.fsum(shares) ** 2 / (len(shares) * squares) if squares > 0.0 else 1.0


def max_min_share(shares: Collection[float]) -> float:
    """The worst-off tenant's x.  1 if there is none."""
    return min(shares, default=1.0)


def work_conservation(busy: Iterable[Window], admissible: Iterable[Window]) -> float:
    """The part of the time with admissible work in which the device was busy: 1 is never idle while
    somebody could have run.  1 if there was no such time."""
    work, ran = _union(admissible), _union(busy)
    total_s = math.fsum(to - from_ for from_, to in work)
    both_s = math.fsum(
        max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in work for b in _near(ran, a)
    )
    return both_s / total_s if total_s > 0.0 else 1.0


def _union(windows: Iterable[Window]) -> list[Window]:
    joined: list[Window] = []
    for from_s, to_s in sorted(windows):
        if joined and from_s <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], to_s))
        elif to_s > from_s:
            joined.append((from_s, to_s))
    return joined


def _near(windows: Sequence[Window], around: Window) -> Sequence[Window]:
    return [w for w in windows if w[0] < around[1] and w[1] > around[0]]
