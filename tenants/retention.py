"""How long what is kept for cost attribution names people and tells how a request went, and who asked to be forgotten.

An asynchronous face on `forgetting` and `purging`.  Sums are never changed here: ledger, usage lines and the amounts of
reservations stay for ever.  Refuses to know: HTTP, who may ask, the keys (`Digest`).

What is old is looked through a day of one tenant at a time, from the oldest on, a few days a call.  How far is
remembered in memory alone: a process that starts, and each once a day, begins anew and finds little to do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from sqlalchemy import Connection, delete, literal, select, tuple_

from policies.periods import DAY_MS
from tenants import deletion, directory_rows, forgetting, purging, schema
from tenants.forgetting import BATCH, Standing
from tenants.pseudonyms import SALT_BYTES, Digest, Names, Person, names_of
from tenants.sql import insert_new
from tenants.store import Store, StoreUnavailable

T = TypeVar("T")
USER_IDS_DAYS_LEAST: Final = 40
"""Longer than any window of a budget that ends, and than its row is kept."""
SPANS_A_CALL: Final = 64
BATCHES_A_CALL: Final = 40
TURNS_A_CALL: Final = 16

_E = schema.erasure


@dataclass(frozen=True, slots=True)
class Periods:
    """In days; None: for ever."""

    user_ids_days: int | None = None
    request_days: int | None = 400
    notices_days: int | None = 400


@dataclass(frozen=True, slots=True)
class Forgotten:
    """`waiting`: requests that still bear the name, of which `counted` by a budget that stands; the rest is
    done by and by.  `standing`: what names them because it is in force."""

    pseudonym: str
    renamed: int
    waiting: int
    counted: int
    standing: Standing


@dataclass(frozen=True, slots=True)
class Tidied:
    """By one call: people renamed (rows), records that tell no more."""

    renamed: int = 0
    purged: int = 0


@dataclass(slots=True)
class Retention:
    """`drawn` gives random bytes; `key_issuer`: whom API keys act as."""

    store: Store
    digest: Digest = field(repr=False)
    clock_ms: Callable[[], int]
    drawn: Callable[[int], bytes]
    key_issuer: str
    periods: Periods = field(default_factory=Periods)
    deleting: set[str] = field(default_factory=set)  # tenants, by this process, now
    _marks: dict[tuple[str, str], int] = field(default_factory=dict)
    _day: int = 0
    _overwritten: bool = False  # what named somebody is so, and may stand in the file's log
    _passed: dict[tuple[Person, int], bool] = field(default_factory=dict)
    """Who waits, and whose refused requests were gone through today, and whether there were any."""
    _turn: tuple[str, str, str] = ("", "", "")  # who had the last one

    async def forget(self, who: Person, *, actor: str, budgets: bool = False) -> Forgotten:
        """One person, as of now; what is left is gone on with by `sweep`, and when it is asked again.
        `budgets`: those set for exactly them are taken away, so that nothing waits for their windows."""

        def begin(conn: Connection) -> tuple[int, str]:
            now_ms = self._now_ms(conn)
            row = {"tenant": who.tenant, "issuer": who.issuer, "user": who.user}
            conn.execute(delete(_E).filter_by(**row))
            insert_new(conn, _E, [{**row, "at_ms": now_ms + 1, "actor": actor}])
            if budgets:
                forgetting.drop_budgets(conn, who)
            directory_rows.count_up(conn)
            return now_ms + 1, self._names(conn, who.tenant).person(who.issuer, who.user)

        before_ms, pseudonym = await self.store.write(begin)
        done = await self._forget(who, pseudonym, before_ms)
        await self._empty_log()
        return done

    async def _forget(self, who: Person, pseudonym: str, before_ms: int) -> Forgotten:
        keys, renamed = who.issuer == self.key_issuer, 0

        def some(conn: Connection) -> forgetting.Batch:
            names = self._names(conn, who.tenant)
            now_ms = self._now_ms(conn)
            return forgetting.forget_person(conn, names, who, before_ms=before_ms, now_ms=now_ms)

        def rest(conn: Connection) -> Standing:
            names, now_ms = self._names(conn, who.tenant), self._now_ms(conn)
            forgetting.forget_words(
                conn, names, who, keys=keys, known=known, before_ms=before_ms, now_ms=now_ms
            )
            return forgetting.standing(conn, who, keys=keys, now_ms=now_ms)

        for _ in range(BATCHES_A_CALL):
            batch = await self.store.write(some)
            renamed += batch.renamed
            if batch.renamed < BATCH:
                break
        known = await self.store.read(
            lambda conn: forgetting.is_known(conn, self._names(conn, who.tenant), who, keys=keys)
        )
        if (who, before_ms) not in self._passed:
            asked = False
            first_ms = await self.store.read(lambda conn: forgetting.oldest_ms(conn, who.tenant))
            for begin, end in forgetting.spans(first_ms or before_ms, before_ms):
                renamed += await self._refused(who, begin, end)
                asked = asked or known or await self._has_asked(who, begin, end)
            self._passed[who, before_ms] = asked
        known = known or self._passed[who, before_ms]
        standing = await self.store.write(rest)
        if not batch.left:
            row = {"tenant": who.tenant, "issuer": who.issuer, "user": who.user}
            done = delete(_E).filter_by(**row).where(_E.c.at_ms <= before_ms)
            await self.store.write(lambda conn: conn.execute(done) and None)
            self._overwritten = True
            self._passed.pop((who, before_ms), None)
        return Forgotten(pseudonym, renamed, batch.left, batch.counted, standing)

    async def _refused(self, who: Person, from_ms: int, to_ms: int) -> int:
        count = 0

        def some(conn: Connection) -> int:
            names = self._names(conn, who.tenant)
            return forgetting.forget_recorded(conn, names, who, from_ms=from_ms, to_ms=to_ms)

        while more := await self.store.write(some):
            count += more
        return count

    async def _has_asked(self, who: Person, from_ms: int, to_ms: int) -> bool:
        def look(conn: Connection) -> bool:
            names = self._names(conn, who.tenant)
            return forgetting.has_asked(conn, names, who, from_ms=from_ms, to_ms=to_ms)

        return await self.store.read(look)

    async def sweep(self) -> Tidied:
        """Every few seconds, a slice of what is due."""
        now_ms = await self.store.read(self._now_ms)
        if now_ms // DAY_MS != self._day:
            self._day = now_ms // DAY_MS
            self._marks.clear()
            self._passed.clear()
            self._overwritten = True  # by time, or by a process that ended before it was forgotten
            await self.wipe()
        await self._go_on()
        tidied, periods = Tidied(), self.periods
        before_ms, people_before_ms = (
            0 if days is None else now_ms - days * DAY_MS
            for days in (periods.notices_days, periods.user_ids_days)
        )
        await self.store.write(
            lambda conn: purging.drop_notices(
                conn, before_ms=before_ms, people_before_ms=people_before_ms
            )
        )
        if periods.user_ids_days is not None:
            renamed = await self._through("user_ids", now_ms - periods.user_ids_days * DAY_MS)
            tidied = Tidied(renamed=renamed)
        if periods.request_days is not None:
            purged = await self._through("request", now_ms - periods.request_days * DAY_MS)
            tidied = Tidied(tidied.renamed, purged)
        await self._empty_log()
        return tidied

    async def _empty_log(self) -> None:
        """Where it is busy, the next sweep tries again: nobody's request fails by that."""
        if self._overwritten:
            self._overwritten = False
            try:
                await self.store.forget_overwritten()
            except StoreUnavailable:
                self._overwritten = True

    async def wipe(self) -> bool:
        """The files written anew where a tenant's deletion has ended.  False where they could not be."""
        if await self.store.read(deletion.unwiped):
            try:
                await self.store.forget_overwritten(rewrite=True)
            except StoreUnavailable:
                return False
            await self.store.write(deletion.wiped)
        return True

    async def _go_on(self) -> None:
        """With who asked, some a call, in turn: those who must wait keep nobody else from theirs."""

        def due(conn: Connection) -> list[tuple[Person, int]]:
            whose = (_E.c.tenant, _E.c.issuer, _E.c.user)
            last = tuple_(*map(literal, self._turn))
            rest, first = tuple_(*whose) > last, tuple_(*whose) <= last
            found: list[tuple[Person, int]] = []
            for part in (rest, first):
                some = select(*whose, _E.c.at_ms).where(part).order_by(*whose)
                rows = conn.execute(some.limit(TURNS_A_CALL - len(found))).all()
                found += [(Person(row.tenant, row.issuer, row.user), row.at_ms) for row in rows]
            return found

        for who, at_ms in await self.store.read(due):
            self._turn = (who.tenant, who.issuer, who.user)
            await self._forget(who, "", at_ms)

    async def _through(self, what: str, until_ms: int) -> int:
        count, left = 0, SPANS_A_CALL
        for tenant in await self.store.read(forgetting.tenants_of):
            mark = self._marks.get((what, tenant))
            if mark is None:
                oldest_ms = await self.store.read(
                    lambda conn, of=tenant: forgetting.oldest_ms(conn, of)  # type: ignore[misc]
                )
                mark = until_ms if oldest_ms is None else oldest_ms
            while mark < until_ms and left:
                left -= 1
                ((begin, end), *_) = forgetting.spans(mark, min(until_ms, mark + DAY_MS))
                done = await self._span(what, tenant, max(begin, mark), end)
                count += done
                if done < BATCH:
                    mark = end
            self._marks[what, tenant] = mark
            if not left:
                break
        return count

    async def _span(self, what: str, tenant: str, from_ms: int, to_ms: int) -> int:
        def op(conn: Connection) -> int:
            if what == "request":
                return purging.purge(conn, tenant, from_ms=from_ms, to_ms=to_ms)
            names, now_ms = self._names(conn, tenant), self._now_ms(conn)
            forgetting.forget_gone(conn, names, key_issuer=self.key_issuer, before_ms=from_ms)
            return forgetting.forget_all(conn, names, from_ms=from_ms, to_ms=to_ms, now_ms=now_ms)

        return await self.store.write(op)

    def _names(self, conn: Connection, tenant: str) -> Names:
        return names_of(conn, tenant, self.digest, self.drawn(SALT_BYTES))

    def _now_ms(self, conn: Connection) -> int:
        return self.store.clock_ms(self.clock_ms)(conn)
