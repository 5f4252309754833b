"""Idempotency keys under any interleaving of gateways that claim, hold, settle, sleep through their leases, die and
come again, with the book beside them.

The model is plain Python: whose request did what by which key.  After every step no key has two requests within its
day of which both hold or have been billed (MONEY.md §1, invariant 14), nobody is told another's answer, and what
runs is remembered.  The mutants at the end are broken on purpose, since a harness that catches nothing proves nothing.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)
from sqlalchemy import Connection, select

from policies import idempotency as rules
from policies.facts import Meters
from policies.idempotency import Billed, Verdict
from policies.verdict import Allow
from tenants import idempotency_rows as rows
from tenants import leases, ledger, schema
from tenants.asks import Ask, SettleAsk, VoidAsk
from tenants.idempotency_rows import LEASE_S, TTL_S, Claim
from tenants.schema import versions
from tenants.store.sqlite import SqliteBackend
from tests.tenants.house import _MEMORY, NOON_MS, ask, folder
from tests.tenants.machines import hold_out

_RUNNING = select(schema.idempotency).where(schema.idempotency.c.state == "RUNNING")
KEYS, BODIES, GATEWAYS = ("k1", "k1", "k2"), (b"a", b"a", b"b"), ("g1", "g2")
WAITS_S = (1, 1, LEASE_S - 1, LEASE_S, LEASE_S, 3 * LEASE_S, TTL_S - LEASE_S)


@dataclass
class Run:
    """One request that was told to run.  `over`: its gateway has ended it, one way or another."""

    key: str
    body: bytes
    owner: str
    at_ms: int
    renewed_ms: int
    held: bool = False
    spent: bool = False
    over: bool = False


@cache
def empty() -> bytes:
    with folder() as where:
        backend = SqliteBackend(where / "x.db", write=True)
        backend.commit(versions.prepare)
        backend.close()
        return (where / "x.db").read_bytes()


class Keys(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=_MEMORY if _MEMORY.is_dir() else None))
        (self.folder / "x.db").write_bytes(empty())
        self.backend = SqliteBackend(self.folder / "x.db", write=True)
        self.now_ms = NOON_MS
        self.runs: dict[str, Run] = {}
        self.kept: dict[str, tuple[str, bytes, bytes]] = {}  # key, body and answer, by request
        self.count = 0

    def teardown(self) -> None:
        self.backend.close()
        shutil.rmtree(self.folder)

    def do(self, op: Callable[[Connection], Any]) -> Any:
        return self.backend.commit(op)

    def book(self, *asks: Ask) -> Any:
        def op(conn: Connection) -> Any:
            lost = rows.lost_claims(conn, asks)
            if any(each.request_id in lost for each in asks):
                return None
            return ledger.turn(conn, asks, owner="book", now_ms=self.now_ms)[0]

        return self.do(op)

    def going(self, data: st.DataObject, *, held: bool | None = None) -> tuple[str, Run]:
        return data.draw(st.sampled_from(self.open(held)))

    def open(self, held: bool | None = None) -> list[tuple[str, Run]]:
        return [
            (rid, run)
            for rid, run in self.runs.items()
            if not run.over and held in {None, run.held}
        ]

    @rule(key=st.sampled_from(KEYS), body=st.sampled_from(BODIES), owner=st.sampled_from(GATEWAYS))
    def come(self, key: str, body: bytes, owner: str) -> None:
        self.count += 1
        rid = f"r{self.count}"
        asked = Claim(key, body, "acme", rid, metered=True)
        found = self.do(lambda c: rows.claim(c, asked, owner=owner, now_ms=self.now_ms))
        if found.verdict is Verdict.RUN:
            for other in self.runs.values():
                alive = not other.over and self.now_ms < other.renewed_ms + LEASE_S * 1000
                assert not (other.key == key and alive), "it runs already"
            self.runs[rid] = Run(key, body, owner, self.now_ms, self.now_ms)
        elif found.verdict is Verdict.REPLAY:
            assert self.kept[found.request_id] == (key, body, found.sealed)

    @precondition(lambda self: self.open(held=False))
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        """Perhaps long after its lease has lapsed."""
        rid, run = self.going(data, held=False)
        verdict = self.book(replace(ask(rid), claim=run.key))
        if isinstance(verdict, Allow):
            run.held = True
        else:
            run.over = True

    @precondition(lambda self: self.open(held=True))
    @rule(data=st.data(), used=st.integers(0, 3))
    def end(self, data: st.DataObject, used: int) -> None:
        """Settled, billed or not, or voided; then its key is kept, closed or freed by what became of it."""
        rid, run = self.going(data, held=True)
        if used:
            settled = self.book(SettleAsk(rid, Meters(input=used, output=1)))
            run.spent = settled.charge.total_nano_usd > 0
        else:
            self.book(VoidAsk(rid))
        run.over = True
        if data.draw(st.booleans(), label="its gateway dies before it has said so"):
            return
        status = data.draw(st.sampled_from((200, 400, 429, 499)))
        work = rules.Work(status, whole=status != 499, spent=run.spent, fits=used < 3)
        became, sealed = rules.ending(work), rid.encode()
        if became is rules.Ending.KEEP and self.do(
            lambda c: rows.finish(c, run.key, rid, sealed, 1, None)
        ):
            self.kept[rid] = (run.key, run.body, sealed)
        elif became is rules.Ending.CLOSE:
            self.do(lambda c: rows.finish(c, run.key, rid, None, 0, "cut"))
        elif became is rules.Ending.FREE:
            self.do(lambda c: rows.free(c, run.key, rid))

    @precondition(lambda self: self.open())
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        _, run = self.going(data)
        run.over = True

    @rule(owner=st.sampled_from(GATEWAYS))
    def renew(self, owner: str) -> None:
        mine = [(rid, run) for rid, run in self.open() if run.owner == owner]
        held = [rid for rid, run in mine if run.held]

        def op(conn: Connection) -> set[str]:
            rows.renew(conn, [run.key for _, run in mine], owner=owner, now_ms=self.now_ms)
            leases.renew(conn, held, lease_s=LEASE_S, now_ms=self.now_ms)
            return {row.request_id for row in conn.execute(_RUNNING)}

        claimed = self.do(op)
        for rid, run in mine:
            if rid in claimed:
                run.renewed_ms = self.now_ms

    @rule(seconds=st.sampled_from(WAITS_S))
    def wait(self, seconds: int) -> None:
        self.now_ms += seconds * 1000

    @rule(most=st.integers(1, 3))
    def sweep(self, most: int) -> None:
        self.do(lambda c: rows.sweep(c, now_ms=self.now_ms, most=most))

    @rule()
    def sweep_book(self) -> None:
        self.do(lambda c: leases.sweep(c, now_ms=self.now_ms))

    @invariant()
    def one_key_has_one_reservation_and_what_runs_is_remembered(self) -> None:
        def op(conn: Connection) -> tuple[set[str], set[str]]:
            held = {
                row.request_id
                for row in conn.execute(select(schema.reservation))
                if row.state == "HELD" or row.charge
            }
            return held, {row.request_id for row in conn.execute(_RUNNING)}

        held, claimed = self.do(op)
        for one, other in combinations([self.runs[rid] for rid in held], 2):
            if one.key == other.key:
                assert abs(one.at_ms - other.at_ms) >= TTL_S * 1000
        for rid, run in self.runs.items():
            if not run.over and self.now_ms < run.renewed_ms + LEASE_S * 1000:
                assert rid in claimed


def check(examples: int, steps: int, *, shrink: bool = True) -> None:
    hold_out(Keys, examples, steps, shrink=shrink)


@pytest.mark.slow
def test_one_key_is_one_request_whatever_happens() -> None:
    check(100, 40)


@pytest.mark.long
def test_one_key_is_one_request_whatever_happens_for_long() -> None:
    check(3000, 60)


def _anybodys(conn: Connection, asks: Any) -> frozenset[str]:
    return frozenset()


def _unbilled(conn: Connection, row: Any) -> Billed:
    return Billed.NOTHING


def _unjudged(found: rules.Standing | None, *, room: bool = True) -> Verdict:
    if found is None or found.lapsed:
        return Verdict.RUN
    return rules.judge(found)


def _any_body(found: rules.Standing | None, *, room: bool = True) -> Verdict:
    return rules.judge(None if found is None else replace(found, same_body=True), room=room)


BROKEN = {
    "a hold asks for no claim": (rows, "lost_claims", _anybodys),
    "the book is not asked": (rows, "_billed", _unbilled),
    "whatever lapsed runs again": (rows, "judge", _unjudged),
    "any body is the same": (rows, "judge", _any_body),
}


@pytest.mark.long
@pytest.mark.parametrize("name", BROKEN)
def test_the_machine_catches_what_is_broken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, what, broken = BROKEN[name]
    monkeypatch.setattr(where, what, broken)
    with pytest.raises(AssertionError):
        check(1000, 50, shrink=False)
