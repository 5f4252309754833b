"""What finance asks of the book: reports, the lines of an export, reconciliation, closing of months.

An asynchronous face on `reports`, `closing`, `reconcile` and `focus`.  Refuses to know: HTTP, who may
ask.  Source: MONEY.md §2.

A book may hold millions of lines, and one reader serves everybody: whatever is long is read a page at a
time, and others are heard between two pages.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial

from sqlalchemy import Connection

from policies.periods import Hurdle, Month, State, hurdle, month_at, months, state_of
from tenants import closing, device_sums, exporting, periods, reconcile, reports, resealing
from tenants.closing import Closed, Page, Place, Seal
from tenants.device_sums import DeviceRow
from tenants.focus import Export
from tenants.reconcile import Count, Findings, Reconciliation
from tenants.reports import Asked, Cut, UsageRow
from tenants.reports.facts import Slice
from tenants.resealing import Resealed
from tenants.store import Store

__all__ = ["CannotClose", "Closed", "Finance", "Hurdle", "Month", "Reconciliation", "Seal", "State"]


class CannotClose(Exception):
    """Not now; `why` says what is in the way."""

    def __init__(self, why: Hurdle, earliest: Month | None = None) -> None:
        super().__init__(why.value)
        self.why = why
        self.earliest = earliest


class Finance:
    """`clock_ms` is wall time, which decides where the database has no clock of its own."""

    def __init__(self, store: Store, *, clock_ms: Callable[[], int]) -> None:
        self._store = store
        self._now_ms = store.clock_ms(clock_ms)

    async def cut(self, asked: Asked) -> tuple[Cut, UsageRow | None]:
        """One page of a report, and the sum over all its pages.  ValueError as `reports.cut`."""

        def op(conn: Connection) -> tuple[Cut, UsageRow | None]:
            return reports.cut(conn, asked), reports.total(conn, asked.of)

        return await self._store.read(op)

    async def every(self, asked: Asked) -> AsyncIterator[UsageRow]:
        """All rows of a report, page by page."""
        after = asked.after
        while True:
            here = Asked(by=asked.by, of=asked.of, after=after, most=asked.most)
            found = await self._store.read(partial(_cut, asked=here))
            for row in found.rows:
                yield row
            if found.next is None:
                return
            after = found.next

    async def knows(self, tenant: str) -> bool:
        """Whether anything of it stands in the book, though it may be configured no more."""
        return await self._store.read(lambda conn: reports.knows(conn, tenant))

    async def spend(self, of: Slice) -> int:
        return await self._store.read(
            lambda conn: reports.spend(
                conn, from_ms=of.from_ms, to_ms=of.to_ms, tenant=of.tenant,
                posted_before_ms=of.posted_before_ms,
            )
        )  # fmt: skip

    def export(self, of: Export) -> AsyncIterator[bytes]:
        """The file, as it is made.  Raises NoParquet before its first byte."""
        return exporting.stream(self._store, of)

    async def manifest(self, of: Export) -> dict[str, object]:
        """What `export` gives for the same question.  Raises NoParquet."""
        return await exporting.manifest(self._store, of)

    async def closed(self, period: Month) -> bool:
        return await self._store.read(periods.closed_until) >= period.end_ms

    async def reconcile(self, of: Slice) -> Reconciliation:
        """Everything of a time against everything else, a day at a time.  Of all tenants."""
        found = Findings()
        count, sums, days = await self._store.read(partial(_counted, of=of))
        for day in days:
            after: reconcile.Place | None = None
            while True:
                read = partial(_lines, of=day, after=after, found=found)
                after, found = await self._store.read(read)
                if after is None:
                    break
            found = await self._store.read(partial(_requests, of=day, found=found))
        device = await self._store.read(
            lambda conn: device_sums.check(conn, of, now_ms=self._now_ms(conn))
        )
        return Reconciliation(count, found, *sums, device)

    async def device_time(
        self, by: tuple[str, ...], of: Slice, *, most: int
    ) -> tuple[tuple[DeviceRow, ...], DeviceRow]:
        """Where the time of devices went, and the sum of all of it.  TooMany."""

        def op(conn: Connection) -> tuple[tuple[DeviceRow, ...], DeviceRow]:
            return device_sums.cut(conn, by, of, most=most), device_sums.total(conn, of)

        return await self._store.read(op)

    async def periods(self) -> tuple[tuple[Month, State, Closed | None], ...]:
        """Every month from the first that anything stands in up to the present one."""

        def op(conn: Connection) -> tuple[tuple[Month, State, Closed | None], ...]:
            now_ms = self._now_ms(conn)
            until_ms, open_ms = periods.closed_until(conn), closing.oldest_open_ms(conn)
            shut = {each.name: each for each in closing.listed(conn)}
            first = min([open_ms or now_ms, now_ms, *(each.start_ms for each in shut.values())])
            return tuple(
                (each, _state(each, shut.get(each.name), until_ms, now_ms), shut.get(each.name))
                for each in months(first, now_ms + 1)
            )

        return await self._store.read(op)

    async def close(self, period: Month, *, actor: str, reason: str) -> Closed:
        """Shut `period` for ever, count it and keep its hash.  CannotClose where it is too early, an
        earlier month is open, or it is closed already.  Whatever arrives for it later is a correction in
        the month that is open then."""

        def shut(conn: Connection) -> None:
            found = closing.find(conn, period.name)
            if found is not None and found.sha256 is None:
                return  # shut, and interrupted while it was counted
            now_ms, until_ms = self._now_ms(conn), periods.closed_until(conn)
            oldest_ms = closing.oldest_open_ms(conn)
            if (why := hurdle(period, until_ms, now_ms, oldest_ms)) is not None:
                raise CannotClose(why, None if oldest_ms is None else month_at(oldest_ms))
            closing.shut(conn, period, now_ms=now_ms, actor=actor, reason=reason)

        await self._store.write(shut)
        found = await self.count(period)
        await self._store.write(
            lambda conn: closing.seal(conn, period, found, now_ms=self._now_ms(conn))
        )
        return await self._kept(period)

    async def count(self, period: Month) -> Seal:
        """The hash and sums of a month as its rows are now."""
        seal, place = Seal(period.name), Place()
        while True:
            part, rows, onwards = await self._store.read(partial(_page, period=period, place=place))
            seal.take(part, rows)
            if onwards is None:
                return seal
            place = onwards

    async def verify(self, period: Month) -> tuple[Closed, Seal] | None:
        """What was kept of a closed month beside what its rows come to now; None: it is not closed."""
        kept = await self._store.read(lambda conn: closing.find(conn, period.name))
        if kept is None or kept.sha256 is None:
            return None
        return kept, await self.count(period)

    async def seals(self, period: Month) -> tuple[Resealed, ...]:
        """How often a closed month was sealed anew since, and why; oldest first."""
        return await self._store.read(lambda conn: resealing.seals(conn, period.name))

    async def _kept(self, period: Month) -> Closed:
        kept = await self._store.read(lambda conn: closing.find(conn, period.name))
        assert kept is not None
        return kept


def _state(period: Month, shut: Closed | None, until_ms: int, now_ms: int) -> State:
    if shut is not None and shut.sha256 is None:
        return State.CLOSING
    return state_of(period, until_ms, now_ms)


def _cut(conn: Connection, *, asked: Asked) -> Cut:
    return reports.cut(conn, asked)


def _page(conn: Connection, *, period: Month, place: Place) -> Page:
    return closing.read_page(conn, period, place)


def _counted(conn: Connection, *, of: Slice) -> tuple[Count, tuple[int, int], tuple[Slice, ...]]:
    return reconcile.counted(conn, of), reconcile.ledger_sum(conn, of), reconcile.days(conn, of)


def _lines(
    conn: Connection, *, of: Slice, after: reconcile.Place | None, found: Findings
) -> tuple[reconcile.Place | None, Findings]:
    """On a copy, since what is read may be read again where a connection broke."""
    more = found.copy()
    return reconcile.check_lines(conn, of, after, more), more


def _requests(conn: Connection, *, of: Slice, found: Findings) -> Findings:
    more = found.copy()
    reconcile.check_requests(conn, of, more)
    return more
