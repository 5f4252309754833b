"""Tills under any interleaving: draw, journal, execute, settle, each late, repeated or lost; a gateway that
dies, a till that is wiped or put back to any recent state, leases that lapse, limits, windows and modes that
change.

The model is plain Python.  Every verdict is the strict one, to the token; nothing that is set aside is beyond a
limit; what ran never cost more; and a till that nobody meddled with never gives what is not set aside.
Source: MONEY.md §1 (invariants 1–4, 10, 12 and the model check, whose mutants escaped until limits were tight
and any recent snapshot could be restored).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Coroutine
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)
from sqlalchemy import select

from policies import till as till_policy
from policies.budget import Account, fit
from policies.facts import Budget, Meters
from policies.price import charge
from policies.verdict import Allow, Deny
from tenants import leases, ledger, schema, windows
from tenants.asks import Drawn, HoldAsk, SettleAsk, VoidAsk, Worded
from tenants.places import Place
from tenants.schema import versions
from tenants.scopes import BudgetAccount
from tenants.store.postgres import PostgresBackend
from tenants.store.sqlite import SqliteBackend
from tenants.till import DrawAsk, Dry, MemoryTills, Told
from tests.servers_postgres import needs_postgres
from tests.tenants.house import _MEMORY, NOON_MS, PRICE, Clock, ask
from tests.tenants.machines import emptied, hold_out, on_postgres

MOST = 20_000
DAY_MS = 86_400_000
PLACES = {"project": Place("project", '["acme","search"]'), "tenant": Place("tenant", "acme")}
WINDOWS = {"project": "total", "tenant": "calendar_day"}


def said(call: Coroutine[Any, Any, Any]) -> Any:
    """What tills in memory say without waiting."""
    try:
        call.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waited")


@dataclass
class Seen:
    """What the model knows of one request."""

    asked: HoldAsk
    drawn: DrawAsk | None
    at_ms: int = 0
    state: str = "asked"  # HELD, SETTLED, VOIDED, EXPIRED, refused, lost
    outstanding: dict[Place, tuple[int, int]] = field(default_factory=dict)  # epoch, amount
    verdict: Any = None
    amount: int = 0
    charge: int = 0
    used: Meters | None = None  # what ran, once it ran
    lease_until_ms: int = 0


class Tills(RuleBasedStateMachine):
    """Requests of a few tokens, and budgets for a handful of them."""

    dispatches_what_is_drawn: ClassVar[bool] = False  # a mutant's

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=_MEMORY if _MEMORY.is_dir() else None))
        self.clock = Clock(NOON_MS)
        self.backend = self.opened()
        self.backend.commit(versions.prepare)
        self.tills = MemoryTills(self.clock)
        self.snapshots: list[MemoryTills] = []
        self.dirty: set[int] = set()  # epochs that somebody meddled with
        self.seen: dict[str, Seen] = {}
        self.words: list[tuple[Told, ...]] = []
        self.returns: list[str] = []
        self.refusals: list[tuple[str, int, int]] = []  # as tills heard of them
        self.limits = dict.fromkeys(PLACES, MOST)
        self.highest: dict[tuple[str, str], int] = {}
        self.has_till = dict.fromkeys(PLACES, True)

    def opened(self) -> SqliteBackend | PostgresBackend:
        return SqliteBackend(self.folder / "x.db", write=True)

    def teardown(self) -> None:
        self.clock.ms += 10 * DAY_MS
        self.sweep()
        self.nothing_is_beyond_a_limit()
        assert not any(each.state == "HELD" for each in self.seen.values())
        self.backend.close()
        shutil.rmtree(self.folder)

    def of(self, *states: str) -> list[str]:
        return sorted(name for name, each in self.seen.items() if each.state in states)

    def budgets(self) -> tuple[BudgetAccount, ...]:
        return tuple(
            BudgetAccount(
                scope,
                place.account,
                Budget(self.limits[scope], WINDOWS[scope], till=self.has_till[scope]),
            )
            for scope, place in PLACES.items()
        )

    @rule(data=st.data(), count=st.integers(1, 4))
    def requests(self, data: st.DataObject, count: int) -> None:
        """As most are: drawn, journalled, told."""
        self.draw_some(data, count)
        asked = self.of("asked")[-count:]
        if asked:
            self._turn(asked)
        self.all_words_arrive()

    @rule(data=st.data(), count=st.integers(1, 5))
    def draw(self, data: st.DataObject, count: int) -> None:
        """And these are on their way."""
        self.draw_some(data, count)

    def draw_some(self, data: st.DataObject, count: int) -> None:
        for _ in range(count):
            out = data.draw(st.integers(1, 6))
            least = data.draw(st.sampled_from((out, 1)))
            name = f"r{len(self.seen):03}"
            asked = ask(name, *self.budgets(), prompt=data.draw(st.integers(0, 5)), out=out)
            asked = replace(asked, output_tokens_least=least)
            places = tuple(place for scope, place in PLACES.items() if self.has_till[scope])
            if not places or data.draw(st.integers(0, 9)) == 0:  # the till did not answer
                self.seen[name] = Seen(asked, None)
                continue
            of = DrawAsk(name, "acme", places, cost(asked, out), cost(asked, least))
            self.seen[name] = seen = Seen(asked, of)
            self._draw(name, seen)

    @precondition(lambda self: self.of("asked"))
    @rule(data=st.data())
    def draw_again(self, data: st.DataObject) -> None:
        """Nobody heard the first answer."""
        name = data.draw(st.sampled_from(self.of("asked")))
        if self.seen[name].drawn is not None:
            self._draw(name, self.seen[name])

    def _draw(self, name: str, seen: Seen) -> None:
        assert seen.drawn is not None
        found = said(self.tills.draw(seen.drawn))
        if isinstance(found, Dry):
            since_ms = self.clock.ms - self.tills.lives.dry_ms
            assert any(
                scope == found.place.scope
                and at_ms > since_ms
                and least <= seen.drawn.least_nano_usd
                for scope, at_ms, least in self.refusals
            )
            seen.state = "refused"
            return
        pairs = list(zip(seen.drawn.places, found, strict=True))
        seen.asked = replace(seen.asked, till=tuple(Drawn(*place, each) for place, each in pairs))
        seen.outstanding = {
            place: (each.epoch, each.drawn_nano_usd) for place, each in pairs if each.drawn_nano_usd
        }
        if self.dispatches_what_is_drawn and len(seen.outstanding) == len(pairs) > 0:
            seen.used = Meters(input=seen.asked.prompt_tokens, output=seen.asked.output_tokens)
            seen.at_ms = self.clock.ms
            seen.amount = seen.drawn.nano_usd

    @precondition(lambda self: self.of("asked"))
    @rule(data=st.data(), dies=st.sampled_from(("no", "no", "no", "before", "after")))
    def journal(self, data: st.DataObject, dies: str) -> None:
        """One turn, some of it twice.  A gateway that dies takes its draws, or its answers, with it."""
        names = data.draw(
            st.lists(st.sampled_from(self.of("asked")), unique=True, min_size=1, max_size=6)
        )
        if dies == "before":
            for name in names:
                self.seen[name].state = "lost"
            return
        again = data.draw(st.sampled_from((None, *range(len(names)))))
        self._turn(names if again is None else [*names, names[again]], heard=dies == "no")

    def _turn(self, names: list[str], *, heard: bool = True) -> None:
        asks = [self.seen[name].asked for name in names]
        answers = self.backend.commit(
            lambda conn: ledger.turn(conn, asks, owner="p1", now_ms=self.clock.ms)
        )
        for asked, answer in zip(asks, answers, strict=True):
            self._judge(self.seen[asked.request_id], answer, heard=heard)

    def _judge(self, seen: Seen, answer: Any, *, heard: bool) -> None:
        verdict = answer.verdict if isinstance(answer, Worded) else answer
        if seen.state != "asked" and isinstance(seen.verdict, Allow):
            assert verdict == seen.verdict  # one id, one reservation
            return
        assert isinstance(answer, Worded) is bool(seen.asked.till)
        expected = self._strict(seen.asked)
        if isinstance(expected, Deny):
            assert verdict == expected, "a false grant"
            seen.state = "refused"
            if heard and seen.drawn is not None:
                self.returns.append(seen.asked.request_id)
        else:
            assert isinstance(verdict, Allow), "a false refusal"
            got, may = verdict.value, expected.value
            assert (got.output_tokens, got.amount_nano_usd, got.limited_by) == (
                may.output_tokens, may.amount_nano_usd, may.limited_by,
            )  # fmt: skip
            seen.state, seen.at_ms, seen.amount = "HELD", self.clock.ms, got.amount_nano_usd
            seen.lease_until_ms = self.clock.ms + 60_000
            seen.outstanding = {}
            if self.dispatches_what_is_drawn and seen.used is not None:
                heard = False
            if heard:
                seen.used = Meters(output=0)  # it may run from now on
            for budget in seen.asked.budgets:
                key = budget.scope, window_of(budget.scope, seen.at_ms)
                limit = budget.budget.limit_nano_usd
                self.highest[key] = max(self.highest.get(key, 0), limit)
        seen.verdict = verdict
        if heard and isinstance(answer, Worded) and answer.words:
            refused = cost(seen.asked, seen.asked.output_tokens_least)
            self.words.append(
                tuple(
                    Told(
                        Place(word.scope, word.account),
                        *(word.epoch, word.since, word.issued),
                        refused if word.spent else 0,
                    )
                    for word in answer.words
                )
            )

    @precondition(lambda self: self.of("HELD", "EXPIRED"))
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        """What ran is all that was reserved, some, or nothing; told twice."""
        ran = [name for name in self.of("HELD", "EXPIRED") if self.seen[name].used is not None]
        if not ran:
            return
        seen = self.seen[data.draw(st.sampled_from(ran))]
        hold = seen.verdict.value
        output = data.draw(st.sampled_from((hold.output_tokens, 0)) | st.integers(0, 6))
        meters = Meters(seen.asked.prompt_tokens, output=min(output, hold.output_tokens))
        end = SettleAsk(seen.asked.request_id, meters)
        first, again = self.backend.commit(
            lambda conn: ledger.turn(conn, [end, end], owner="p1", now_ms=self.clock.ms)
        )
        assert first.charge == again.charge == charge(PRICE, meters)
        assert not first.alarm
        seen.state, seen.used, seen.charge = "SETTLED", meters, first.charge.total_nano_usd

    @precondition(lambda self: self.of("HELD"))
    @rule(data=st.data())
    def void(self, data: st.DataObject) -> None:
        seen = self.seen[data.draw(st.sampled_from(self.of("HELD")))]
        end = VoidAsk(seen.asked.request_id)
        done = self.backend.commit(
            lambda conn: ledger.turn(conn, [end, end], owner="p1", now_ms=self.clock.ms)
        )
        assert done == [True, False]
        seen.state, seen.used = "VOIDED", None

    @rule()
    def sweep(self) -> None:
        swept = self.backend.commit(lambda conn: leases.sweep(conn, now_ms=self.clock.ms))
        for name in swept.expired:
            self.seen[name].state, self.seen[name].charge = "EXPIRED", self.seen[name].amount
        lapsed = [
            name for name in self.of("HELD") if self.seen[name].lease_until_ms <= self.clock.ms
        ]
        assert lapsed == []

    def _arrives(self, told: tuple[Told, ...]) -> None:
        said(self.tills.fill("acme", told))
        for each in told:
            if each.refused_nano_usd:
                self.refusals.append((each.place.scope, self.clock.ms, each.refused_nano_usd))

    @precondition(lambda self: self.words)
    @rule(data=st.data(), keep=st.booleans())
    def word_arrives(self, data: st.DataObject, keep: bool) -> None:
        """In whatever order, and perhaps again."""
        told = data.draw(st.sampled_from(self.words))
        self._arrives(told)
        if not keep:
            self.words.remove(told)

    def all_words_arrive(self) -> None:
        for told in self.words:
            self._arrives(told)
        self.words = self.words[-3:]  # to be repeated later

    @precondition(lambda self: self.returns)
    @rule(data=st.data(), keep=st.booleans())
    def return_arrives(self, data: st.DataObject, keep: bool) -> None:
        name = data.draw(st.sampled_from(self.returns))
        seen = self.seen[name]
        assert seen.drawn is not None
        said(self.tills.give_back(seen.drawn))
        seen.outstanding = {}
        if not keep:
            self.returns.remove(name)

    @rule()
    def snapshot(self) -> None:
        self.snapshots = [*self.snapshots[-4:], deepcopy(self._kept())]

    @precondition(lambda self: self.snapshots)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        self._meddle()
        kept = deepcopy(data.draw(st.sampled_from(self.snapshots)))
        self.tills.tills, self.tills.marks, self.tills.dry = kept.tills, kept.marks, kept.dry

    def _wipe(self) -> None:
        self._meddle()
        for table in (self.tills.tills, self.tills.marks, self.tills.dry):
            table.clear()

    @rule(
        kind=st.sampled_from(("wipe", "rows", "limit", "mode", "day")),
        scope=st.sampled_from(sorted(PLACES)),
        tenths=st.integers(4, 10),
    )
    def trouble(self, kind: str, scope: str, tenths: int) -> None:
        match kind:
            case "wipe":
                self._wipe()
            case "rows":
                self._rows_are_lost()
            case "limit":
                self.limits[scope] = MOST * tenths // 10
            case "mode":
                self.has_till[scope] = not self.has_till[scope]
            case _:
                self._meddle()  # tills have gone, and a word would be a day late
                self.clock.ms += DAY_MS

    @rule(step_ms=st.sampled_from((1, 400, 1_000, 1_000, 60_000)))
    def time_passes(self, step_ms: int) -> None:
        self.clock.ms += step_ms

    def _rows_are_lost(self) -> None:
        """They are counted anew, with nothing set aside."""
        self.backend.commit(lambda conn: conn.execute(schema.budget_window.delete()))

    def _kept(self) -> MemoryTills:
        kept = self.tills
        return MemoryTills(int, kept.lives, kept.tills, kept.marks, kept.dry)

    def _meddle(self) -> None:
        self.dirty.update(each.epoch for each in self._rows().values())
        self.dirty.update(each.epoch for each in self.tills.tills.values())

    def _rows(self) -> dict[tuple[str, str], Any]:
        table = schema.budget_window
        return self.backend.commit(
            lambda conn: {(row.scope, row.window_id): row for row in conn.execute(select(table))}
        )

    def _truth(self, scope: str, window: str) -> tuple[int, int]:
        mine = [
            each
            for each in self.seen.values()
            if each.at_ms and window_of(scope, each.at_ms) == window
        ]
        spent = sum(each.charge for each in mine)
        return spent, sum(each.amount for each in mine if each.state == "HELD")

    def _strict(self, asked: HoldAsk) -> Any:
        """What would be decided if there were no tills."""
        accounts = []
        for budget in sorted(asked.budgets, key=lambda each: each.scope == "tenant"):
            window = window_of(budget.scope, self.clock.ms)
            limit = budget.budget.limit_nano_usd
            truth = self._truth(budget.scope, window)
            accounts.append(Account(budget.scope, limit, *truth, id=budget.id))
        return fit(
            accounts,
            asked.price,
            *(asked.prompt_tokens, asked.output_tokens, asked.output_tokens_least, asked.n),
        )

    @invariant()
    def nothing_is_beyond_a_limit(self) -> None:
        for (scope, window), row in self._rows().items():
            assert (row.spent, row.held) == self._truth(scope, window)
            bound = self.highest.get((scope, window), 0)
            assert row.spent + row.held <= bound
            if row.floated:
                assert row.spent + row.held + row.floated <= row.limit_nano_usd + row.topped_up
            self._till_gives_what_is_there(row)

    def _till_gives_what_is_there(self, row: Any) -> None:
        place = PLACES[row.scope]
        till = self.tills._till(("acme", place))
        if till.epoch != row.epoch or till.epoch in self.dirty:
            return
        drawn = [
            amount
            for each in self.seen.values()
            for at, (epoch, amount) in each.outstanding.items()
            if at == place and epoch == row.epoch and each.state != "lost"
        ]
        assert till.left + sum(drawn) <= row.floated

    @invariant()
    def what_ran_is_within_the_limit(self) -> None:
        """The ground truth, whatever any book says."""
        for (scope, window), bound in self.highest.items():
            ran = sum(
                each.amount if each.state in {"asked", "lost", "HELD", "EXPIRED"} else each.charge
                for each in self.seen.values()
                if each.used is not None and window_of(scope, each.at_ms) == window
            )
            assert ran <= bound


@cache
def window_of(scope: str, at_ms: int) -> str:
    account = BudgetAccount(scope, PLACES[scope].account, Budget(1, WINDOWS[scope]))
    return windows.span_at(account, at_ms // 1000).id


def cost(asked: HoldAsk, output_tokens: int) -> int:
    meters = Meters(input=asked.prompt_tokens, output=output_tokens)
    return charge(PRICE, meters).total_nano_usd


class OnPostgres(Tills):
    def opened(self) -> PostgresBackend:
        return on_postgres("tills")

    def teardown(self) -> None:
        super().teardown()
        emptied(self.opened())


def check(examples: int, steps: int, *, shrink: bool = True, machine: type[Tills] = Tills) -> None:
    """With fills of a third of a limit, so that tills matter for the few requests that fit."""
    with patch.object(till_policy, "PART", 3):
        hold_out(machine, examples, steps, shrink=shrink)


def test_tills_hold_briefly() -> None:
    check(2, 10)


@pytest.mark.slow
def test_tills_hold() -> None:
    check(25, 30)


@pytest.mark.slow
@needs_postgres
def test_tills_hold_on_postgresql() -> None:
    check(8, 25, machine=OnPostgres)
