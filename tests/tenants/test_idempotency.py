"""Idempotency keys in a real database: who has one, what a lease and the book say, what is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, select

from policies.facts import Meters
from policies.idempotency import Verdict
from tenants import idempotency_rows as rows
from tenants import leases, ledger, schema
from tenants.asks import Ask, SettleAsk, VoidAsk
from tenants.idempotency import IdempotencyKeys
from tenants.idempotency_rows import LEASE_S, TTL_S, Claim
from tenants.store import Store
from tests.tenants.house import NOON_MS, Where, ask, folder, on_both

__all__ = ["on_both"]

LAPSED_MS = NOON_MS + LEASE_S * 1000
FORGOTTEN_MS = NOON_MS + TTL_S * 1000
MINE = Claim("d1", b"body", "acme", "r1", metered=True)
OTHER = replace(MINE, request_id="r2")


Done = Callable[[Callable[[Connection], object]], None]
"""What is done to a fresh database, in one transaction."""


@pytest.fixture
def done(on_both: None) -> Iterator[Done]:
    with folder() as where:
        store = Store.open(Where.url(where / "x.db"))
        yield lambda op: asyncio.run(_written(store, op))
        store.close()


async def _written(store: Store, op: Callable[[Connection], object]) -> None:
    await store.write(op)


def book(conn: Connection, *asks: Ask, at_ms: int = NOON_MS) -> Any:
    return ledger.turn(conn, asks, owner="g1", now_ms=at_ms)


def claim(conn: Connection, what: Claim = MINE, owner: str = "g1", at_ms: int = NOON_MS) -> Verdict:
    return rows.claim(conn, what, owner=owner, now_ms=at_ms).verdict


def known(conn: Connection) -> set[str]:
    return set(conn.execute(select(schema.idempotency.c.digest)).scalars())


def test_26_of_two_gateways_one_has_the_key(done: Done) -> None:
    def op(conn: Connection) -> None:
        assert claim(conn) is Verdict.RUN
        assert claim(conn, OTHER, "g2") is Verdict.RUNNING
        assert claim(conn, replace(OTHER, body=b"x"), "g2") is Verdict.REUSED
        assert claim(conn, replace(OTHER, digest="d2"), "g2") is Verdict.RUN

    done(op)


def test_whoever_inserts_second_hears_of_the_first(
    done: Done, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both looked before either wrote, as two transactions of PostgreSQL can."""

    def op(conn: Connection) -> None:
        assert claim(conn) is Verdict.RUN
        find, looks = rows._find, iter((None,))
        monkeypatch.setattr(rows, "_find", lambda c, d: next(looks, find(c, d)))
        assert claim(conn, OTHER, "g2") is Verdict.RUNNING
        assert rows.lost_claims(conn, [replace(ask("r1"), claim="d1")]) == frozenset()
        assert rows.lost_claims(conn, [replace(ask("r2"), claim="d1")]) == {"r2"}

    done(op)


def test_done_is_told_again_until_its_day_is_over(done: Done) -> None:
    def op(conn: Connection) -> None:
        claim(conn)
        assert rows.finish(conn, "d1", "r1", b"sealed", 3, None)
        found = rows.claim(conn, OTHER, owner="g2", now_ms=FORGOTTEN_MS - 1)
        assert (found.verdict, found.sealed, found.request_id) == (Verdict.REPLAY, b"sealed", "r1")
        assert rows.sweep(conn, now_ms=FORGOTTEN_MS - 1) == 0
        assert claim(conn, OTHER, "g2", FORGOTTEN_MS) is Verdict.RUN
        assert not rows.finish(conn, "d1", "r1", b"late", 3, None), "it is another request's by now"

    done(op)


def test_what_is_closed_says_why_and_what_is_freed_is_gone(done: Done) -> None:
    def op(conn: Connection) -> None:
        claim(conn)
        assert rows.finish(conn, "d1", "r1", None, 0, "oversize")
        found = rows.claim(conn, OTHER, owner="g2", now_ms=NOON_MS)
        assert (found.verdict, found.why) == (Verdict.GONE, "oversize")
        assert not rows.free(conn, "d1", "r1"), "done is done"
        claim(conn, replace(MINE, digest="d2"))
        assert not rows.free(conn, "d2", "r2")
        assert rows.free(conn, "d2", "r1")
        assert known(conn) == {"d1"}

    done(op)


def test_a_lease_is_kept_by_who_has_it(done: Done) -> None:
    def op(conn: Connection) -> None:
        claim(conn)
        rows.renew(conn, ["d1"], owner="g2", now_ms=LAPSED_MS - 1)
        rows.renew(conn, ["d1"], owner="g1", now_ms=NOON_MS + 1)
        assert claim(conn, OTHER, "g2", LAPSED_MS) is Verdict.RUNNING
        assert claim(conn, OTHER, "g2", LAPSED_MS + 1) is Verdict.RUN
        rows.renew(conn, ["d1"], owner="g1", now_ms=LAPSED_MS + 2)
        late = [replace(ask("r1"), claim="d1"), replace(ask("r2"), claim="d1"), ask("r3")]
        assert rows.lost_claims(conn, late[:1]) == {"r1"}
        assert rows.lost_claims(conn, late[1:]) == frozenset()

    done(op)


def test_of_a_dead_gateway_the_book_says_whether_it_may_run_again(done: Done) -> None:
    """Held: not before that is resolved.  Billed, even as an estimate: never by this key."""

    def op(conn: Connection) -> None:
        assert claim(conn) is Verdict.RUN
        book(conn, ask("r1"))
        assert claim(conn, OTHER, "g2", LAPSED_MS) is Verdict.RUNNING
        leases.sweep(conn, now_ms=LAPSED_MS)
        assert claim(conn, OTHER, "g2", LAPSED_MS) is Verdict.UNKNOWN
        book(conn, SettleAsk("r1", Meters(input=10, output=3)), at_ms=LAPSED_MS)
        assert claim(conn, OTHER, "g2", LAPSED_MS) is Verdict.UNKNOWN
        assert claim(conn, replace(OTHER, body=b"x"), "g2", LAPSED_MS) is Verdict.REUSED

    done(op)


@pytest.mark.parametrize("end", (VoidAsk("r1"), SettleAsk("r1", Meters())))
def test_what_cost_nothing_may_run_again_by_who_comes_after(done: Done, end: Ask) -> None:
    def op(conn: Connection) -> None:
        claim(conn)
        book(conn, ask("r1"), end)
        assert claim(conn, OTHER, "g2") is Verdict.RUNNING
        assert claim(conn, OTHER, "g2", LAPSED_MS) is Verdict.RUN

    done(op)


def test_of_what_the_book_does_not_know_nobody_can_say(done: Done) -> None:
    def op(conn: Connection) -> None:
        change = replace(MINE, metered=False)
        claim(conn, change)
        again = replace(change, request_id="r2")
        assert claim(conn, again, "g2", LAPSED_MS) is Verdict.UNKNOWN
        assert claim(conn, again, "g2", FORGOTTEN_MS) is Verdict.RUN

    done(op)


def test_what_runs_is_not_forgotten_however_old(done: Done) -> None:
    def op(conn: Connection) -> None:
        claim(conn)
        rows.renew(conn, ["d1"], owner="g1", now_ms=FORGOTTEN_MS)
        claim(conn, replace(MINE, digest="d2"))
        rows.finish(conn, "d2", "r1", b"x", 1, None)
        assert rows.sweep(conn, now_ms=FORGOTTEN_MS) == 1
        assert known(conn) == {"d1"}
        assert rows.forget(conn, "acme") == 0, "nor with the tenant's answers"
        assert rows.sweep(conn, now_ms=FORGOTTEN_MS + LEASE_S * 1000) == 1

    done(op)


def test_a_sweep_takes_a_slice_of_the_oldest(done: Done) -> None:
    def op(conn: Connection) -> None:
        for n in range(5):
            claim(conn, replace(MINE, digest=f"d{n}"), at_ms=NOON_MS - n)
            rows.finish(conn, f"d{n}", "r1", None, 0, "cut")
        assert rows.sweep(conn, now_ms=FORGOTTEN_MS, most=2) == 2
        assert known(conn) == {"d0", "d1", "d2"}

    done(op)


def test_a_tenants_answers_go_with_its_secret_and_nobody_elses(done: Done) -> None:
    def op(conn: Connection) -> None:
        for n, (tenant, version) in enumerate((("acme", 1), ("acme", 2), ("globex", 1), ("", 0))):
            claim(conn, replace(MINE, digest=f"d{n}", tenant=tenant))
            rows.finish(conn, f"d{n}", "r1", b"four", version, None)
        assert rows.tally(conn) == {"acme": (2, 8), "globex": (1, 4), "": (1, 4)}
        assert rows.drop(conn, "acme", 1, "retired") == 1
        found = rows.claim(conn, replace(OTHER, digest="d0"), owner="g1", now_ms=NOON_MS)
        assert (found.verdict, found.why) == (Verdict.GONE, "retired")
        assert claim(conn, replace(OTHER, digest="d1")) is Verdict.REPLAY
        assert rows.forget(conn, "acme", most=1) == 1
        assert rows.forget(conn, "acme") == 1
        assert known(conn) == {"d2", "d3"}

    done(op)


def test_an_answer_that_is_not_kept_takes_no_room(
    on_both: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenants.idempotency.ANSWERS_BYTES_MAX", 100)

    async def story(store: Store) -> None:
        keys = IdempotencyKeys(store, owner="g1", clock_ms=lambda: NOON_MS)
        assert (await keys.claim(MINE)).verdict is Verdict.RUN
        assert not await keys.keep(OTHER, b"x" * 60, 1)
        assert keys.has_room("acme", 100)
        assert await keys.keep(MINE, b"x" * 60, 1)
        assert keys.has_room("acme", 40)
        assert not keys.has_room("acme", 41)

    with folder() as where:
        store = Store.open(Where.url(where / "x.db"))
        asyncio.run(story(store))
        store.close()
