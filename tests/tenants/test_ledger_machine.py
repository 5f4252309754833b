"""The book under any interleaving of holds, settlements, voids, crashes, sweeps and lowered limits.

The model is plain Python: what each request really used, what it was promised, where it belongs.
After every step all balances are compared with it and rebuilt from rows.  The mutants at the end are
broken books that the machine must catch, since a harness that catches nothing proves nothing.
Source: MONEY.md §1 (invariants 1–6, 9, 10, 12, 14, 15, and the model check).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
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
from sqlalchemy import Connection, case, func, select
from sqlalchemy.exc import IntegrityError

from policies import budget as budget_policy
from policies import price as pricing
from policies.facts import Budget, Meters
from policies.price import charge, worst_case
from policies.verdict import Allow, Deny
from tenants import ledger, postings, reports, schema, store, windows
from tenants.book import BudgetAccount, Dimensions
from tenants.scopes import scope_id
from tests.tenants.house import _MEMORY, DIMS, NOON_MS, PRICE, ask, record

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
    state: str = HELD
    charge: int = 0
    first: Any = None


class Book(RuleBasedStateMachine):
    """Tight limits, few tenants, so that budgets are nearly always at their edge."""

    most: ClassVar[int] = 120_000

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=_MEMORY if _MEMORY.is_dir() else None))
        self.engine = store.engine(self.folder / "x.db", write=True)
        self.now_ms = NOON_MS
        self.owner = 1
        self.seen: dict[str, Seen] = {}
        self.limits = {"user": self.most, "project": self.most, "tenant": 2 * self.most}
        self.highest = dict(self.limits)
        with self.engine.begin() as conn:
            schema.prepare(conn)

    def teardown(self) -> None:
        self.now_ms += 10 * DAY_MS
        self.sweep()
        self.crash()
        self.balances_are_what_happened()
        with self.engine.begin() as conn:
            held = select(func.coalesce(func.sum(schema.budget_window.c.held), 0))
            assert conn.execute(held).scalar_one() == 0  # at rest nothing is held
        self.engine.dispose()
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

    @rule(
        user=st.sampled_from(("alice", "bob")),
        tenant=st.sampled_from(("acme", "acme", "globex")),
        prompt=st.integers(0, 100),
        out=st.integers(1, 90),
        explicit=st.booleans(),
        dispatched=st.booleans(),
        price=st.sampled_from((PRICE, ODD)),
    )
    def hold(
        self,
        user: str,
        tenant: str,
        prompt: int,
        out: int,
        explicit: bool,
        dispatched: bool,
        price: Any,
    ) -> None:
        dims = replace(DIMS, user=user, tenant=tenant)
        request_id = f"r{len(self.seen)}"
        wanted = ask(
            request_id,
            *self.budgets(dims),
            prompt=prompt,
            out=out,
            least=out if explicit else 16,
            dims=dims,
            price=price,
            dispatched=dispatched,
        )
        rooms = self._rooms(dims)
        with self.engine.begin() as conn:
            verdict = ledger.hold(conn, wanted, owner=str(self.owner), now_ms=self.now_ms)
            again = ledger.hold(conn, wanted, owner=str(self.owner), now_ms=self.now_ms)
        least = out if explicit else min(out, 16)
        must = worst_case(price, prompt, least) <= min(rooms.values())
        assert isinstance(verdict, Allow) is must  # neither false refusals nor false grants
        if isinstance(verdict, Deny):
            return
        assert again == verdict  # one id, one reservation
        got = verdict.value
        assert got.amount_nano_usd == worst_case(price, prompt, got.output_tokens)
        assert least <= got.output_tokens <= out
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
        )

    @precondition(lambda self: self.seen)
    @rule(data=st.data(), cached=st.integers(0, 100), output=st.integers(0, 90))
    def settle(self, data: st.DataObject, cached: int, output: int) -> None:
        """Twice with different numbers: the second hears the first."""
        request_id = data.draw(st.sampled_from(sorted(self.seen)))
        seen = self.seen[request_id]
        cached, output = min(cached, seen.prompt), min(output, seen.output)
        meters = Meters(seen.prompt - cached, cached - cached // 2, cached // 2, output)
        with self.engine.begin() as conn:
            said = record(request_id, seen.dims, device_ns=7)
            first = ledger.settle(conn, request_id, meters, said, now_ms=self.now_ms)
            again = ledger.settle(conn, request_id, Meters(output=1), None, now_ms=self.now_ms)
        assert first.charge == again.charge
        assert again.repeat
        if seen.state in {HELD, EXPIRED}:
            assert not first.repeat
            assert not first.alarm
            assert first.charge == charge(seen.price, meters)
            assert first.charge.total_nano_usd <= seen.amount
            seen.state, seen.first = SETTLED, first.charge
            seen.charge = first.charge.total_nano_usd
        elif seen.state == SETTLED:
            assert first.repeat
            assert first.charge == seen.first
        else:
            assert first.charge.total_nano_usd == 0

    @precondition(lambda self: self.seen)
    @rule(data=st.data())
    def void(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.seen)))
        seen = self.seen[request_id]
        with self.engine.begin() as conn:
            done = ledger.void(conn, request_id, None, now_ms=self.now_ms)
        assert done is (seen.state in {HELD, EXPIRED})
        if done:
            expired = seen.state == EXPIRED
            seen.state, seen.charge = (SETTLED if expired else VOIDED), 0
            seen.first = charge(seen.price, Meters())

    @precondition(lambda self: self.seen)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        ids = data.draw(st.lists(st.sampled_from(sorted(self.seen)), unique=True))
        with self.engine.begin() as conn:
            lost = ledger.renew(conn, ids, lease_s=60, now_ms=self.now_ms)
        assert set(lost) == {each for each in ids if self.seen[each].state != HELD}
        for each in set(ids) - set(lost):
            self.seen[each].lease_until_ms = self.now_ms + 60_000

    @rule(step_ms=st.sampled_from((1, 30_000, 60_000, 3_600_000, 40_000_000, DAY_MS)))
    def time_passes(self, step_ms: int) -> None:
        self.now_ms += step_ms

    @rule()
    def sweep(self) -> None:
        with self.engine.begin() as conn:
            swept = ledger.sweep(conn, now_ms=self.now_ms)
        lapsed = {
            each
            for each, seen in self.seen.items()
            if seen.state == HELD and seen.lease_until_ms <= self.now_ms
        }
        assert set(swept.expired) | set(swept.voided) == lapsed
        self._resolved(swept)

    @rule()
    def crash(self) -> None:
        """The process dies in the middle of a transaction; another takes over, twice."""
        with self.engine.connect() as conn:
            begun = conn.begin()
            lost = ask("lost", dims=DIMS)
            ledger.hold(conn, lost, owner=str(self.owner), now_ms=self.now_ms)
            begun.rollback()
        self.engine.dispose()
        self.engine = store.engine(self.folder / "x.db", write=True)
        self.owner += 1
        with self.engine.begin() as conn:
            swept = ledger.recover(conn, owner=str(self.owner), now_ms=self.now_ms)
            assert ledger.recover(conn, owner=str(self.owner), now_ms=self.now_ms) == ledger.Swept()
        assert set(swept.expired) | set(swept.voided) == {
            each for each, seen in self.seen.items() if seen.state == HELD
        }
        self._resolved(swept)

    @rule(scope=st.sampled_from(("user", "project", "tenant")), tenths=st.integers(1, 10))
    def limit_changes(self, scope: str, tenths: int) -> None:
        self.limits[scope] = self.most * tenths // 10

    @invariant()
    def balances_are_what_happened(self) -> None:
        with self.engine.begin() as conn:
            accounts = {
                account
                for tenant in ("acme", "globex")
                for user in ("alice", "bob")
                for account in self.budgets(replace(DIMS, user=user, tenant=tenant))
            }
            for account in accounts:
                self._check_account(conn, account)
            self._check_ledger(conn)
            self._check_reports(conn)

    def _resolved(self, swept: ledger.Swept) -> None:
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
            if scope_id(account.scope, seen.dims) == account.id
            and begin <= seen.at_ms
            and (end is None or seen.at_ms < end)
        ]

    def _truth(self, account: BudgetAccount) -> tuple[int, int]:
        mine = self._mine(account)
        held = sum(seen.amount for seen in mine if seen.state == HELD)
        return sum(seen.charge for seen in mine), held

    def _rooms(self, dims: Dimensions) -> dict[str, int]:
        return {
            account.scope: max(0, self.limits[account.scope] - sum(self._truth(account)))
            for account in self.budgets(dims)
        }

    def _check_account(self, conn: Connection, account: BudgetAccount) -> None:
        state = windows.peek(conn, account, self.now_ms // 1000).account
        assert (state.spent_nano_usd, state.held_nano_usd) == self._truth(account)
        mine = self._mine(account)
        bound = max([seen.budgets[account.scope] for seen in mine], default=0)
        assert state.spent_nano_usd + state.held_nano_usd <= bound

    def _check_ledger(self, conn: Connection) -> None:
        table = schema.ledger_entry
        for name, expected in (
            ("held", sum(seen.amount for seen in self.seen.values() if seen.state == HELD)),
            ("spend", sum(seen.charge for seen in self.seen.values())),
        ):
            signed = case((table.c.credit == name, table.c.amount), else_=0) - case(
                (table.c.debit == name, table.c.amount), else_=0
            )
            total = conn.execute(select(func.coalesce(func.sum(signed), 0))).scalar_one()
            assert total == expected, name

    def _check_reports(self, conn: Connection) -> None:
        every = {"from_ms": 0, "to_ms": 2**60, "tenant": None}
        spent = reports.spend(conn, **every)  # type: ignore[arg-type]
        for by in (("tenant",), ("project", "user", "key", "model")):
            rows = reports.usage_rows(conn, by, **every)  # type: ignore[arg-type]
            assert sum(row.nano_usd for row in rows) == spent


def check(examples: int, steps: int, *, shrink: bool = True) -> None:
    run_state_machine_as_test(
        Book,
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


def _sweep_releases_for_free(patch: pytest.MonkeyPatch) -> None:
    def expire(conn: Connection, row: Any, now_ms: int) -> None:
        ledger._leave(conn, row, EXPIRED, 0, now_ms)
        windows.move(conn, row["request_id"], held=-row["amount"], spent=0)

    patch.setattr(ledger, "_expire", expire)


def _no_settle_state_guard(patch: pytest.MonkeyPatch) -> None:
    find = ledger._find

    def always_held(conn: Connection, request_id: str) -> Any:
        row = find(conn, request_id)
        return row and dict(row) | {"state": HELD}

    patch.setattr(ledger, "_find", always_held)
    patch.setattr(ledger, "_leave", lambda *_: None)


def _late_settle_is_dropped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ledger, "_correct", lambda *_: None)


def _settles_into_the_window_of_now(patch: pytest.MonkeyPatch) -> None:
    def newest(conn: Connection, request_id: str, *, held: int, spent: int) -> None:
        table = schema.budget_window
        latest = select(func.max(table.c.start_s)).scalar_subquery()
        conn.execute(
            table.update()
            .where(table.c.start_s == latest)
            .values(held=table.c.held + held, spent=table.c.spent + spent)
        )

    patch.setattr(windows, "move", newest)


def _holds_on_the_first_ancestor_only(patch: pytest.MonkeyPatch) -> None:
    enter = windows.enter
    patch.setattr(
        windows, "enter", lambda conn, rid, opened, amount: enter(conn, rid, opened[:1], amount)
    )


def _guard_forgets_what_is_held(patch: pytest.MonkeyPatch) -> None:
    free = property(lambda self: max(0, self.limit_nano_usd - self.spent_nano_usd))
    patch.setattr(budget_policy.Account, "room_nano_usd", free)
    enter = windows.enter

    def unguarded(conn: Connection, rid: str, opened: Any, amount: int) -> None:
        loose = [
            replace(
                each, budget=replace(each.budget, budget=replace(each.budget.budget, hard=False))
            )
            for each in opened
        ]
        enter(conn, rid, loose, amount)

    patch.setattr(windows, "enter", unguarded)


def _void_keeps_the_hold(patch: pytest.MonkeyPatch) -> None:
    move = windows.move

    def stingy(conn: Connection, request_id: str, *, held: int, spent: int) -> None:
        move(conn, request_id, held=held if spent else 0, spent=spent)

    patch.setattr(windows, "move", stingy)


def _reserves_too_little(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pricing, "worst_case_input", lambda price, prompt: prompt * price.input // 10**6)


def _recovery_forgets_the_dispatched(patch: pytest.MonkeyPatch) -> None:
    resolve = ledger._resolve
    patch.setattr(
        ledger,
        "_resolve",
        lambda conn, rows, now_ms: resolve(conn, [r for r in rows if not r["dispatched"]], now_ms),
    )


def _estimates_are_not_reversed(patch: pytest.MonkeyPatch) -> None:
    lines = postings.lines

    def keep(conn: Connection, row: Any, entry: str, of: Any, now_ms: int) -> None:
        if entry != postings.REVERSAL:
            lines(conn, row, entry, of, now_ms)

    patch.setattr(postings, "lines", keep)


MUTANTS: tuple[Callable[[pytest.MonkeyPatch], None], ...] = (
    _sweep_releases_for_free,
    _no_settle_state_guard,
    _late_settle_is_dropped,
    _settles_into_the_window_of_now,
    _holds_on_the_first_ancestor_only,
    _guard_forgets_what_is_held,
    _void_keeps_the_hold,
    _reserves_too_little,
    _recovery_forgets_the_dispatched,
    _estimates_are_not_reversed,
)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__.strip("_"))
def test_a_broken_book_is_caught(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, IntegrityError)):
        check(60, 25, shrink=False)
