"""The book against itself: it agrees whatever happened, and each single thing that is wrong is named."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from policies.facts import Meters
from tenants.finance import Finance
from tenants.reports.facts import Slice
from tests.tenants.finance_kit import ODD, STORIES, SUB, Story, edit, house, ledger_sum, lived, rows
from tests.tenants.house import Clock, ask, folder, on_both, run

both = pytest.mark.usefixtures("on_both")
__all__ = ["on_both"]

EVER = Slice(from_ms=0, to_ms=2**60)


@pytest.mark.slow
@given(STORIES)
@settings(max_examples=10, deadline=None, derandomize=True)
def test_whatever_happens_it_agrees(stories: list[Story]) -> None:
    async def test() -> None:
        clock = Clock()
        with folder() as where, house(clock, where / "x.db") as (book, finance):
            await lived(book, clock, stories)
            done = await finance.reconcile(EVER)
            assert (done.requests_agree, done.ledger_agrees) == (True, True), done.found.named
            assert done.count.admitted == len(stories)
            held = await rows(finance, "SELECT * FROM reservation WHERE state = 'HELD'")
            assert done.count.open == len(held)
            assert done.ledger_nano_usd == await ledger_sum(finance)

    run(test)


WRONG = (
    ("UPDATE usage_event SET tokens = tokens + 1 WHERE meter = 'output' AND entry = 'usage'", "at"),
    ("UPDATE usage_event SET nano_usd = nano_usd + 1 WHERE request_id = 'r0'", "come to"),
    ("UPDATE usage_event SET unit_price = unit_price + 1 WHERE request_id = 'r0'", "listed at"),
    ("UPDATE usage_event SET price_id = 'gone' WHERE request_id = 'r0'", "no price gone"),
    ("UPDATE usage_event SET nano_usd = nano_usd - 2 WHERE entry = 'estimate'", "a million is not"),
    ("UPDATE usage_event SET unit_price = 1 WHERE entry = 'reversal'", "no listed price"),
    ("UPDATE usage_event SET meter = 'thought' WHERE meter = 'output'", "no such meter"),
    ("DELETE FROM usage_event WHERE request_id = 'r0'", "has no lines"),
    ("DELETE FROM ledger_entry WHERE request_id = 'r0'", "its ledger entries to 0"),
    (
        "UPDATE ledger_entry SET amount = amount + 1 WHERE request_id = 'r0'",
        "its ledger entries to",
    ),
    ("UPDATE ledger_entry SET debit = 'spend', credit = 'available' WHERE kind = 'settle'", "to -"),
    ("UPDATE reservation SET charge = charge + 1 WHERE request_id = 'r0'", "charged"),
    (
        "UPDATE usage_event SET effective_ms = effective_ms + 86400000 WHERE request_id = 'r0'",
        "lines",
    ),
)


@both
@pytest.mark.parametrize(("broken", "says"), WRONG)
def test_each_thing_that_is_wrong_is_named(
    monkeypatch: pytest.MonkeyPatch, broken: str, says: str
) -> None:
    monkeypatch.setattr("tenants.reconcile.PAGE", 2)

    async def test() -> None:
        clock = Clock()
        with folder() as where, house(clock, where / "x.db") as (book, finance):
            await some(book, clock)
            done = await finance.reconcile(EVER)
            assert (done.requests_agree, done.ledger_agrees) == (True, True), done.found.named
            assert done.found.lines == 3 + 2 + 2 + 1 + 2
            await edit(finance, broken)
            done = await finance.reconcile(EVER)
            assert not (done.requests_agree and done.ledger_agrees)
            assert any(says in words for words in done.found.named), done.found.named

    run(test)


async def some(book: Any, clock: Clock) -> None:
    """One settled, one estimated, one corrected, one voided, one open; at prices that round."""
    for number in range(5):
        await book.hold(ask(f"r{number}", price=(ODD, SUB)[number % 2]))
    await book.settle("r0", Meters(3, 4, 0, 6))
    await book.void("r3")
    await book.renew(["r4"], lease_s=600)
    clock.ms += 61_000
    await book.sweep()
    await book.settle("r2", Meters(input=5))


def test_what_was_given_by_hand_is_told_apart() -> None:
    async def test() -> None:
        clock = Clock()
        with folder() as where, house(clock, where / "x.db") as (book, finance):
            await some(book, clock)
            before = await finance.reconcile(EVER)
            await edit(
                finance,
                "INSERT INTO ledger_entry VALUES ('x', 'r0', 'acme', 'refund', 'spend', 'available', 5,"
                f" {clock.ms}, {clock.ms})",
            )
            done = await finance.reconcile(EVER)
            assert done.ledger_agrees
            assert done.by_hand_nano_usd == -5
            assert done.ledger_nano_usd == before.ledger_nano_usd - 5

    run(test)


def test_nothing_agrees_with_nothing() -> None:
    async def test(finance: Finance) -> None:
        done = await finance.reconcile(EVER)
        assert done.requests_agree
        assert done.ledger_agrees
        assert done.found.lines == 0

    async def alone() -> None:
        with folder() as where, house(Clock(), where / "x.db") as (_, finance):
            await test(finance)

    run(alone)
