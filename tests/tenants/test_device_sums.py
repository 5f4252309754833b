"""Device time, read and checked: what agrees, what does not and is named, who dies at which step, who tells at once.

Source: MONEY.md §1, invariants 8 and 10.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import pytest
from sqlalchemy import Connection, text

from tenants import device_sums, devices
from tenants.device_book import DeviceBook
from tenants.device_sums import TooMany
from tenants.devices import DeviceReport
from tenants.reports.facts import Slice
from tenants.schema import versions
from tenants.store import Store, StoreUnavailable
from tenants.store.sqlite import SqliteBackend
from tests.servers_postgres import database, needs_postgres
from tests.tenants.house import NOON_MS, Where, folder, on_both, run
from tests.tenants.test_devices import Machine, adds_up, keep, starts, tell
from tests.tenants.test_failpoints import Died, Failpoints

both = pytest.mark.usefixtures("on_both")
__all__ = ["on_both"]

EVER = Slice(from_ms=0, to_ms=2**60)
MS = 1_000_000
LATER_MS = NOON_MS + 4 * 3_600_000


def lived(conn: Connection) -> None:
    """Two starts of one model, the first killed; one of another that goes on."""
    first = replace(Machine("s1").now, wall_ns=90 * MS, attributed_ns=20 * MS)
    tell(conn, first)
    keep(conn, "r1", "s1", 12 * MS)
    keep(conn, "r2", "s1", 3 * MS, faulted=True)
    tell(conn, first, NOON_MS + 60_000, over=True)
    second = replace(Machine("s2").now, wall_ns=50 * MS, attributed_ns=7 * MS)
    keep(conn, "r3", "s2", 7 * MS)
    tell(conn, second, NOON_MS + 3_600_000, over=True)
    tell(conn, replace(Machine("s3", 2, "m2").now, attributed_ns=5), NOON_MS + 60_000)


@both
def test_it_is_summed_by_model_and_time() -> None:
    async def test() -> None:
        with folder() as where:
            store = Store.open(Where.url(where / "x.db"))
            await store.write(lived)
            cut: Callable[..., Any] = lambda *by, of=EVER: partial(  # noqa: E731
                device_sums.cut, by=by, of=of, most=99
            )
            models = await store.read(cut("model"))
            assert [(row.group["model"], row.wall_ns) for row in models] == [
                ("m", 140 * MS),
                ("m2", 14 * MS),
            ]
            assert models[0].overhead_ns["lost"] == 5 * MS
            assert models[0].overhead_ns["faults"] == 3 * MS
            total = await store.read(partial(device_sums.total, of=EVER))
            for by in (("hour",), ("day", "model"), ("month",), ("minute",), ("model", "month")):
                rows = await store.read(cut(*by))
                assert sum(row.idle_ns for row in rows) == total.idle_ns
                assert list(rows) == sorted(rows, key=lambda row: tuple(row.group.values()))
                for row in rows:
                    spent = row.attributed_ns + sum(row.overhead_ns.values())
                    assert row.idle_ns + spent == row.wall_ns
            later = Slice(from_ms=NOON_MS + 3_600_000, to_ms=2**60)
            assert [row.wall_ns for row in await store.read(cut("month", of=later))] == [50 * MS]
            with pytest.raises(TooMany):
                await store.read(partial(device_sums.cut, by=("minute",), of=EVER, most=2))
            await asyncio.to_thread(store.close)

    run(test)


WRONG = (
    ("UPDATE request SET device_ns = device_ns + 1 WHERE request_id = 'r1'", "12000001 ns", 1),
    ("DELETE FROM request WHERE request_id = 'r3'", "records have 0 ns", 7 * MS),
    ("UPDATE request SET faulted_ns = 2 WHERE request_id = 'r2'", "2 ns by our fault", 3 * MS - 2),
    ("UPDATE request SET device_start = 's2' WHERE request_id = 'r1'", "s1, m", 12 * MS),
    ("DELETE FROM device_minute WHERE minute_ms = (SELECT MIN(minute_ms) FROM device_minute)", "s1: minutes", 0),
    ("DELETE FROM device_start WHERE start = 's2'", "s2: minutes", 0),
    ("UPDATE device_minute SET idle_ns = idle_ns + 1, busy_ns = busy_ns - 1 WHERE start = 's3'", "s3: minutes", 0),
)  # fmt: skip


@both
@pytest.mark.parametrize(("broken", "says", "ns"), WRONG)
def test_each_thing_that_is_wrong_is_named(broken: str, says: str, ns: int) -> None:
    async def test() -> None:
        with folder() as where:
            store = Store.open(Where.url(where / "x.db"))
            await store.write(lived)
            found = await store.read(partial(device_sums.check, of=EVER, now_ms=LATER_MS))
            assert found.agree
            assert (found.starts, found.running, found.in_flight_ns) == (3, 1, 5)
            assert found.requests_ns == 19 * MS
            assert found.sums.attributed_ns == 19 * MS + 5
            await store.write(lambda conn: conn.execute(text(broken)).rowcount)
            await store.write(partial(devices.again, now_ms=LATER_MS))  # what mends late records
            found = await store.read(partial(device_sums.check, of=EVER, now_ms=LATER_MS))
            assert not found.agree
            assert found.difference_ns == ns
            assert any(says in words for words in found.named), found.named
            await asyncio.to_thread(store.close)

    run(test)


@both
def test_a_record_that_comes_late_is_mended_and_no_more_than_can_be() -> None:
    async def test() -> None:
        with folder() as where:
            store = Store.open(Where.url(where / "x.db"))
            await store.write(lived)

            async def checked(*late: tuple[str, str, int]) -> device_sums.Devices:
                def op(conn: Connection) -> None:
                    for request_id, start, device_ns in late:
                        keep(conn, request_id, start, device_ns)
                    devices.again(conn, now_ms=LATER_MS)

                await store.write(op)
                return await store.read(partial(device_sums.check, of=EVER, now_ms=LATER_MS))

            found = await checked(("late", "s1", 4 * MS))
            assert found.agree, found.named
            assert found.sums.overhead_ns["lost"] == MS
            found = await checked(("longer", "s2", 59_000 * MS))  # it told no last word
            assert found.agree, found.named
            found = await checked(("absurd", "s2", 3_600_000 * MS))
            assert not found.agree
            assert found.difference_ns > 3_000_000 * MS
            found = await checked(("too", "s3", 12 * 3_600_000 * MS))
            assert any("s3" in each and "has not lived" in each for each in found.named)
            await asyncio.to_thread(store.close)

    run(test)


# Who dies.


class Life:
    """A gateway that hears its executor, records its requests, and dies at some step; then the next one."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.machines = [Machine("s1"), Machine("s2", 3)]

    def live(self, backend: SqliteBackend, failpoints: Failpoints) -> bool:
        now_ms = NOON_MS
        try:
            with failpoints.in_(backend):
                for round_ in range(4):
                    for at, machine in enumerate(self.machines):
                        machine.lives(self.dice)
                        for number, (ns, faulted) in enumerate(machine.finished):
                            of = f"r{round_}-{at}-{number}"
                            put = partial(
                                keep, of=of, start=machine.now.start, ns=ns, faulted=faulted
                            )
                            backend.commit(put)
                        machine.finished.clear()
                    heard = [(each.now, round_ == 2) for each in self.machines]
                    now_ms += 25_000
                    backend.commit(partial(self.tells, heard=heard, now_ms=now_ms))
                    backend.commit(partial(self.sweeps, now_ms=now_ms))
            return True
        except Died:
            return False
        finally:
            backend.close()

    @staticmethod
    def tells(conn: Connection, heard: list[tuple[DeviceReport, bool]], now_ms: int) -> None:
        devices.tell_all(conn, heard, owner="g1", now_ms=now_ms)

    @staticmethod
    def sweeps(conn: Connection, now_ms: int) -> None:
        devices.sweep(conn, owner="g1", now_ms=now_ms, alone=True)


def next_one(conn: Connection) -> None:
    """Who begins looks at all; twice, since it is the same the second time."""
    for _ in range(2):
        devices.sweep(conn, owner="g2", now_ms=NOON_MS + 300_000, alone=True)
        devices.again(conn, now_ms=NOON_MS + 300_000)
    adds_up(conn)
    for start, row in starts(conn).items():
        assert row["ended_at_ms"] is not None
        assert (row["busy_ns"], row["faults_ns"]) == devices.recorded(conn, start)[1:]
    found = device_sums.check(conn, EVER, now_ms=NOON_MS + 300_000)
    assert found.agree, found.named
    assert found.sums.attributed_ns == found.requests_ns
    assert found.in_flight_ns == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_wherever_a_gateway_dies_the_next_finds_it_all(seed: int) -> None:
    with folder() as where:

        def told(dies_at: int | None) -> int:
            path = where / f"{dies_at}.db"
            first = SqliteBackend(path, write=True)
            first.commit(versions.prepare)
            failpoints = Failpoints(dies_at)
            survived = Life(seed).live(first, failpoints)
            assert survived is (dies_at is None)
            after = SqliteBackend(path, write=True)
            after.commit(next_one)
            after.close()
            return failpoints.passed

        for dies_at in range(1, told(None) + 1):
            told(dies_at)


# Who tells at once.


async def again(do: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    """As a gateway does it: what could not be written, others being in the way, is written with the next."""
    for _ in range(20):
        with suppress(StoreUnavailable):
            await do()
            return
    raise AssertionError("the others never make room")


@pytest.mark.slow
@needs_postgres
@pytest.mark.parametrize("seed", range(3))
def test_gateways_that_tell_and_sweep_at_once_lose_nothing(seed: int) -> None:
    """Each its own executors; each sweeps what it takes for the other's remains, wrongly at times."""

    async def test() -> None:
        with database() as url:
            stores = [await asyncio.to_thread(Store.open, url) for _ in range(3)]
            machines = [[Machine(f"s{at}{n}") for n in range(2)] for at in range(3)]

            async def gateway(at: int) -> None:
                dice = Random(seed * 10 + at)
                book = DeviceBook(stores[at], owner=f"g{at}", clock_ms=lambda: NOON_MS)
                for _ in range(25):
                    for machine in machines[at]:
                        machine.lives(dice)
                        while machine.finished:
                            ns, faulted = machine.finished.pop()
                            of, start = f"{machine.now.start}-{dice.random()}", machine.now.start
                            put = partial(keep, of=of, start=start, ns=ns, faulted=faulted)
                            await again(partial(stores[at].write, put))
                    heard = [(each.now, dice.random() < 0.1) for each in machines[at]]
                    await again(partial(book.tell, heard))
                    await again(partial(book.sweep, again=dice.random() < 0.3))
                await again(partial(book.tell, [(each.now, True) for each in machines[at]]))

            await asyncio.gather(*(gateway(at) for at in range(3)))
            await stores[0].write(adds_up)
            found = await stores[0].read(partial(device_sums.check, of=EVER, now_ms=LATER_MS))
            assert found.agree, found.named
            assert (found.starts, found.running) == (6, 0)
            every = [each.now for of in machines for each in of]
            assert found.sums.wall_ns == sum(each.wall_ns for each in every)
            spent_ns = found.sums.attributed_ns + found.sums.overhead_ns["faults"]
            assert spent_ns == sum(each.attributed_ns for each in every)
            for store in stores:
                await asyncio.to_thread(store.close)

    run(test)
