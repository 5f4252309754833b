"""The book under any interleaving of holds, settlements, voids, crashes, sweeps and lowered limits.

The model is plain Python: what each request really used, what it was promised, where it belongs.
After every step all balances are compared with it and rebuilt from rows.  The mutants at the end are
broken books that the machine must catch, since a harness that catches nothing proves nothing.
Source: MONEY.md §1 (invariants 1–6, 9, 10, 12, 14, 15, and the model check).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import Connection, case, func, make_url, select, text
from sqlalchemy.exc import IntegrityError

from policies import budget as budget_policy
from policies import price as pricing
from policies.facts import Budget, Meters
from policies.price import charge, worst_case
from policies.tags import Tag
from policies.verdict import Allow, Deny
from tenants import leases, ledger, postings, reports, schema, windows
from tenants.asks import Ask, SettleAsk, Settled, Swept, VoidAsk
from tenants.book import BudgetAccount, Dimensions
from tenants.schema import versions
from tenants.scopes import scope_id
from tenants.store.postgres import PostgresBackend
from tenants.store.sqlite import SqliteBackend
from tests.servers_postgres import cluster, needs_postgres
from tests.tenants.house import _MEMORY, DIMS, NOON_MS, PRICE, ask, record

Judge = Callable[[Any], None]

HELD, SETTLED, VOIDED, EXPIRED = ledger.HELD, ledger.SETTLED, ledger.VOIDED, ledger.EXPIRED
ODD = replace(PRICE, id="odd", input=333_333, cached_input=500_000, cache_write=1, output=999_999)
DAY_MS = 86_400_000


@dataclass
class Seen:
    """What the model knows of one request."""

    dims: Dimensions
    price: Any
    at_ms: int
    lease_until_ms: int
    prompt: int
    output: int
    amount: int
    owner: int
    dispatched: bool
    budgets: dict[str, int]
    tags: tuple[Tag, ...] = ()
    state: str = HELD
    charge: int = 0
    first: Any = None


class Crash(Exception):
    """The process dies in the middle of a transaction."""


class Book(RuleBasedStateMachine):
    """Tight limits, few tenants, so that budgets are nearly always at their edge."""

    most: ClassVar[int] = 60_000

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=_MEMORY if _MEMORY.is_dir() else None))
        self.backend = self.opened()
        self.now_ms = NOON_MS
        self.owner = 1
        self.seen: dict[str, Seen] = {}
        self.count = 0
        self.limits = {"user": self.most, "project": self.most, "tenant": 2 * self.most}
        self.highest = dict(self.limits)
        self.backend.commit(versions.prepare)

    def opened(self) -> SqliteBackend | PostgresBackend:
        return SqliteBackend(self.folder / "x.db", write=True)

    def teardown(self) -> None:
        self.now_ms += 10 * DAY_MS
        self.sweep()
        self.crash()
        self.balances_are_what_happened()
        held = select(func.coalesce(func.sum(schema.budget_window.c.held), 0))
        # At rest nothing is held.
        assert self.backend.commit(lambda conn: conn.execute(held).scalar_one()) == 0
        self.backend.close()
        shutil.rmtree(self.folder)

    def budgets(self, dims: Dimensions) -> tuple[BudgetAccount, ...]:
        kinds = {"user": "total", "project": "rolling_24h", "tenant": "calendar_day"}
        # Handed over widest first: the book must order them itself.
        return tuple(
            BudgetAccount(
                scope,
                str(scope_id(scope, dims)),
                Budget(self.limits[scope], kinds[scope], "Asia/Kathmandu"),
            )
            for scope in ("tenant", "project", "user")
        )

    def tags(self, data: st.DataObject) -> tuple[Tag, ...]:
        """What a request is filed under; nothing here."""
        return ()

    def tag_budgets(
        self, tenant: str, tags: tuple[Tag, ...] | None = None
    ) -> tuple[BudgetAccount, ...]:
        """Of these tags, or all that there are."""
        return ()

    def is_under(self, seen: Seen, account: BudgetAccount) -> bool:
        return scope_id(account.scope, seen.dims) == account.id

    def turn(self, *told: tuple[Ask, Judge]) -> None:
        """All at one moment, and each judged as if they had come one after the other."""
        answers = self.backend.commit(
            lambda conn: ledger.turn(
                conn, [each for each, _ in told], owner=str(self.owner), now_ms=self.now_ms
            )
        )
        for (_, judge), answer in zip(told, answers, strict=True):
            judge(answer)

    def holding(self, data: st.DataObject) -> tuple[Ask, Judge]:
        request_id = f"r{self.count}"
        self.count += 1
        dims = replace(
            DIMS,
            user=data.draw(st.sampled_from(("alice", "bob"))),
            tenant=data.draw(st.sampled_from(("acme", "acme", "globex"))),
        )
        prompt, out = data.draw(st.integers(0, 100)), data.draw(st.integers(1, 90))
        explicit, dispatched = data.draw(st.booleans()), data.draw(st.booleans())
        price = data.draw(st.sampled_from((PRICE, ODD)))
        least = out if explicit else 16
        tags = self.tags(data)
        budgets = (*self.budgets(dims), *self.tag_budgets(dims.tenant, tags))
        wanted = ask(
            request_id,
            *budgets,
            prompt=prompt,
            out=out,
            least=least,
            dims=dims,
            price=price,
            dispatched=dispatched,
            tags=tags,
        )

        def judge(verdict: Any) -> None:
            room = min(self._rooms(budgets).values())
            must = worst_case(price, prompt, min(least, out)) <= room
            assert isinstance(verdict, Allow) is must  # neither false refusals nor false grants
            if isinstance(verdict, Deny):
                return
            got = verdict.value
            assert got.amount_nano_usd == worst_case(price, prompt, got.output_tokens)
            assert min(least, out) <= got.output_tokens <= out
            self.seen[request_id] = Seen(
                dims,
                price,
                self.now_ms,
                self.now_ms + 60_000,
                prompt,
                got.output_tokens,
                got.amount_nano_usd,
                self.owner,
                dispatched,
                dict(self.limits),
                tags,
            )

        return wanted, judge

    def settling(self, data: st.DataObject, request_id: str) -> tuple[Ask, Judge]:
        seen = self.seen[request_id]
        ends = st.sampled_from((0, 100))  # nothing, or all that was reserved
        cached = data.draw(ends | st.integers(0, 100))
        output = data.draw(ends | st.integers(0, 90))
        cached, output = min(cached, seen.prompt), min(output, seen.output)
        meters = Meters(seen.prompt - cached, cached - cached // 2, cached // 2, output)

        def judge(settled: Settled) -> None:
            before, seen.state = seen.state, seen.state if seen.state == VOIDED else SETTLED
            if before in {HELD, EXPIRED}:
                assert settled == Settled(charge(seen.price, meters))
                assert settled.charge.total_nano_usd <= seen.amount
                seen.first, seen.charge = settled.charge, settled.charge.total_nano_usd
            else:
                assert settled.repeat
                assert settled.charge == (seen.first or replace(settled.charge, lines=()))

        return SettleAsk(request_id, meters, record(request_id, seen.dims, device_ns=7)), judge

    def voiding(self, request_id: str) -> tuple[Ask, Judge]:
        seen = self.seen[request_id]

        def judge(done: bool) -> None:
            assert done is (seen.state in {HELD, EXPIRED})
            if done:
                expired = seen.state == EXPIRED
                seen.state, seen.charge = (SETTLED if expired else VOIDED), 0
                seen.first = charge(seen.price, Meters())

        return VoidAsk(request_id), judge

    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        """Twice: one id, one reservation."""
        wanted, judge = self.holding(data)
        heard: list[Any] = []

        def same(answer: Any) -> None:
            assert answer == heard[0]

        self.turn((wanted, heard.append), (wanted, same))
        judge(heard[0])

    @precondition(lambda self: self.seen)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        """Twice with different numbers: the second hears the first."""
        request_id = data.draw(st.sampled_from(sorted(self.seen)))
        asked, judge = self.settling(data, request_id)
        heard: list[Settled] = []

        def same(answer: Settled) -> None:
            assert answer.repeat
            assert answer.charge == heard[0].charge

        self.turn((asked, heard.append), (SettleAsk(request_id, Meters(output=1)), same))
        judge(heard[0])

    @precondition(lambda self: self.seen)
    @rule(data=st.data())
    def void(self, data: st.DataObject) -> None:
        self.turn(self.voiding(data.draw(st.sampled_from(sorted(self.seen)))))

    @precondition(lambda self: self.seen)
    @rule(data=st.data())
    def many(self, data: st.DataObject) -> None:
        """What a busy moment brings, in one commit."""
        kinds = data.draw(st.lists(st.sampled_from("hhhsv"), min_size=2, max_size=8))
        ended = data.draw(st.permutations(sorted(self.seen)))
        told = []
        for kind in kinds:
            if kind == "h" or not ended:
                told.append(self.holding(data))
            elif kind == "s":
                told.append(self.settling(data, ended.pop()))
            else:
                told.append(self.voiding(ended.pop()))
        self.turn(*told)

    @precondition(lambda self: self.seen)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        ids = data.draw(st.lists(st.sampled_from(sorted(self.seen)), unique=True))
        lost = self.backend.commit(
            lambda conn: leases.renew(conn, ids, lease_s=60, now_ms=self.now_ms)
        )
        assert set(lost) == {each for each in ids if self.seen[each].state != HELD}
        for each in set(ids) - set(lost):
            self.seen[each].lease_until_ms = self.now_ms + 60_000

    @rule(step_ms=st.sampled_from((1, 30_000, 60_000, 3_600_000, 40_000_000, DAY_MS)))
    def time_passes(self, step_ms: int) -> None:
        self.now_ms += step_ms

    @rule()
    def sweep(self) -> None:
        swept = self.backend.commit(lambda conn: leases.sweep(conn, now_ms=self.now_ms))
        lapsed = {
            each
            for each, seen in self.seen.items()
            if seen.state == HELD and seen.lease_until_ms <= self.now_ms
        }
        assert set(swept.expired) | set(swept.voided) == lapsed
        self._resolved(swept)

    @rule()
    def crash(self) -> None:
        """Another takes over, twice."""

        def half(conn: Connection) -> None:
            ledger.turn(conn, [ask("lost")], owner=str(self.owner), now_ms=self.now_ms)
            raise Crash

        with pytest.raises(Crash):
            self.backend.commit(half)
        self.backend.close()
        self.backend = self.opened()
        self.owner += 1

        def recover(conn: Connection) -> Swept:
            return leases.recover(conn, owner=str(self.owner), now_ms=self.now_ms)

        swept = self.backend.commit(recover)
        assert self.backend.commit(recover) == Swept()
        assert set(swept.expired) | set(swept.voided) == {
            each for each, seen in self.seen.items() if seen.state == HELD
        }
        self._resolved(swept)

    @rule(scope=st.sampled_from(("user", "project", "tenant")), tenths=st.integers(1, 10))
    def limit_changes(self, scope: str, tenths: int) -> None:
        self.limits[scope] = self.most * tenths // 10

    @invariant()
    def balances_are_what_happened(self) -> None:
        accounts = {
            account
            for tenant in ("acme", "globex")
            for user in ("alice", "bob")
            for account in self.budgets(replace(DIMS, user=user, tenant=tenant))
        }
        accounts |= {each for tenant in ("acme", "globex") for each in self.tag_budgets(tenant)}

        def check(conn: Connection) -> None:
            for account in accounts:
                self._check_account(conn, account)
            self._check_ledger(conn)
            self._check_reports(conn)

        self.backend.commit(check)

    def _resolved(self, swept: Swept) -> None:
        for each in swept.expired:
            seen = self.seen[each]
            assert seen.dispatched
            seen.state, seen.charge = EXPIRED, seen.amount  # never for free
        for each in swept.voided:
            assert not self.seen[each].dispatched
            self.seen[each].state = VOIDED

    def _mine(self, account: BudgetAccount) -> list[Seen]:
        span = windows.span_at(account, self.now_ms // 1000)
        begin, end = span.since_s * 1000, span.end_s and span.end_s * 1000
        return [
            seen
            for seen in self.seen.values()
            if self.is_under(seen, account)
            and begin <= seen.at_ms
            and (end is None or seen.at_ms < end)
        ]

    def _truth(self, account: BudgetAccount) -> tuple[int, int]:
        mine = self._mine(account)
        held = sum(seen.amount for seen in mine if seen.state == HELD)
        return sum(seen.charge for seen in mine), held

    def _rooms(self, accounts: Iterable[BudgetAccount]) -> dict[str, int]:
        return {
            account.id: max(0, self.limits[account.scope] - sum(self._truth(account)))
            for account in accounts
        }

    def _check_account(self, conn: Connection, account: BudgetAccount) -> None:
        state = windows.peek(conn, account, self.now_ms // 1000).account
        assert (state.spent_nano_usd, state.held_nano_usd) == self._truth(account)
        mine = self._mine(account)
        bound = max([seen.budgets[account.scope] for seen in mine], default=0)
        assert state.spent_nano_usd + state.held_nano_usd <= bound

    def _check_ledger(self, conn: Connection) -> None:
        table = schema.ledger_entry
        signed = case((table.c.credit == "spend", table.c.amount), else_=0) - case(
            (table.c.debit == "spend", table.c.amount), else_=0
        )
        total = conn.execute(select(func.coalesce(func.sum(signed), 0))).scalar_one()
        assert total == sum(seen.charge for seen in self.seen.values())
        held = select(func.coalesce(func.sum(schema.reservation.c.amount), 0)).where(
            schema.reservation.c.state == HELD
        )
        assert conn.execute(held).scalar_one() == sum(
            seen.amount for seen in self.seen.values() if seen.state == HELD
        )

    def _check_reports(self, conn: Connection) -> None:
        every = {"from_ms": 0, "to_ms": 2**60, "tenant": None}
        spent = reports.spend(conn, **every)  # type: ignore[arg-type]
        for by in (("tenant",), ("project", "user", "key", "model")):
            rows = reports.usage_rows(conn, by, **every)  # type: ignore[arg-type]
            assert sum(row.nano_usd for row in rows) == spent


class OnPostgres(Book):
    """The same on a real PostgreSQL, whose tables are emptied between two examples."""

    def opened(self) -> PostgresBackend:
        server = cluster()
        if not server.sql("SELECT 1 FROM pg_database WHERE datname = 'machine'"):
            server.sql("CREATE DATABASE machine")
        return PostgresBackend(make_url(server.url("machine")), write=True)

    def teardown(self) -> None:
        super().teardown()
        backend = self.opened()
        emptied = set(schema.metadata.tables) - {schema.period_gate.name}  # whose one row stays
        names = ", ".join(f'"{each}"' for each in sorted(emptied))
        backend.commit(lambda conn: conn.execute(text(f"TRUNCATE {names}")))
        backend.close()


def check(examples: int, steps: int, *, shrink: bool = True, machine: type[Book] = Book) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            database=None,
            print_blob=False,
            report_multiple_bugs=False,
            phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_the_book_holds_briefly() -> None:
    check(2, 10)


@pytest.mark.slow
def test_the_book_holds() -> None:
    check(40, 30)


@pytest.mark.slow
@needs_postgres
def test_the_book_holds_on_postgresql() -> None:
    check(15, 25, machine=OnPostgres)


Page = ledger._Page


def _sweep_releases_for_free(patch: pytest.MonkeyPatch) -> None:
    def lapse(self: Any, asked: Any) -> str | None:
        row = self._rows[asked.request_id]
        if (
            row["state"] != HELD
            or (asked.until_ms or row["lease_until_ms"]) < row["lease_until_ms"]
        ):
            return None
        self._leave(row, EXPIRED, 0, held=-row["amount"], spent=0)
        return EXPIRED

    patch.setattr(Page, "_lapse", lapse)


def _no_settle_state_guard(patch: pytest.MonkeyPatch) -> None:
    settle = Page._settle

    def always_held(self: Any, request_id: str, *more: Any) -> Any:
        if request_id in self._rows:
            self._rows[request_id]["state"] = HELD
        return settle(self, request_id, *more)

    patch.setattr(Page, "_settle", always_held)


def _late_settle_is_dropped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Page, "_correct", lambda *_: None)


def _settles_into_the_window_of_now(patch: pytest.MonkeyPatch) -> None:
    move = windows.Windows.move

    def newest(self: Any, places: Any, at_s: int, *, held: int, spent: int) -> None:
        latest = max((r.start_s for rows in self._rows.values() for r in rows.values()), default=0)
        move(self, places, max(latest, at_s), held=held, spent=spent)

    patch.setattr(windows.Windows, "move", newest)


def _holds_on_the_first_ancestor_only(patch: pytest.MonkeyPatch) -> None:
    move = Page._move

    def narrow(self: Any, row: Any, *, held: int, spent: int = 0) -> None:
        alone = row | {"project_account": None, "tenant": None}
        move(self, alone, held=held, spent=spent)

    patch.setattr(Page, "_move", narrow)


def _guard_forgets_what_is_held(patch: pytest.MonkeyPatch) -> None:
    free = property(lambda self: max(0, self.limit_nano_usd - self.spent_nano_usd))
    patch.setattr(budget_policy.Account, "room_nano_usd", free)
    patch.setattr(windows.Windows, "admit", lambda *_: None)


def _a_group_is_decided_by_what_was_read(patch: pytest.MonkeyPatch) -> None:
    """Each sees the room that was there before all of them."""
    account = windows.Windows.account

    def stale(self: Any, budget: Any) -> Any:
        rows = self._rows[(budget.scope, budget.id)]
        read = [rows[slot.id].read for slot in self._counted_by(budget)]
        spent, held, _ = (sum(column) for column in zip(*read, strict=True))
        return replace(account(self, budget), spent_nano_usd=spent, held_nano_usd=held)

    patch.setattr(windows.Windows, "account", stale)
    patch.setattr(windows.Windows, "admit", lambda *_: None)


def _the_policy_lets_everything_through(patch: pytest.MonkeyPatch) -> None:
    """Then the guard in SQL must stop it."""
    fit = budget_policy.fit
    patch.setattr(
        ledger,
        "fit",
        lambda accounts, *more: fit([replace(each, hard=False) for each in accounts], *more),
    )


def _void_keeps_the_hold(patch: pytest.MonkeyPatch) -> None:
    leave = Page._leave

    def stingy(self: Any, row: Any, state: str, charge: int, *, held: int, spent: int) -> None:
        leave(self, row, state, charge, held=0 if state == VOIDED else held, spent=spent)

    patch.setattr(Page, "_leave", stingy)


def _reserves_too_little(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pricing, "worst_case_input", lambda price, prompt: prompt * price.input // 10**6)


def _recovery_forgets_the_dispatched(patch: pytest.MonkeyPatch) -> None:
    lapse = Page._lapse

    def forgetful(self: Any, asked: Any) -> str | None:
        return None if self._rows[asked.request_id]["dispatched"] else lapse(self, asked)

    patch.setattr(Page, "_lapse", forgetful)


def _estimates_are_not_reversed(patch: pytest.MonkeyPatch) -> None:
    lines = postings.Postings.lines

    def keep(self: Any, row: Any, entry: str, of: Any) -> None:
        if entry != postings.REVERSAL:
            lines(self, row, entry, of)

    patch.setattr(postings.Postings, "lines", keep)


MUTANTS: tuple[Callable[[pytest.MonkeyPatch], None], ...] = (
    _sweep_releases_for_free,
    _no_settle_state_guard,
    _late_settle_is_dropped,
    _settles_into_the_window_of_now,
    _holds_on_the_first_ancestor_only,
    _guard_forgets_what_is_held,
    _a_group_is_decided_by_what_was_read,
    _the_policy_lets_everything_through,
    _void_keeps_the_hold,
    _recovery_forgets_the_dispatched,
    _estimates_are_not_reversed,
)


def all_from_the_cache() -> None:
    """The dearest way to use what was reserved, where reading costs more than computing."""
    machine = Book()
    asked = ask("r1", *machine.budgets(DIMS), prompt=100, out=50, price=ODD)
    used = SettleAsk("r1", Meters(cached_input=100, output=50))
    try:
        held, settled = machine.backend.commit(
            lambda conn: ledger.turn(conn, [asked, used], owner="p1", now_ms=NOON_MS)
        )
        assert isinstance(held, Allow)
        assert not settled.alarm
        assert settled.charge == charge(ODD, used.meters)
    finally:
        machine.backend.close()
        shutil.rmtree(machine.folder)


def test_what_is_reserved_covers_the_dearest_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too seldom drawn to be left to the machine."""
    all_from_the_cache()
    _reserves_too_little(monkeypatch)
    with pytest.raises(AssertionError):
        all_from_the_cache()


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__.strip("_"))
def test_a_broken_book_is_caught(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, IntegrityError, ExceptionGroup)):
        check(60, 25, shrink=False)
