"""The book: holds and settlements, durable before they are answered.

An asynchronous face on `ledger`; every call is one operation in the store's group commit.
Refuses to know: HTTP, executors, why a request ended.  Source: DESIGN.md ("book"), MONEY.md §1.

No hold, no dispatch: work may start when `hold` has returned.  For SQLite the clock handed in
stands for the database's: it decides windows and leases, and nobody else's does.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sqlalchemy import Connection

from policies.facts import Meters, Price
from policies.verdict import Allow, Deny
from tenants import ledger, reports, usage, windows
from tenants.ledger import (
    LEASE_S,
    SWEEP_MOST,
    BookFault,
    Hold,
    HoldAsk,
    Settled,
    Swept,
)
from tenants.reports import Explanation, UsageRow
from tenants.scopes import BudgetAccount, Dimensions
from tenants.store import Store, StoreUnavailable
from tenants.usage import UsageRecord

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
]


@dataclass(frozen=True, slots=True)
class Balance:
    """One budget now.  `resets_at_s`: when its window ends; None for `total`; for a rolling window
    the next full hour, when its oldest hour falls out."""

    scope: str
    id: str
    window: str
    hard: bool
    limit_nano_usd: int
    spent_nano_usd: int
    held_nano_usd: int
    remaining_nano_usd: int
    resets_at_s: int | None


class Book:
    """`owner` names this process, anew at each start; `clock_ms` is wall time."""

    def __init__(self, store: Store, *, owner: str, clock_ms: Callable[[], int]) -> None:
        self._store = store
        self._owner = owner
        self._clock_ms = clock_ms

    async def publish_prices(self, prices: Iterable[Price]) -> None:
        """Keep the price list.  BookFault where one that is kept already has changed."""
        kept = tuple(prices)

        def op(conn: Connection) -> None:
            for price in kept:
                ledger.keep_price(conn, price)

        await self._store.write(op)

    async def hold(self, ask: HoldAsk) -> Allow[Hold] | Deny:
        """Reserve, or Deny(BUDGET_SPENT).  A caller cancelled while waiting leaves no hold behind.
        Raises StoreUnavailable: then nobody knows, and `void` it when the store is back."""
        try:
            return await self._store.write(
                lambda conn: ledger.hold(conn, ask, owner=self._owner, now_ms=self._clock_ms())
            )
        except asyncio.CancelledError:
            # In submission order, so after the hold that may still be on its way.
            with contextlib.suppress(StoreUnavailable):  # then its lease ends it
                self._store.write_soon(
                    lambda conn: ledger.void(conn, ask.request_id, None, now_ms=self._clock_ms())
                )
            raise

    async def mark_dispatched(self, request_id: str) -> bool:
        """For holds asked with `dispatched=False`.  False: it may not start."""
        return await self._store.write(
            lambda conn: ledger.mark_dispatched(conn, request_id, now_ms=self._clock_ms())
        )

    async def settle(
        self, request_id: str, meters: Meters, record: UsageRecord | None = None
    ) -> Settled:
        """Bill, once; also when the caller is cancelled meanwhile.  A repeat hears the first result."""
        return await self._store.write(
            lambda conn: ledger.settle(conn, request_id, meters, record, now_ms=self._clock_ms())
        )

    async def void(self, request_id: str, record: UsageRecord | None = None) -> bool:
        """Nothing ran.  False where there was nothing to void."""
        return await self._store.write(
            lambda conn: ledger.void(conn, request_id, record, now_ms=self._clock_ms())
        )

    async def record(self, record: UsageRecord) -> bool:
        """Keep the record of a request that never reached a hold, for `explain`."""
        return await self._store.write(lambda conn: usage.record(conn, record))

    async def renew(self, request_ids: Iterable[str], *, lease_s: int = LEASE_S) -> tuple[str, ...]:
        """Keep leases of running requests; returns ids that are held no longer."""
        ids = tuple(request_ids)
        if not ids:
            return ()
        return await self._store.write(
            lambda conn: ledger.renew(conn, ids, lease_s=lease_s, now_ms=self._clock_ms())
        )

    async def sweep(self) -> Swept:
        """Resolve holds whose lease lapsed.  Call every few seconds."""
        return await self._store.write(
            lambda conn: ledger.sweep(conn, now_ms=self._clock_ms(), most=SWEEP_MOST)
        )

    async def recover(self) -> Swept:
        """Once at start, before serving: resolve the holds of processes that are no more."""
        return await self._store.write(
            lambda conn: ledger.recover(conn, owner=self._owner, now_ms=self._clock_ms())
        )

    async def open_holds(self) -> int:
        """How many reservations are HELD now; at rest none (MONEY.md §1, invariant 10)."""
        return await self._store.read(ledger.open_holds)

    async def balances(self, accounts: Iterable[BudgetAccount]) -> tuple[Balance, ...]:
        wanted = tuple(accounts)

        def op(conn: Connection) -> tuple[Balance, ...]:
            now_s = self._clock_ms() // 1000
            return tuple(_balance(windows.peek(conn, account, now_s)) for account in wanted)

        return await self._store.read(op)

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


def _balance(opened: windows.Opened) -> Balance:
    account, budget = opened.account, opened.budget
    return Balance(
        scope=budget.scope,
        id=budget.id,
        window=budget.budget.window,
        hard=account.hard,
        limit_nano_usd=account.limit_nano_usd,
        spent_nano_usd=account.spent_nano_usd,
        held_nano_usd=account.held_nano_usd,
        remaining_nano_usd=account.room_nano_usd,
        resets_at_s=opened.span.end_s,
    )
