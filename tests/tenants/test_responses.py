"""Stored responses in a real database: whose they are, what a lease says, what is forgotten with whom."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from sqlalchemy import Connection, select, update

from tenants import forgetting, schema
from tenants import responses_rows as rows
from tenants.pseudonyms import Names, Person
from tenants.responses import Responses
from tenants.responses_rows import KEPT_S, LEASE_S, Begun, Whose
from tenants.store import Store
from tests.tenants.house import NOON_MS, Where, folder, on_both

__all__ = ["on_both"]

ALICE = Whose("acme", "p", "idp", "alice")
OTHERS = (
    replace(ALICE, tenant="globex"),
    replace(ALICE, project="q"),
    replace(ALICE, project=""),
    replace(ALICE, issuer="other"),
    replace(ALICE, user="bob"),
)
LAPSED_MS = NOON_MS + LEASE_S * 1000
EXPIRED_MS = NOON_MS + KEPT_S * 1000
Done = Callable[[Callable[[Connection], object]], None]


@pytest.fixture
def done(on_both: None) -> Iterator[Done]:
    with folder() as where:
        store = Store.open(Where.url(where / "x.db"))
        yield lambda op: asyncio.run(_written(store, op))
        store.close()


async def _written(store: Store, op: Callable[[Connection], object]) -> None:
    await store.write(op)


def begin(
    conn: Connection,
    id_: str = "r1",
    whose: Whose = ALICE,
    *,
    background: bool = False,
    previous: str | None = None,
    owner: str = "g1",
) -> None:
    what = Begun(id_, "m", background=background, previous=previous, sealed=b"begun", version=1)
    rows.begin(conn, whose, what, owner=owner, now_ms=NOON_MS)


def keep(conn: Connection, id_: str = "r1", *, sealed: bytes = b"said", owner: str = "g1") -> bool:
    return rows.keep(conn, id_, "completed", sealed, 2, owner=owner) is not None


def find(
    conn: Connection, id_: str = "r1", whose: Whose = ALICE, at_ms: int = NOON_MS
) -> rows.Row | None:
    return rows.find(conn, whose, id_, now_ms=at_ms)


def there(conn: Connection) -> set[str]:
    return set(conn.execute(select(schema.response.c.id)).scalars())


def test_what_is_anothers_is_not_there(done: Done) -> None:
    def op(conn: Connection) -> None:
        begin(conn)
        begin(conn, "r2", previous="r1")
        assert keep(conn)
        for other in OTHERS:
            assert find(conn, whose=other) is None
            assert not rows.remove(conn, other, "r1")
            assert not rows.cancel(conn, other, "r2")
            assert rows.chain(conn, other, "r2", now_ms=NOON_MS, most=9) == ([], False)
        found = find(conn)
        assert found is not None
        assert (found.status, bytes(found.sealed or b""), found.lapsed) == (
            "completed",
            b"said",
            False,
        )
        assert rows.remove(conn, ALICE, "r1")
        assert not rows.remove(conn, ALICE, "r1")

    done(op)


def test_it_is_kept_once_by_who_began_it(done: Done) -> None:
    def op(conn: Connection) -> None:
        begin(conn)
        assert not keep(conn, owner="g2")
        assert not rows.progress(conn, "r1", owner="g2")
        assert rows.progress(conn, "r1", owner="g1")
        assert keep(conn)
        assert not keep(conn, sealed=b"again")
        assert not rows.abandon(conn, "r1", owner="g1")
        begin(conn, "r2")
        assert rows.remove(conn, ALICE, "r2")
        assert not keep(conn, "r2")  # removed meanwhile: it does not come back
        assert there(conn) == {"r1"}

    done(op)


def test_a_conversation_ends_where_a_part_of_it_is_gone(done: Done) -> None:
    def op(conn: Connection) -> None:
        for id_, previous in (("r1", None), ("r2", "r1"), ("r3", "r2")):
            begin(conn, id_, previous=previous)

        def chain(most: int = 9) -> tuple[list[str], bool]:
            found, whole = rows.chain(conn, ALICE, "r3", now_ms=NOON_MS, most=most)
            return [each.id for each in found], whole

        assert chain() == (["r1", "r2", "r3"], True)
        assert chain(3) == (["r1", "r2", "r3"], True)
        assert chain(2) == (["r2", "r3"], False)
        rows.remove(conn, ALICE, "r1")
        assert chain() == (["r2", "r3"], False)

    done(op)


def test_whoever_died_leaves_a_failure_in_the_background_and_nothing_else(done: Done) -> None:
    def op(conn: Connection) -> None:
        begin(conn, "fore")
        begin(conn, "back", background=True)
        begin(conn, "alive", background=True, owner="g2")
        begin(conn, "over")
        keep(conn, "over")
        rows.renew(conn, ["alive", "back"], owner="g2", now_ms=NOON_MS + 1)
        assert not rows.sweep(conn, now_ms=LAPSED_MS - 1)
        found = find(conn, "back", at_ms=LAPSED_MS)
        assert found is not None
        assert found.lapsed
        assert rows.sweep(conn, now_ms=LAPSED_MS) == [(ALICE, 5)]
        assert there(conn) == {"back", "alive", "over"}
        found = find(conn, "back", at_ms=LAPSED_MS)
        assert found is not None
        assert (found.status, found.lapsed) == ("failed", False)
        assert not keep(conn, "back")  # it was given up

    done(op)


def test_many_that_somebody_died_over_all_leave_a_failure(done: Done) -> None:
    def op(conn: Connection) -> None:
        for index in range(5):
            begin(conn, f"back{index}", background=True)
        begin(conn, "fore")
        swept = [rows.sweep(conn, now_ms=LAPSED_MS, most=2) for _ in range(3)]
        assert swept == [[(ALICE, 5)], [], []]
        assert there(conn) == {f"back{index}" for index in range(5)}
        found = [find(conn, id_, at_ms=LAPSED_MS) for id_ in there(conn)]
        assert {None if each is None else each.status for each in found} == {"failed"}

    done(op)


def test_all_go_when_their_time_is_over(done: Done) -> None:
    def op(conn: Connection) -> None:
        begin(conn, "over")
        keep(conn, "over")
        begin(conn, "open", background=True)
        rows.renew(conn, ["open"], owner="g1", now_ms=EXPIRED_MS)
        assert not rows.sweep(conn, now_ms=EXPIRED_MS - 1)
        assert rows.sweep(conn, now_ms=EXPIRED_MS) == [(ALICE, 4)]
        assert there(conn) == {"open"}  # while it runs

    done(op)


def test_what_is_to_stop_is_asked_for_by_anybody_who_may(done: Done) -> None:
    def op(conn: Connection) -> None:
        begin(conn, "fore")
        begin(conn, "back", background=True)
        begin(conn, "gone", background=True)
        assert rows.to_end(conn, ["fore", "back", "gone"]) == []
        assert not rows.cancel(conn, ALICE, "fore")
        assert rows.cancel(conn, ALICE, "back")
        rows.remove(conn, ALICE, "gone")
        assert rows.to_end(conn, ["fore", "back", "gone"]) == ["back", "gone"]
        keep(conn, "back")
        assert not rows.cancel(conn, ALICE, "back")

    done(op)


def test_what_an_old_secret_sealed_is_sealed_anew_once(done: Done) -> None:
    def op(conn: Connection) -> None:
        for id_ in ("r1", "r2"):
            begin(conn, id_)
        begin(conn, "r9", OTHERS[0])
        keep(conn, "r2")
        assert rows.sealed_by(conn, "acme") == {1: 1, 2: 1}
        assert rows.stale(conn, "acme", 2) == [("r1", b"begun")]
        assert not rows.reseal(conn, "r1", b"other", b"new", 2)
        assert rows.reseal(conn, "r1", b"begun", b"new", 2)
        assert rows.stale(conn, "acme", 2) == []
        assert rows.sealed_by(conn, "acme") == {2: 2}
        assert rows.tally(conn) == {ALICE: (2, 7), OTHERS[0]: (1, 5)}
        assert rows.forget(conn, "acme", most=1) == 1
        assert rows.forget(conn, "acme") == 1
        assert there(conn) == {"r9"}

    done(op)


def test_who_is_forgotten_takes_what_they_stored(done: Done) -> None:
    names, alice = Names("acme", lambda _: b"d" * 32, b"salt"), Person("acme", "idp", "alice")

    def op(conn: Connection) -> None:
        for number, whose in enumerate((ALICE, *OTHERS)):
            begin(conn, f"r{number}", whose)
        begin(conn, "later")
        later = update(schema.response).where(schema.response.c.id == "later")
        conn.execute(later.values(created_at_ms=NOON_MS + 5))
        forgetting.forget_words(
            conn, names, alice, keys=False, known=True, before_ms=NOON_MS + 1, now_ms=NOON_MS
        )
        # Her projects are hers; her namesakes are not she, and what she says afterwards is new.
        assert there(conn) == {"r1", "r4", "r5", "later"}

    done(op)


def test_what_a_process_that_is_no_more_left_open_is_over_at_a_start(done: Done) -> None:
    def op(conn: Connection) -> None:
        begin(conn, "back", background=True)
        begin(conn, "fore")
        begin(conn, "ours", background=True, owner="g2")
        begin(conn, "over")
        keep(conn, "over")
        rows.recover(conn, owner="g2", now_ms=NOON_MS)
        lapsed = {id_: (row := find(conn, id_)) and row.lapsed for id_ in there(conn)}
        assert lapsed == {"back": True, "fore": True, "ours": False, "over": False}
        assert rows.sweep(conn, now_ms=NOON_MS) == [(ALICE, 5)]
        assert there(conn) == {"back", "ours", "over"}

    done(op)


def test_only_who_writes_alone_knows_at_a_start_who_is_no_more(
    on_both: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(store: Store) -> None:
        await store.write(lambda conn: begin(conn, background=True))
        for shared in (True, False):
            monkeypatch.setattr(Store, "shared", shared)
            await Responses(store, owner="g2", clock_ms=lambda: NOON_MS).recover()
            row = await store.read(find)
            assert row is not None
            assert row.lapsed is not shared

    in_a_store(story)


def test_what_nobody_ends_is_ended_for_them(done: Done) -> None:
    def op(conn: Connection) -> None:
        begin(conn, background=True)
        assert not rows.end_unheard(conn, ALICE, "r1")  # nobody asked for that
        assert rows.cancel(conn, ALICE, "r1")
        assert not rows.end_unheard(conn, OTHERS[4], "r1")
        assert rows.end_unheard(conn, ALICE, "r1")
        row = find(conn, at_ms=LAPSED_MS)
        assert row is not None
        assert (row.status, row.lapsed) == ("cancelled", False)
        assert not keep(conn)  # whoever worked on it after all
        begin(conn, "r2", background=True)
        assert rows.cancel(conn, ALICE, "r2")
        assert keep(conn, "r2")
        assert not rows.end_unheard(conn, ALICE, "r2")

    done(op)


def test_there_is_room_for_so_many(monkeypatch: pytest.MonkeyPatch, on_both: None) -> None:
    """A principal alone has three quarters of it: four responses, or less than thirty bytes."""
    monkeypatch.setattr("tenants.responses.KEPT_MAX", 5)
    monkeypatch.setattr("tenants.responses.BYTES_MAX", 40)

    async def story(store: Store) -> None:
        kept = Responses(store, owner="g1", clock_ms=lambda: NOON_MS)
        assert kept.has_room(ALICE, 29)
        assert not kept.has_room(ALICE, 30)
        await kept.begin(ALICE, Begun("r1", "m", background=False))
        await kept.keep(ALICE, "r1", "completed", b"x" * 15, 1)
        assert kept.has_room(ALICE, 14)
        assert not kept.has_room(ALICE, 15)
        for id_ in ("r2", "r3", "r4"):
            assert kept.has_room(ALICE, 0)
            await kept.begin(ALICE, Begun(id_, "m", background=False))
        assert not kept.has_room(ALICE, 0)
        assert kept.has_room(OTHERS[0], 0)
        assert await kept.abandon("r2")
        assert kept.has_room(ALICE, 0)
        other = Responses(store, owner="g2", clock_ms=lambda: NOON_MS)
        await other.counted()
        assert other.tenants() == ("acme",)
        assert not other.has_room(ALICE, 15)
        assert await other.forget("acme") == 3
        assert other.has_room(ALICE, 29)

    in_a_store(story)


def test_what_goes_makes_room_at_once(monkeypatch: pytest.MonkeyPatch, on_both: None) -> None:
    """However it goes, and whatever it was before it was kept: nobody waits for the next count."""
    monkeypatch.setattr("tenants.responses.BYTES_MAX", 4_000)
    now_ms = NOON_MS

    async def story(store: Store) -> None:
        nonlocal now_ms
        kept = Responses(store, owner="g1", clock_ms=lambda: now_ms)
        monkeypatch.setattr(kept, "_now_ms", lambda _: now_ms)

        async def begun(id_: str) -> None:
            queued = Begun(id_, "m", background=True, sealed=b"q" * 900, version=1)
            await kept.begin(ALICE, queued)

        async def fill() -> None:
            for id_ in ("r1", "r2"):
                await begun(id_)
                assert await kept.keep(ALICE, id_, "completed", b"x" * 1_000, 1)
            assert kept.has_room(ALICE, 999)  # it is what it became, and no more what it was
            await begun("r3")
            assert not kept.has_room(ALICE, 101)

        for _ in range(2):
            await fill()
            for id_ in ("r1", "r2", "r3"):
                assert await kept.remove(ALICE, id_)
                assert not await kept.remove(ALICE, id_)
            assert not await kept.keep(ALICE, "r3", "completed", b"x" * 1_000, 1)
            assert not await kept.abandon("r3")
            assert kept.has_room(ALICE, 2_999)
            assert not kept.has_room(ALICE, 3_000)
        await fill()
        assert await kept.abandon("r3")
        assert kept.has_room(ALICE, 999)
        assert not kept.has_room(ALICE, 1_000)
        now_ms = EXPIRED_MS
        await kept.sweep()
        assert kept.has_room(ALICE, 2_999)
        assert not kept.has_room(ALICE, 3_000)

    in_a_store(story)


def test_nobody_leaves_the_others_of_their_tenant_without_room(
    monkeypatch: pytest.MonkeyPatch, on_both: None
) -> None:
    monkeypatch.setattr("tenants.responses.KEPT_MAX", 20)

    async def story(store: Store) -> None:
        kept = Responses(store, owner="g1", clock_ms=lambda: NOON_MS)
        numbers = count()
        took = []
        for whose in (ALICE, *OTHERS[1:]):  # each takes all that it may, one after the other
            took.append(0)
            while kept.has_room(whose, 0):
                await kept.begin(whose, Begun(f"r{next(numbers)}", "m", background=False))
                took[-1] += 1
        assert took[0] == 15
        assert all(took[:3])
        assert sum(took) <= 20

    in_a_store(story)


def in_a_store(story: Callable[[Store], Coroutine[Any, Any, None]]) -> None:
    with folder() as where:
        store = Store.open(Where.url(where / "x.db"))
        asyncio.run(story(store))
        store.close()
