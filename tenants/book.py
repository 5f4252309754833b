"""The book: holds and settlements, durable before they are answered.

An asynchronous face on `ledger`; every call is one operation in the store's group commit.
Refuses to know: HTTP, executors, why a request ended.  Source: DESIGN.md ("book"), MONEY.md §1.

No hold, no dispatch: work may start when `hold` has returned.  For SQLite the clock handed in
stands for the database's: it decides windows and leases, and nobody else's does.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from policies import price as pricing
from policies.facts import Meters, Price
from policies.verdict import Allow, Deny
from tenants import accounts, adjustments, leases, ledger, outbox, prices, reports, usage, windows
from tenants.adjustments import AdjustAsk, Adjusted, Adjustment
from tenants.asks import (
    LEASE_S,
    Ask,
    BookFault,
    ClaimLost,
    Hold,
    HoldAsk,
    SettleAsk,
    Settled,
    Swept,
    VoidAsk,
    Worded,
)
from tenants.balances import Balance, balance_of, mode_of
from tenants.idempotency_rows import lost_claims
from tenants.journal import End, Journal, JournalFull
from tenants.outbox import Told
from tenants.reports import Explanation, UsageRow
from tenants.scopes import BudgetAccount, Dimensions
from tenants.store import Store, StoreUnavailable
from tenants.usage import UsageRecord

if TYPE_CHECKING:
    from tenants.till.front import Front  # with it a Redis client, for those alone who have a Redis

__all__ = [
    "Balance",
    "Book",
    "BookFault",
    "BudgetAccount",
    "Dimensions",
    "Explanation",
    "Hold",
    "HoldAsk",
    "Settled",
    "Swept",
    "UsageRecord",
    "UsageRow",
    "mode_of",
]


T = TypeVar("T")

CAUGHT_UP_MOST = 1_000
"""Ends out of the journal at once."""
HOLD_S = 10
"""Nobody waits longer to hear whether a hold was made."""


class Book:
    """`owner` names this process, anew at each start; `clock_ms` is wall time, which decides where the
    database has no clock of its own.  `till`: from which budgets that have one are drawn."""

    def __init__(
        self,
        store: Store,
        *,
        owner: str,
        clock_ms: Callable[[], int],
        journal: Journal,
        till: Front | None = None,
    ) -> None:
        self._store = store
        self._journal = journal
        self._till = till
        self._owner = owner
        self._wall_ms = clock_ms
        self._now_ms = store.clock_ms(clock_ms)
        self._skew_ms = 0
        self._published: Mapping[str, Price] = {}
        self._doubtful: set[str] = set()
        self._away = False
        self._held_at: dict[str, Price] = {}  # of what runs here

    async def publish_prices(self, published: Iterable[Price]) -> None:
        """Keep the price list.  BookFault where one that is kept already has changed."""
        kept = tuple(published)
        await self._store.write(lambda conn: prices.keep(conn, kept))
        self._published = {**self._published, **{price.id: price for price in kept}}

    async def hold(self, ask: HoldAsk) -> Allow[Hold] | Deny:
        """Reserve, or Deny(BUDGET_SPENT).  A caller cancelled while waiting leaves no hold behind, nor
        one that heard StoreUnavailable: nobody knows then, and it is voided when the store is back."""
        till = self._till
        if till is not None and any(each.budget.till for each in ask.budgets):
            drawn = await till.draw(ask)
            if isinstance(drawn, Deny):
                return drawn
            ask = drawn
        try:
            async with asyncio.timeout(HOLD_S):
                verdict = await self._heard(self._store.ask(self._turn, ask))
        except TimeoutError as why:
            self._away = True
            self._undo(ask.request_id)
            raise StoreUnavailable(
                f"the store did not answer within {HOLD_S} s; try again"
            ) from why
        except StoreUnavailable:
            self._doubtful.add(ask.request_id)
            raise
        except asyncio.CancelledError:
            self._undo(ask.request_id)
            raise
        except (BookFault, ClaimLost):
            if till is not None:
                till.give_back(ask)
            raise
        if isinstance(verdict, Worded):
            assert till is not None
            till.hear(ask, verdict)
            verdict = verdict.verdict
        if isinstance(verdict, Allow):
            self._held_at[ask.request_id] = ask.price
        answer: Allow[Hold] | Deny = verdict
        return answer

    async def mark_dispatched(self, request_id: str) -> bool:
        """For holds asked with `dispatched=False`.  False: it may not start."""
        return await self._store.write(
            lambda conn: leases.mark_dispatched(conn, request_id, now_ms=self._now_ms(conn))
        )

    async def settle(
        self, request_id: str, meters: Meters, record: UsageRecord | None = None
    ) -> Settled:
        """Bill, once; also when the caller is cancelled meanwhile.  A repeat hears the first result.
        While the store is away what was used is kept in the journal, and booked when it is back."""
        price = self._held_at.pop(request_id, None)
        settled = await self._end(SettleAsk(request_id, meters, record))
        if settled is not None:
            assert isinstance(settled, Settled)
            return settled
        if price is None:  # not held by this process: what it comes to is the store's to say
            raise StoreUnavailable("the use is kept, and booked when the store is back")
        return Settled(pricing.charge(price, meters))

    async def void(self, request_id: str, record: UsageRecord | None = None) -> bool:
        """Nothing ran.  False where there was nothing to void."""
        self._held_at.pop(request_id, None)
        return await self._end(VoidAsk(request_id, record)) is not False

    async def _end(self, end: End) -> Settled | bool | None:
        """None: it is in the journal.  A caller who leaves meanwhile loses nothing."""
        try:
            answer: Settled | bool = await self._heard(self._store.ask(self._turn, end))
        except StoreUnavailable:
            try:
                await self._journal.append(end)
            except JournalFull as full:
                raise StoreUnavailable(f"the use could not be booked: {full}") from full
            return None
        return answer

    async def book_journal(self) -> int:
        """What waits in the journal goes to the store, in order.  Returns how many ends that were; call
        again while it returns any.  Raises what kept the first of the others: they wait on."""
        waiting = self._journal.waiting[:CAUGHT_UP_MOST]
        answers = await asyncio.gather(
            *(self._store.ask(self._turn, end) for end in waiting), return_exceptions=True
        )
        # A BookFault is taken too: told again, it would be one again.  Whatever else was raised leaves the
        # end where it is: what was used is not dropped because nobody foresaw what would come of it.
        failed = [
            isinstance(each, BaseException) and not isinstance(each, BookFault) for each in answers
        ]
        taken = failed.index(True) if any(failed) else len(answers)
        if taken:
            await self._journal.taken(taken)
        if taken < len(waiting):
            why = answers[taken]
            assert isinstance(why, BaseException)
            self._away = isinstance(why, StoreUnavailable)
            raise why
        return taken

    def runs(self, request_id: str) -> bool:
        """Whether this process holds it."""
        return request_id in self._held_at

    @property
    def journalled(self) -> int:
        """Ends that wait for the store."""
        return len(self._journal)

    async def adjust(self, ask: AdjustAsk) -> Adjusted:
        """Top up, credit or refund, once however often it is asked.  Raises AdjustmentRefused."""

        def op(conn: Connection) -> Adjusted:
            return adjustments.adjust(conn, ask, now_ms=self._now_ms(conn))

        try:
            return await self._store.write(op)
        except IntegrityError:  # another gateway was asked the same meanwhile
            return await self._store.write(op)

    async def adjustments(
        self, *, tenant: str | None, request_id: str | None = None
    ) -> tuple[Adjustment, ...]:
        """The newest first."""
        return await self._store.read(
            lambda conn: adjustments.listed(conn, tenant=tenant, request_id=request_id)
        )

    async def claim_told(self) -> tuple[Told, ...]:
        """What is due to be told to the outside; nobody else tells it for a while."""
        return await self._store.write(lambda conn: outbox.claim(conn, now_ms=self._now_ms(conn)))

    async def told(
        self, told: Told, *, outcome: str | None = None, again_after_ms: int = 0
    ) -> None:
        """It was told (or given up, as `outcome` says), or is to be tried again."""

        def op(conn: Connection) -> None:
            now_ms = self._now_ms(conn)
            if outcome is None:
                outbox.postpone(conn, told, until_ms=now_ms + again_after_ms)
            else:
                outbox.finish(conn, told, outcome, now_ms=now_ms)

        await self._store.write(op)

    async def record(self, record: UsageRecord) -> bool:
        """Keep the record of a request that never reached a hold, for `explain`."""
        return bool(await self._store.write(lambda conn: usage.keep(conn, [record])))

    async def renew(self, request_ids: Iterable[str], *, lease_s: int = LEASE_S) -> tuple[str, ...]:
        """Keep leases of running requests; returns ids that are held no longer."""
        ids = tuple(request_ids)
        if not ids:
            return ()
        return await self._store.write(
            lambda conn: leases.renew(conn, ids, lease_s=lease_s, now_ms=self._now_ms(conn))
        )

    async def sweep(self) -> Swept:
        """Resolve holds whose lease lapsed, and those of which nobody knew whether they were made.
        Call every few seconds."""
        for request_id in tuple(self._doubtful):
            await self._heard(self._store.ask(self._turn, VoidAsk(request_id)))
            self._doubtful.discard(request_id)

        def op(conn: Connection) -> Swept:
            now_ms = self._now_ms(conn)
            self._skew_ms = self._wall_ms() - now_ms
            return leases.sweep(conn, now_ms=now_ms)

        return await self._heard(self._store.write(op))

    @property
    def clock_skew_ms(self) -> int:
        """By how much our clock is ahead of the database's, which decides; as of the last sweep."""
        return self._skew_ms

    async def recover(self) -> Swept:
        """Once at start, before serving: resolve the holds of processes that are no more.  Where others
        write too, nobody knows whose process is no more until its leases lapse."""
        if self._store.shared:
            return await self.sweep()
        return await self._store.write(
            lambda conn: leases.recover(conn, owner=self._owner, now_ms=self._now_ms(conn))
        )

    @property
    def till(self) -> Front | None:
        """None: every budget is decided by the store alone."""
        return self._till

    @property
    def away(self) -> bool:
        """Whether the database did not answer when it was last asked to write."""
        return self._away

    async def _heard(self, answer: Awaitable[T]) -> T:
        try:
            heard = await answer
        except StoreUnavailable:
            self._away = True
            raise
        self._away = False
        return heard

    def _turn(self, conn: Connection, asks: Sequence[Ask]) -> list[Any]:
        """A hold by a key that was lost meanwhile is none; all else is the ledger's."""
        lost = lost_claims(conn, asks)
        none = [isinstance(each, HoldAsk) and each.request_id in lost for each in asks]
        answers = iter(
            ledger.turn(
                conn,
                [each for each, is_none in zip(asks, none, strict=True) if not is_none],
                owner=self._owner,
                now_ms=self._now_ms(conn),
                published=self._published,
            )
        )
        return [ClaimLost() if is_none else next(answers) for is_none in none]

    def _undo(self, request_id: str) -> None:
        """After the hold that may still be on its way, since what waits is done in order; and once more
        by the next sweep, since nobody hears whether this was done."""
        self._doubtful.add(request_id)
        with contextlib.suppress(StoreUnavailable):
            self._store.ask_soon(self._turn, VoidAsk(request_id))

    async def open_holds(self) -> int:
        """How many reservations are HELD now; at rest none (MONEY.md §1, invariant 10)."""
        return await self._store.read(ledger.open_holds)

    async def balances(self, accounts: Iterable[BudgetAccount]) -> tuple[Balance, ...]:
        wanted = tuple(accounts)

        def op(conn: Connection) -> tuple[Balance, ...]:
            now_s = self._now_ms(conn) // 1000
            opened = (windows.peek(conn, account, now_s) for account in wanted)
            return tuple(balance_of(each, tills=self._till is not None) for each in opened)

        return await self._store.read(op)

    async def issuers(self, tenant: str, user: str) -> tuple[str, ...]:
        """At which a user of this name has an account."""
        return await self._store.read(lambda conn: accounts.issuers(conn, tenant, user))

    async def usage(
        self,
        by: Iterable[str],
        *,
        from_ms: int,
        to_ms: int,
        tenant: str | None = None,
    ) -> tuple[UsageRow, ...]:
        """Tokens, requests, money and device time by `tenant`, `project`, `user`, `key`, `model`,
        for requests admitted within [from_ms, to_ms)."""
        dims = tuple(by)
        return await self._store.read(
            lambda conn: reports.usage_rows(conn, dims, from_ms=from_ms, to_ms=to_ms, tenant=tenant)
        )

    async def spend(self, *, from_ms: int, to_ms: int, tenant: str | None = None) -> int:
        """The ledger's own total for the same requests: every report must sum to it."""
        return await self._store.read(
            lambda conn: reports.spend(conn, from_ms=from_ms, to_ms=to_ms, tenant=tenant)
        )

    async def explain(self, request_id: str) -> Explanation | None:
        return await self._store.read(lambda conn: reports.explain(conn, request_id))
