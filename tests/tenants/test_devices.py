"""The accounts of device time: reports told twice, late, out of order, to a book that is away or read anew;
executors and gateways that die.  Whatever comes, every start adds up, exactly.

Source: MONEY.md §1, invariant 8.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from sqlalchemy import Connection, select, text
from sqlalchemy.exc import IntegrityError

from tenants import devices, schema, usage
from tenants.devices import OVERHEAD, SILENT_MS, DeviceReport, account_of
from tenants.schema.devices import TOLD
from tenants.store import Store
from tests.tenants.house import NOON_MS, Where, folder, on_both, record, run

both = pytest.mark.usefixtures("on_both")
__all__ = ["on_both"]

MS = 1_000_000


class Undone(Exception):
    """The transaction failed."""


class Machine:
    """One start as it really was: what it did, what it said, what of it was recorded."""

    def __init__(self, start: str, count: int = 1, model: str = "m") -> None:
        self.now = DeviceReport(
            start=start,
            model=model,
            devices=count,
            rule="rule-1",
            coefficients="1,2",
            wall_ns=7 * MS,
            attributed_ns=0,
            load_ns=5 * MS,
            warm_up_ns=MS,
        )
        self.said: list[DeviceReport] = []
        self.finished: list[
            tuple[int, bool]
        ] = []  # device time of requests, and whose fault ended them

    def lives(self, dice: Random) -> None:
        """A step or some waiting, all of it within the wall clock."""
        spent = {kind: dice.choice((0, 0, dice.randrange(MS))) for kind in TOLD[3:]}
        mine = dice.choice((0, dice.randrange(1, 5 * MS)))
        busy = mine + sum(spent.values())
        longer = -(-busy // self.now.devices) + dice.randrange(0, 3 * MS)
        self.now = replace(
            self.now,
            wall_ns=self.now.wall_ns + longer,
            attributed_ns=self.now.attributed_ns + mine,
            coefficients=f"{dice.random():.6g}",
            **{f"{kind}_ns": getattr(self.now, f"{kind}_ns") + ns for kind, ns in spent.items()},
        )
        if mine:
            self.finished.append((mine, dice.random() < 0.2))
        self.said.append(self.now)


def tell(conn: Connection, of: DeviceReport, now_ms: int = NOON_MS, **more: Any) -> None:
    devices.tell(conn, of, **{"owner": "g1", "now_ms": now_ms, **more})


def keep(conn: Connection, of: str, start: str, ns: int, *, faulted: bool = False) -> None:
    device_ns, faulted_ns = (0, ns) if faulted else (ns, 0)
    row = replace(record(of), device_start=start, device_ns=device_ns, faulted_ns=faulted_ns)
    usage.keep(conn, [row])


def starts(conn: Connection) -> dict[str, dict[str, Any]]:
    found = conn.execute(select(schema.device_start)).mappings()
    return {row["start"]: dict(row) for row in found}


def adds_up(conn: Connection) -> None:
    """Minutes and starts, each in itself and one with the other, in Python's integers."""
    names = ("wall_ns", "busy_ns", "idle_ns", *(f"{kind}_ns" for kind in OVERHEAD))
    sums: dict[str, dict[str, int]] = {}
    for row in conn.execute(select(schema.device_minute)).mappings():
        assert sum(row[name] for name in names[1:]) == row["wall_ns"] * row["devices"]
        into = sums.setdefault(row["start"], dict.fromkeys(names, 0))
        for name in names:
            into[name] += row[name]
    kept = {of: {name: row[name] for name in names} for of, row in starts(conn).items()}
    assert kept == sums
    assert all(time_ns >= 0 for each in kept.values() for time_ns in each.values())


@pytest.fixture
def store(on_both: None) -> Any:
    with folder() as where:
        opened = Store.open(Where.url(where / "x.db"))
        yield opened
        opened.close()


def on(store: Store, op: Any) -> Any:
    async def test() -> Any:
        return await store.write(op)

    return run(test)


ONE = Machine("s1").now


@both
def test_what_is_told_twice_or_late_counts_once(store: Store) -> None:
    later = replace(ONE, wall_ns=90 * MS, attributed_ns=11 * MS, recompute_ns=2 * MS)

    def op(conn: Connection) -> None:
        for each in (ONE, later, later, ONE):
            tell(conn, each)
        adds_up(conn)
        (row,) = conn.execute(select(schema.device_minute)).mappings()
        assert (row["wall_ns"], row["busy_ns"]) == (90 * MS, 11 * MS)
        assert (row["load_ns"], row["warm_up_ns"], row["recompute_ns"]) == (5 * MS, MS, 2 * MS)
        assert row["idle_ns"] == 71 * MS
        assert (row["rule"], row["coefficients"]) == ("rule-1", "1,2")

    on(store, op)


@both
def test_a_difference_stands_in_the_minute_in_which_it_was_heard(store: Store) -> None:
    def op(conn: Connection) -> None:
        tell(conn, ONE)
        tell(conn, replace(ONE, wall_ns=900 * MS, coefficients="3"), NOON_MS + 60_000 * 9 + 5)
        found = conn.execute(select(schema.device_minute)).mappings()
        assert {(row["minute_ms"], row["wall_ns"], row["coefficients"]) for row in found} == {
            (NOON_MS, 7 * MS, "1,2"),
            (NOON_MS + 60_000 * 9, 893 * MS, "3"),
        }

    on(store, op)


@both
def test_what_died_with_an_executor_is_lost_and_comes_back_with_its_record(store: Store) -> None:
    told = replace(ONE, wall_ns=90 * MS, attributed_ns=20 * MS)

    def op(conn: Connection) -> None:
        tell(conn, told)
        keep(conn, "r1", "s1", 12 * MS)
        tell(conn, told, over=True)
        adds_up(conn)
        row = starts(conn)["s1"]
        assert (row["busy_ns"], row["lost_ns"], row["idle_ns"]) == (12 * MS, 8 * MS, 64 * MS)
        keep(conn, "r2", "s1", 3 * MS)  # out of a journal
        devices.again(conn, now_ms=NOON_MS + 3 * 86_400_000)
        adds_up(conn)
        row = starts(conn)["s1"]
        assert (row["busy_ns"], row["lost_ns"]) == (15 * MS, 5 * MS)

    on(store, op)


@both
@pytest.mark.parametrize("count", (1, 8))
def test_what_was_recorded_and_never_told_was_lived(store: Store, count: int) -> None:
    """The gateway died with its executor's last word."""
    told = replace(Machine("s1", count).now, attributed_ns=1)

    def op(conn: Connection) -> None:
        tell(conn, told)
        keep(conn, "r1", "s1", 13)
        keep(conn, "r2", "s1", 4, faulted=True)
        assert devices.sweep(conn, owner="g2", now_ms=NOON_MS, alone=True) == 1
        adds_up(conn)
        row = starts(conn)["s1"]
        assert (row["busy_ns"], row["faults_ns"], row["lost_ns"]) == (13, 4, 0)
        assert row["wall_ns"] == told.wall_ns + -(-16 // count)
        tell(conn, replace(told, wall_ns=told.wall_ns + 50, attributed_ns=17))  # it lives after all
        adds_up(conn)
        row = starts(conn)["s1"]
        assert (row["wall_ns"], row["busy_ns"], row["ended_at_ms"]) == (told.wall_ns + 50, 13, None)

    on(store, op)


@both
def test_work_that_a_fault_of_ours_ended_is_overhead(store: Store) -> None:
    def op(conn: Connection) -> None:
        tell(conn, replace(ONE, wall_ns=90 * MS, attributed_ns=20 * MS))
        keep(conn, "r1", "s1", 12 * MS)
        keep(conn, "r2", "s1", 6 * MS, faulted=True)
        tell(conn, replace(ONE, wall_ns=91 * MS, attributed_ns=20 * MS))
        adds_up(conn)
        row = starts(conn)["s1"]
        assert (row["busy_ns"], row["faults_ns"], row["lost_ns"]) == (14 * MS, 6 * MS, 0)

    on(store, op)


@both
def test_a_start_of_which_nothing_is_heard_is_over(store: Store) -> None:
    """Of another gateway's on a shared database only after a while."""

    def op(conn: Connection) -> None:
        tell(conn, ONE, owner="g1")
        for later_ms, ended in ((SILENT_MS, 0), (SILENT_MS + 1, 1), (SILENT_MS + 2, 0)):
            now_ms = NOON_MS + later_ms
            assert devices.sweep(conn, owner="g2", now_ms=now_ms, alone=False) == ended
        tell(conn, replace(ONE, start="s2"), owner="g2")
        assert devices.sweep(conn, owner="g2", now_ms=NOON_MS, alone=True) == 0

    on(store, op)


@both
def test_a_start_that_only_its_requests_know_has_an_account(store: Store) -> None:
    """Executor and gateway died before the first word of it was written."""

    def op(conn: Connection) -> None:
        keep(conn, "r1", "s9", 12)
        devices.again(conn, now_ms=NOON_MS)
        adds_up(conn)
        row = starts(conn)["s9"]
        assert (row["wall_ns"], row["busy_ns"], row["ended_at_ms"]) == (12, 12, NOON_MS)
        tell(conn, replace(ONE, start="s9", devices=2))  # only its word was late
        adds_up(conn)
        assert (starts(conn)["s9"]["rule"], starts(conn)["s9"]["devices"]) == ("rule-1", 2)

    on(store, op)


@both
def test_the_database_itself_keeps_no_minute_that_does_not_add_up(store: Store) -> None:
    on(store, lambda conn: tell(conn, ONE))
    for table in ("device_minute", "device_start"):
        with pytest.raises(IntegrityError):
            on(store, lambda conn, of=table: conn.execute(text(f"UPDATE {of} SET idle_ns = 0")))


@pytest.mark.slow
@both
@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_told_and_recorded_in_whatever_order_it_comes_to_what_was(
    store: Store, seed: int
) -> None:
    dice = Random(seed)
    machines = [Machine(f"s{n}", dice.choice((1, 1, 3))) for n in range(3)]
    over: set[str] = set()
    taken: list[tuple[Machine, tuple[int, bool]]] = []

    def some(conn: Connection) -> None:
        """A transaction's worth."""
        for _ in range(8):
            machine = dice.choice(machines)
            of, now_ms = machine.now.start, NOON_MS + dice.randrange(400_000)
            match dice.randrange(6):
                case 0 | 1 if of not in over:
                    machine.lives(dice)
                case 2 | 3 if machine.said:
                    told = dice.choice(machine.said[-4:])
                    tell(conn, told, now_ms, over=of in over and dice.random() < 0.5)
                case 4 if machine.finished and dice.random() < 0.6:
                    finished = machine.finished.pop(dice.randrange(len(machine.finished)))
                    taken.append((machine, finished))
                    ns, faulted = finished
                    keep(conn, f"{of}-{dice.random()}", of, ns, faulted=faulted)
                case 5 if dice.random() < 0.2:
                    over.add(of)
                    devices.sweep(conn, owner="g2", now_ms=now_ms, alone=dice.random() < 0.5)
        adds_up(conn)

    def undone(conn: Connection) -> None:
        some(conn)
        raise Undone

    for _ in range(30):
        taken.clear()
        if dice.random() < 0.15:
            with pytest.raises(Undone):
                on(store, undone)
            for machine, finished in taken:  # recorded when the database is back
                machine.finished.append(finished)
        else:
            on(store, some)

    def at_last(conn: Connection) -> None:
        """All that happened is told; some was never recorded."""
        for machine in machines:
            tell(conn, machine.now, NOON_MS + 500_000, over=True)
        adds_up(conn)
        for machine in machines:
            row = starts(conn).get(machine.now.start)
            assert row is not None
            _, device_ns, faulted_ns = devices.recorded(conn, machine.now.start)
            assert row["busy_ns"] == device_ns
            assert row["faults_ns"] == faulted_ns
            assert row["wall_ns"] == machine.now.wall_ns
            assert row["lost_ns"] == machine.now.attributed_ns - device_ns - faulted_ns
            assert row["recompute_ns"] == machine.now.recompute_ns

    on(store, at_last)


@pytest.mark.parametrize("seed", range(30))
def test_an_account_adds_up_whatever_was_recorded(seed: int) -> None:
    dice = Random(seed)
    machine = Machine("s", dice.randrange(1, 9))
    for _ in range(20):
        machine.lives(dice)
    told = machine.now
    for recorded_ns in (None, 0, told.attributed_ns, dice.randrange(10**9)):
        faulted_ns = dice.randrange(10**7)
        account = account_of(told, faulted_ns=faulted_ns, recorded_ns=recorded_ns)
        assert min(account.values()) >= 0
        wall_ns = account.pop("wall_ns")
        assert sum(account.values()) == wall_ns * told.devices
        if recorded_ns is not None:
            assert account["busy_ns"] == recorded_ns
            assert account["faults_ns"] == faulted_ns
