"""PostgreSQL through asyncpg: the same operations, on an event loop of the worker's own thread.

Operations are written for a `Connection`; SQLAlchemy runs them on a greenlet that waits for the driver,
so they need not know.  Several gateways write at once: rows are locked in one order (`ledger`), and what
the database undoes because two were in each other's way is simply run again, since nothing of it was
done.  A connection that breaks in a commit leaves the outcome unknown.
Source: MONEY.md §1; PostgreSQL manual, "Transaction Isolation" (40001, 40P01 are to be retried).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import asyncpg
from sqlalchemy import Connection, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from tenants.schema.versions import SchemaMismatch, prepare
from tenants.store.refused import StoreRefused
from tenants.store.worker import StoreUnavailable, in_the_way, unavailable

T = TypeVar("T")

CONNECT_MS = 3_000
WRITE_MS, READ_MS = 5_000, 60_000
"""The longest statement: of those on whose word requests wait, and of reports."""
LOCK_MS = 2_000
AGAIN_MOST: Final = 5
"""Tries of a group that another gateway's transaction got in the way of."""
_MIGRATING: Final = 0x10C46A7E
"""The advisory lock under which the schema is brought up to date: one gateway does it, others wait."""

DRIVER: Final = "postgresql+asyncpg"


def database_ms(conn: Connection) -> int:
    """The database's clock, which alone decides windows and leases."""
    now = text("SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)")
    return int(conn.execute(now).scalar_one())


class PostgresBackend:
    """Used by one thread, which is where its loop runs."""

    def __init__(self, url: URL, *, write: bool) -> None:
        self._loop = asyncio.new_event_loop()
        longest_ms = WRITE_MS if write else READ_MS
        settings = {
            "application_name": "lockgate",
            "statement_timeout": str(longest_ms),
            "lock_timeout": str(LOCK_MS),
            "idle_in_transaction_session_timeout": str(longest_ms),
            "default_transaction_read_only": "off" if write else "on",
            "synchronous_commit": "on",
        }
        self._engine = create_async_engine(
            url.difference_update_query(["sslmode"]).set(drivername=DRIVER),
            pool_size=1,
            max_overflow=0,
            hide_parameters=True,
            pool_pre_ping=True,  # so that a server that was restarted costs nobody an error
            connect_args={
                "timeout": CONNECT_MS / 1000,
                "command_timeout": longest_ms / 1000 + 1,  # also where the server says nothing
                "server_settings": settings,
                **({"ssl": sslmode} if (sslmode := url.query.get("sslmode")) else {}),
            },
        )

    def commit(self, work: Callable[[Connection], T]) -> T:
        for _ in range(AGAIN_MOST):
            try:
                return self._loop.run_until_complete(self._commit(work))
            except DBAPIError as why:
                if not in_the_way(why):
                    raise
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as why:
                raise unavailable(why) from why  # it has not even let us in
        raise StoreUnavailable("other gateways were in the way too often; try again")

    async def _commit(self, work: Callable[[Connection], T]) -> T:
        async with self._engine.begin() as conn:
            return await conn.run_sync(work)

    def close(self) -> None:
        self._loop.run_until_complete(self._engine.dispose())
        self._loop.close()


def opened(url: URL) -> tuple[PostgresBackend, PostgresBackend]:
    """Who writes and who reads, the schema up to date.  StoreRefused."""
    writer = PostgresBackend(url, write=True)

    def up_to_date(conn: Connection) -> None:
        conn.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATING})
        prepare(conn)

    try:
        with ThreadPoolExecutor(1) as apart:  # from a thread whose loop runs, another cannot be run
            apart.submit(writer.commit, up_to_date).result()
    except SchemaMismatch as why:
        writer.close()
        raise StoreRefused(f"the database {url.database!r} {why}") from why
    except (StoreUnavailable, DBAPIError) as why:
        writer.close()
        raise StoreRefused(
            f"PostgreSQL did not let us in ({_kind(why)}); check that it runs, and host, database, user and "
            "password in database_url"
        ) from None
    return writer, PostgresBackend(url, write=False)


def _kind(why: BaseException) -> str:
    """What went wrong first, by the kind of it alone: a driver's message may quote what it was given."""
    while (before := getattr(why, "orig", None) or why.__cause__) is not None:
        why = before
    return type(why).__name__
