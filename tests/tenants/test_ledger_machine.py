"""The book under any interleaving of holds, settlements, voids, crashes, sweeps and lowered limits.

The model is plain Python: what each request really used, what it was promised, where it belongs.
After every step all balances are compared with it and rebuilt from rows.  `test_ledger_mutants` breaks it.
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
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)
from sqlalchemy import Connection, case, func, select

from policies.facts import Budget, Meters
from policies.price import charge, worst_case
from policies.tags import Tag
from policies.verdict import Allow, Deny
from tenants import leases, ledger, reports, schema, windows
from tenants.asks import Ask, SettleAsk, Settled, Swept, VoidAsk
from tenants.book import BudgetAccount, Dimensions
from tenants.schema import versions
from tenants.scopes import scope_id
from tenants.store.postgres import PostgresBackend
from tenants.store.sqlite import SqliteBackend
from tests.servers_postgres import needs_postgres
from tests.tenants.house import _MEMORY, DIMS, NOON_MS, PRICE, ask, record
from tests.tenants.machines import emptied, hold_out, on_postgres

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
        return on_postgres("machine")

    def teardown(self) -> None:
        super().teardown()
        emptied(self.opened())


def check(examples: int, steps: int, *, shrink: bool = True, machine: type[Book] = Book) -> None:
    hold_out(machine, examples, steps, shrink=shrink)


def test_the_book_holds_briefly() -> None:
    check(2, 10)


@pytest.mark.slow
def test_the_book_holds() -> None:
    check(40, 30)


@pytest.mark.slow
@needs_postgres
def test_the_book_holds_on_postgresql() -> None:
    check(15, 25, machine=OnPostgres)
