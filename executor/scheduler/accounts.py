"""What each tenant and each user has had, in nanoseconds of the device by weight: the start times that
decide whose turn it is.

Theory of operation.  A tenant has *one* account, whatever classes and users its work is spread over, so
spreading gains nothing; a class's weight says how much a nanosecond of its work counts.  All classes
with a weight are served by one clock: a class that nobody used for a while is no way past the others.
Backfill has a clock of its own, since it is served when the others leave something: its work is charged
to both, the others' work to theirs alone, so that who has had its share of the rest is not the last in
backfill for ever.

On admission the cost of a request's prompt is charged ahead, since it is known (else a burst of long
prompts would be let in before their first cost is); what is measured beyond that is charged as it happens:
how long an answer will be is a guess.  What was charged too much is given back at the end.  So refund + charge = measured, exactly once it is over.

Refuses to know: room, order, steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic

from executor.contract import Workload
from executor.cost import Rates
from executor.scheduler.lanes import Band, Entry, Rank, Seat
from executor.scheduler.protocol import W
from policies.fairness import Flow, Level


class Clock:
    """One order of tenants, and of the users of each."""

    __slots__ = ("tenants", "users")

    def __init__(self) -> None:
        self.tenants: Level[str] = Level()
        self.users: dict[str, Level[str]] = {}

    def open(self, tenant: str, weight: float, user: str, user_weight: float) -> Seat:
        users = self.users.get(tenant)
        if users is None:
            users = self.users[tenant] = Level()
        return Seat(self.tenants.enter(tenant, weight), users.enter(user, user_weight))

    def close(self, seat: Seat) -> None:
        self.users[seat.tenant.key].leave(seat.user)
        self.tenants.leave(seat.tenant)
        if not seat.tenant.holds:
            del self.users[seat.tenant.key]

    def wait(self, seat: Seat) -> None:
        """Nobody has credit for the time when nothing waited."""
        self.tenants.wait(seat.tenant)
        self.users[seat.tenant.key].wait(seat.user)

    def go(self, seat: Seat) -> None:
        self.tenants.go(seat.tenant)
        self.users[seat.tenant.key].go(seat.user)

    def advance(self, seat: Seat, start: float, user_start: float) -> None:
        """Each the least of who is served and of all who wait."""
        self.tenants.advance(start)
        self.users[seat.tenant.key].advance(user_start)


class Accounts(Generic[W]):
    """Every request that is here has a seat at the main clock; one of backfill another, by which it is
    served."""

    __slots__ = ("_ahead_ns", "_backfill", "_main")

    def __init__(self, ahead_ns: float) -> None:
        self._ahead_ns = ahead_ns
        self._main = Clock()
        self._backfill = Clock()

    @property
    def tenants(self) -> Level[str]:
        """All that are here."""
        return self._main.tenants

    @property
    def contended(self) -> bool:
        """Whether anything but backfill waits."""
        return self._main.tenants.waiting > 0

    def open(self, work: W, band: Band[W]) -> Entry[W]:
        who = (work.tenant, work.tenant_weight, work.user, work.user_weight)
        main = self._main.open(*who)
        own = self._backfill.open(*who) if band.rank is Rank.BACKFILL else main
        return Entry(
            work,
            work.ticket,
            work.place,
            band,
            band.weight,
            own.tenant,
            own.user,
            own,
            None if own is main else main,
        )

    def wait(self, entry: Entry[W]) -> None:
        """It joins the queue of its band."""
        self._clock(entry).wait(entry.seat)
        entry.band.push(entry)

    def go(self, entry: Entry[W]) -> None:
        """It leaves the queue of its band."""
        entry.band.remove(entry)
        self._clock(entry).go(entry.seat)

    def serve(
        self,
        entry: Entry[W],
        known_ns: float,
        bands: Iterable[Band[W]],
        aside: Iterable[tuple[Band[W], Flow[str]]],
    ) -> None:
        """It is let in, and was taken out of its band: time goes on to the least start time of all that
        wait by the same clock.  Those set `aside` hold it back no further than `ahead_ns`: else whoever
        comes had a claim for all the time that they found no room."""
        backfill = entry.main is not None
        heads = [(band, flow) for band in bands if (flow := band.tenants.first()) is not None]
        least = self._least(backfill, heads, entry.tenant.start)
        held = self._least(backfill, aside, least)
        clock = self._clock(entry)
        start = max(held, least - self._ahead_ns / clock.tenants.weight)
        user_start = min(entry.user.start, entry.band.user_start(entry.tenant.key))
        clock.advance(entry.seat, start, user_start)
        if entry.main is not None and not self.contended:
            self._main.advance(entry.main, entry.main.tenant.start, entry.main.user.start)
        weight = entry.weight * entry.work.tenant_weight
        entry.began = entry.tenant.start - entry.charged_ns / weight
        if known_ns > entry.charged_ns:
            self._charge(entry, known_ns - entry.charged_ns)

    def move(self, entry: Entry[W], band: Band[W], *, waits: bool) -> None:
        """Its class is another sort of class from now on."""
        new = self.open(entry.work, band)
        if new.main is not None:
            new.seat.charge(entry, max(0.0, entry.charged_ns - entry.measured_ns))
        if waits:
            self.go(entry)
        self._leave(entry)
        entry.band, entry.tenant, entry.user = band, new.tenant, new.user
        entry.seat, entry.main = new.seat, new.main
        if waits:
            self.wait(entry)

    def is_ahead(self, entry: Entry[W]) -> bool:
        """Whether its tenant is so far ahead of the others by its clock that they could not make it up in
        `ahead_ns` of the device."""
        tenants = self._clock(entry).tenants
        return (entry.tenant.start - tenants.virtual) * tenants.weight > self._ahead_ns

    def lead(self, entry: Entry[W], lead_ns: float) -> float:
        """What start times of tenants may differ by, so that the others make it up in `lead_ns`."""
        return lead_ns / self._clock(entry).tenants.weight

    def user_lead(self, entry: Entry[W], tenant: str, lead_ns: float) -> float:
        """The same for the users of one."""
        return lead_ns / self._clock(entry).users[tenant].weight

    @staticmethod
    def _least(backfill: bool, waiting: Iterable[tuple[Band[W], Flow[str]]], start: float) -> float:
        starts = (flow.start for band, flow in waiting if (band.rank is Rank.BACKFILL) == backfill)
        return min(start, min(starts, default=start))

    def measured(self, entry: Entry[W], device_ns: int) -> None:
        entry.measured_ns += device_ns
        more_ns = entry.measured_ns - entry.charged_ns
        if more_ns > 0:
            self._charge(entry, more_ns)

    def close(self, entry: Entry[W], bands: Iterable[Band[W]]) -> None:
        """It is over: the account is put right."""
        if entry.charged_ns > entry.measured_ns:
            self._charge(entry, entry.measured_ns - entry.charged_ns)
            for band in bands:
                own = (band.rank is Rank.BACKFILL) == (entry.main is not None)
                seat = entry.seat if own else entry.main
                if seat is not None:
                    band.refresh(seat)
        self._leave(entry)

    def _leave(self, entry: Entry[W]) -> None:
        self._clock(entry).close(entry.seat)
        if entry.main is not None:
            self._main.close(entry.main)

    def _clock(self, entry: Entry[W]) -> Clock:
        return self._main if entry.main is None else self._backfill

    def _charge(self, entry: Entry[W], cost_ns: float) -> None:
        entry.charged_ns += cost_ns
        entry.seat.charge(entry, cost_ns)
        if entry.main is not None:
            entry.main.charge(entry, cost_ns)


def prompt_ns(start: int, tokens: int, rows: int, rates: Rates) -> float:
    """What computing so many after `start` will cost, beside `rows` others: those before are only read."""
    return rates.step_ns / (rows + 1) + rates.row_ns(tokens, start)


def terms_of(workloads: tuple[Workload, ...], name: str) -> Workload:
    """Work of a class that nobody named has neutral terms."""
    return next((each for each in workloads if each.name == name), Workload(name=name))
