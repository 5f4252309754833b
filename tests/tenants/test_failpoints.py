"""A crash before and after every statement and every commit: the book converges, and nothing is held.

A story is a few turns of a gateway's life, drawn from a seed that every failure prints.  It is told once
to count its steps, and then once for each step, at which the process dies; the next process replays its
journal, as the first would have told of what ended, and time passes until all leases have lapsed.
Source: MONEY.md §1 (invariants 1, 3–6, 10), §5; TigerBeetle's simulator (seed and commit replay a run).
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, func, make_url, select, text

from policies import till as till_policy
from policies.facts import Meters
from policies.price import charge, worst_case
from policies.tags import Origin
from policies.verdict import Allow
from tenants import leases, ledger, schema, sql, windows
from tenants.asks import Ask, Drawn, HoldAsk, SettleAsk, VoidAsk, Worded
from tenants.places import Place
from tenants.schema import versions
from tenants.scopes import BudgetAccount
from tenants.sql import drive
from tenants.store.postgres import PostgresBackend
from tenants.store.sqlite import SqliteBackend
from tenants.till import DrawAsk, Dry, MemoryTills, Told
from tests.servers_postgres import database, needs_postgres
from tests.tenants.house import (
    NOON_MS,
    PRICE,
    ask,
    folder,
    project_budget,
    tag,
    tag_budget,
    tenant_budget,
)

Backend = SqliteBackend | PostgresBackend
Op = Callable[[Connection, int], Any]

LIMIT = 170_000  # three holds and a bit
TAGS = (tag(), tag("trace", "t1", Origin.CLIENT))
BUDGETS = (tenant_budget(LIMIT), project_budget(LIMIT), tag_budget(LIMIT))


class Died(BaseException):
    """The process is no more: nothing catches it, and nothing is told after it."""


@dataclass
class Failpoints:
    """Counts steps, and dies at one of them."""

    dies_at: int | None = None
    passed: int = 0

    def step(self, conn: Connection, *_: object) -> None:
        self.passed += 1
        if self.passed == self.dies_at:
            _cut(conn)
            raise Died

    @contextmanager
    def in_(self, backend: Backend) -> Iterator[None]:
        engine = engine_of(backend)
        names = ("before_cursor_execute", "after_cursor_execute", "commit")
        for name in names:
            event.listen(engine, name, self.step)
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(sql, "drive", self.driven)  # which SQLAlchemy hears nothing of
                yield
        finally:
            for name in names:
                event.remove(engine, name, self.step)

    def driven(self, conn: Connection, *what: Any) -> Any:
        self.step(conn)
        answer = drive(conn, *what)
        self.step(conn)
        return answer


def _cut(conn: Connection) -> None:
    """The end of the process closes its connection, and whatever was open is undone."""
    raw: Any = conn.connection.dbapi_connection
    if conn.dialect.name == "sqlite":
        raw.rollback()  # else a cursor that is half read keeps it open
        raw.close()
    else:
        raw._connection.terminate()
    conn.invalidate()


def engine_of(backend: Backend) -> Engine:
    return backend.engine if isinstance(backend, SqliteBackend) else backend._engine.sync_engine


@dataclass
class World:
    """What a gateway has been told, and what its executor really used."""

    backend: Callable[[], Backend]
    seed: int
    granted: dict[str, int] = field(default_factory=dict)  # reserved amounts of holds it heard of
    used: dict[str, Meters] = field(default_factory=dict)
    journal: list[Ask] = field(default_factory=list)
    budgets: tuple[BudgetAccount, ...] = BUDGETS

    def before(self, asked: list[Any]) -> list[Any]:
        """What a gateway does first."""
        return asked

    def after(self, asked: list[Any], answers: list[Any]) -> list[Any]:
        """And when it has heard the answers."""
        return answers

    def turns(self) -> list[list[Ask]]:
        """Requests begin and end in an order of their own."""
        dice = random.Random(self.seed)
        open_: list[str] = []
        told: list[list[Ask]] = []
        for at in range(3):
            turn: list[Ask] = []
            for number in range(dice.randrange(1, 4)):
                request_id = f"r{at}-{number}"
                dispatched = dice.random() < 0.8
                turn.append(ask(request_id, *self.budgets, dispatched=dispatched, tags=TAGS))
                open_.append(request_id)
            for request_id in dice.sample(open_, dice.randrange(0, len(open_))):
                if request_id.startswith(f"r{at}-"):
                    continue
                open_.remove(request_id)
                output = dice.randrange(0, 51)
                end = SettleAsk(request_id, Meters(input=100, output=output))
                turn.append(end if dice.random() < 0.7 else VoidAsk(request_id))
            told.append(turn)
        return told

    def live(self, failpoints: Failpoints) -> bool:
        """One process; False where it died."""
        backend = self.backend()
        now_ms = NOON_MS
        try:
            with failpoints.in_(backend):
                for turn in self.turns():
                    ends = [each for each in turn if not hasattr(each, "budgets")]
                    self.journal += [
                        each
                        for each in ends
                        if each.request_id in self.granted  # nothing else ever ran
                    ]
                    asked = [each for each in turn if hasattr(each, "budgets")]
                    asked += self.journal[-len(ends) :] if ends else []
                    asked = self.before(asked)
                    tell = partial(ledger.turn, asks=asked, owner="p1", now_ms=now_ms)
                    answers = self.after(asked, backend.commit(tell))
                    for each, answer in zip(asked, answers, strict=True):
                        if isinstance(answer, Allow):
                            self.granted[each.request_id] = answer.value.amount_nano_usd
                    now_ms += 1_000
                    running = sorted(self.granted)
                    renew = partial(leases.renew, request_ids=running, lease_s=60, now_ms=now_ms)
                    backend.commit(renew)
                backend.commit(lambda conn: leases.sweep(conn, now_ms=NOON_MS + 30_000))
            return True
        except Died:
            return False
        finally:
            backend.close()

    def recover(self) -> None:
        """The next process, twice: recovery is idempotent (invariant 10)."""
        backend = self.backend()
        for _ in range(2):
            for end in self.journal:
                tell = partial(ledger.turn, asks=[end], owner="p2", now_ms=NOON_MS + 40_000)
                backend.commit(tell)
            backend.commit(lambda conn: leases.recover(conn, owner="p2", now_ms=NOON_MS + 40_000))
            backend.commit(lambda conn: leases.sweep(conn, now_ms=NOON_MS + 200_000))
        backend.commit(self.check)
        backend.close()

    def check(self, conn: Connection) -> None:
        table = schema.reservation
        rows = {row.request_id: row for row in conn.execute(select(table))}
        assert set(self.granted) <= set(rows)  # no dispatch without a durable hold
        ended = {each.request_id: each for each in self.journal}
        spent = 0
        for request_id, row in rows.items():
            assert row.state != "HELD"
            assert row.charge <= row.amount
            match ended.get(request_id):
                case SettleAsk(meters=meters):
                    assert row.charge == charge(PRICE, meters).total_nano_usd
                case VoidAsk():
                    assert row.charge == 0
                case None:  # nobody knows what ran: as reserved, or nothing where nothing can have
                    assert row.charge == (row.amount if row.dispatched else 0)
            spent += row.charge
        signed = conn.execute(
            select(schema.ledger_entry.c.debit, func.sum(schema.ledger_entry.c.amount)).group_by(
                schema.ledger_entry.c.debit
            )
        )
        posted = {row[0]: int(row[1]) for row in signed}
        assert posted.get("available", 0) - posted.get("spend", 0) == spent
        lines = select(func.coalesce(func.sum(schema.usage_event.c.nano_usd), 0))
        assert int(conn.execute(lines).scalar_one()) == spent
        filed = select(func.count()).select_from(schema.reservation_tag)
        assert conn.execute(filed).scalar_one() == len(TAGS) * len(rows)
        for budget in self.budgets:
            account = windows.peek(conn, budget, NOON_MS // 1000).account
            assert (account.spent_nano_usd, account.held_nano_usd) == (spent, 0)
            assert spent + account.floated_nano_usd <= LIMIT


@dataclass
class WithTill(World):
    """One of the budgets has a till, which outlives the process that drew from it."""

    budgets: tuple[BudgetAccount, ...] = (
        replace(BUDGETS[0], budget=replace(BUDGETS[0].budget, till=True)),
        *BUDGETS[1:],
    )
    tills: MemoryTills = field(default_factory=lambda: MemoryTills(lambda: NOON_MS))
    drawn: int = 0

    def before(self, asked: list[Any]) -> list[Any]:
        return [self._draw(each) if isinstance(each, HoldAsk) else each for each in asked]

    def _draw(self, asked: HoldAsk) -> HoldAsk:
        amount = worst_case(asked.price, asked.prompt_tokens, asked.output_tokens)
        of = DrawAsk(asked.request_id, "acme", (Place("tenant", "acme"),), amount, amount)
        found = asyncio.run(self.tills.draw(of))
        if isinstance(found, Dry):
            return asked
        self.drawn += found[0].drawn_nano_usd > 0
        return replace(asked, till=(Drawn("tenant", "acme", found[0]),))

    def after(self, asked: list[Any], answers: list[Any]) -> list[Any]:
        for answer in answers:
            for word in answer.words if isinstance(answer, Worded) else ():
                told = Told(Place(word.scope, word.account), word.epoch, word.since, word.issued)
                asyncio.run(self.tills.fill("acme", (told,)))
        return [each.verdict if isinstance(each, Worded) else each for each in answers]

    def recover(self) -> None:
        """And all that is left may be held by one, whatever was set aside by whom."""
        super().recover()
        backend = self.backend()
        account = backend.commit(
            lambda conn: windows.peek(conn, BUDGETS[0], NOON_MS // 1000)
        ).account
        spent = account.spent_nano_usd
        last = ask("last", *self.budgets, prompt=0, out=(LIMIT - spent) // 600, tags=TAGS)
        tell = partial(ledger.turn, asks=[last], owner="p2", now_ms=NOON_MS + 300_000)
        (answer,) = backend.commit(tell)
        backend.close()
        assert isinstance(answer, Allow)


def converges(
    seed: int, fresh: Callable[[], Callable[[], Backend]], world_of: type[World] = World
) -> int:
    """Tell the story of `seed` once for each of its steps; returns how many they are."""
    counting = Failpoints()
    assert world_of(fresh(), seed).live(counting)
    for dies_at in range(1, counting.passed + 1):
        world = world_of(fresh(), seed)
        died = not world.live(Failpoints(dies_at))
        try:
            assert died
            world.recover()
        except AssertionError as why:
            raise AssertionError(f"seed {seed}, dead at step {dies_at}") from why
    return counting.passed


def on_files(seeds: range, world_of: type[World] = World) -> int:
    with folder() as where:
        first = SqliteBackend(where / "empty.db", write=True)
        first.commit(versions.prepare)
        first.close()
        number = iter(range(10**9))

        def emptied() -> Callable[[], Backend]:
            path = where / f"{next(number)}.db"
            shutil.copyfile(where / "empty.db", path)
            return lambda: SqliteBackend(path, write=True)

        return sum(converges(seed, emptied, world_of) for seed in seeds)


@pytest.mark.slow
def test_it_converges_with_a_till_wherever_it_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draw that was lost with its gateway is taken back, and one that was journalled is held once."""
    monkeypatch.setattr(till_policy, "PART", 2)
    drawn: list[WithTill] = []
    before = WithTill.before

    def noted(self: WithTill, asked: list[Any]) -> list[Any]:
        found = before(self, asked)
        drawn.append(self)
        return found

    monkeypatch.setattr(WithTill, "before", noted)
    assert on_files(range(3), WithTill) > 100
    assert sum(each.drawn > 0 for each in drawn) > 20


@pytest.mark.slow
def test_it_converges_wherever_it_dies() -> None:
    assert on_files(range(6)) > 200


@pytest.mark.slow
@needs_postgres
def test_it_converges_on_postgresql(monkeypatch: pytest.MonkeyPatch) -> None:
    with database() as url:
        first = PostgresBackend(make_url(url), write=True)
        first.commit(versions.prepare)
        first.close()
        names = ", ".join(f'"{each}"' for each in schema.metadata.tables)

        def emptied() -> Callable[[], Backend]:
            backend = PostgresBackend(make_url(url), write=True)
            backend.commit(lambda conn: conn.execute(text(f"TRUNCATE {names}")))
            backend.close()
            return lambda: PostgresBackend(make_url(url), write=True)

        assert converges(20, emptied) > 30
        monkeypatch.setattr(till_policy, "PART", 2)
        assert converges(0, emptied, WithTill) > 30


def _settles_before_it_journals(patch: pytest.MonkeyPatch) -> None:
    """What ended is forgotten with the process."""
    recover = World.recover

    def forgetful(self: World) -> None:
        self.journal, kept = [], self.journal
        backend = self.backend()
        backend.commit(lambda conn: leases.recover(conn, owner="p2", now_ms=NOON_MS + 40_000))
        backend.close()
        self.journal = kept
        backend = self.backend()
        backend.commit(self.check)
        recover(self)

    patch.setattr(World, "recover", forgetful)


def _totals_are_written_later(patch: pytest.MonkeyPatch) -> None:
    """With the next turn, as a cache of totals in the process would be."""
    write, recover = windows.Windows.write, World.recover
    late: list[windows.Windows] = []

    def later(self: windows.Windows, conn: Connection) -> None:
        for each in late:
            write(each, conn)
        late[:] = [self]

    def recovered(self: World) -> None:
        late.clear()
        recover(self)

    patch.setattr(windows.Windows, "write", later)
    patch.setattr(World, "recover", recovered)


def _lapsed_is_free(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        ledger._Page, "_lapse", lambda self, asked: self._void(asked.request_id, None) and "VOIDED"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "broken",
    (_settles_before_it_journals, _totals_are_written_later, _lapsed_is_free),
    ids=lambda broken: broken.__name__.strip("_"),
)
def test_a_book_that_is_broken_does_not_converge(
    broken: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    with pytest.raises(AssertionError):
        on_files(range(3))
