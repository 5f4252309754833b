"""A closed month never changes: what is late is a correction in the month that is open."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from policies.facts import Meters
from policies.periods import CLOSING_MS, DAY_MS, Hurdle, State, month
from tenants.book import Book
from tenants.finance import CannotClose, Finance
from tenants.reports import Asked
from tenants.reports.facts import Slice
from tests.tenants.finance_kit import edit, house, rows
from tests.tenants.house import Clock, ask, folder, on_both, run

pytestmark = pytest.mark.usefixtures("on_both")
__all__ = ["on_both"]

OCTOBER, NOVEMBER = month("2026-10"), month("2026-11")
CLOSABLE = OCTOBER.end_ms + CLOSING_MS


async def billed(book: Book, clock: Clock, of: str, at_ms: int, tokens: int = 10) -> None:
    clock.ms = at_ms
    await book.hold(ask(of))
    clock.ms += 1
    await book.settle(of, Meters(input=tokens))


async def seen(finance: Finance, *by: str, **of: int) -> list[dict[str, Any]]:
    """The report as a clerk has printed it."""
    within: dict[str, Any] = {"from_ms": 0, "to_ms": 2**60} | of
    asked = Asked(by=by or ("user", "meter"), of=Slice(**within))
    return [
        {**row.group, "requests": row.requests, "nano": row.nano_usd, "input": row.input_tokens,
         "estimated": row.estimated, "device_ns": row.device_ns}
        async for row in finance.every(asked)
    ]  # fmt: skip


async def by_hand(finance: Finance) -> str:
    """The hash of October, from the file, as the README of this room says it is taken."""
    within = f"WHERE effective_ms >= {OCTOBER.start_ms} AND effective_ms < {OCTOBER.end_ms} "
    lines = ["lockgate-period-2", "2026-10"]
    order = "ORDER BY effective_ms, transfer_id"
    for row in await rows(finance, f"SELECT * FROM ledger_entry {within} {order}"):
        names = "effective_ms transfer_id request_id tenant kind debit credit amount at_ms"
        lines.append(
            json.dumps(["E", *(row[name] for name in names.split())], separators=(",", ":"))
        )
    order = "ORDER BY effective_ms, request_id, attempt, meter, entry"
    for row in await rows(finance, f"SELECT * FROM usage_event {within} {order}"):
        names = (
            "effective_ms request_id attempt meter entry tokens price_id unit_price nano_usd at_ms"
        )
        lines.append(
            json.dumps(["U", *(row[name] for name in names.split())], separators=(",", ":"))
        )
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


def test_a_closed_month_never_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hold that expired is corrected, and one that was open is settled, after October was closed."""
    monkeypatch.setattr("tenants.closing.PAGE", 3)

    async def test() -> None:
        clock = Clock()
        with folder() as where, house(clock, where / "x.db") as (book, finance):
            await billed(book, clock, "plain", OCTOBER.start_ms)
            clock.ms = OCTOBER.end_ms - 1
            await book.hold(ask("lost"))  # 100 × 200 + 50 × 600 = 50,000
            await book.hold(ask("long"))
            await book.renew(["long"], lease_s=30 * 86_400)
            clock.ms += 60_001
            assert (await book.sweep()).expired == ("lost",)
            clock.ms = CLOSABLE
            closed = await finance.close(OCTOBER, actor="idp:eve", reason="month")
            assert (closed.entries, closed.lines) == (2, 3)
            assert closed.spend_nano_usd == 10 * 200 + 50_000
            assert closed.sha256 == await by_hand(finance)
            within = {"from_ms": 0, "to_ms": OCTOBER.end_ms}
            before = [
                await seen(finance, *by, **within) for by in (("user",), ("meter",), ("day",))
            ]
            clock.ms += DAY_MS
            await book.settle("lost", Meters(input=100, output=1))  # 20,600
            await book.settle("long", Meters(input=1))  # 200
            after = [await seen(finance, *by, **within) for by in (("user",), ("meter",), ("day",))]
            assert before == after
            kept, now = await finance.verify(OCTOBER) or pytest.fail("it is closed")
            assert kept == closed
            assert (now.sha256, now.entries, now.lines) == (closed.sha256, 2, 3)
            (corrected,) = await seen(finance, "month", from_ms=OCTOBER.end_ms)
            assert corrected == {
                "month": NOVEMBER.start_ms,
                "requests": 1,
                "estimated": -1,
                "device_ns": 0,
                "nano": 200 + 20_600 - 50_000,
                "input": 1,
            }
            assert await book.spend(from_ms=0, to_ms=2**60) == 2000 + 200 + 20_600

    run(test)


def test_an_edit_of_a_closed_month_is_found() -> None:
    async def test() -> None:
        clock = Clock()
        with folder() as where, house(clock, where / "x.db") as (book, finance):
            await billed(book, clock, "r1", OCTOBER.start_ms)
            await billed(book, clock, "r2", OCTOBER.end_ms - 5)
            clock.ms = CLOSABLE
            await finance.close(OCTOBER, actor="a", reason="r")
            for broken in (
                "UPDATE usage_event SET tokens = tokens + 1 WHERE request_id = 'r1'",
                "UPDATE ledger_entry SET amount = amount + 1 WHERE transfer_id = 'r2/settle'",
                "UPDATE ledger_entry SET tenant = 'globex' WHERE request_id = 'r2'",
                "DELETE FROM usage_event WHERE request_id = 'r2'",
                f"UPDATE ledger_entry SET effective_ms = {OCTOBER.end_ms} WHERE amount > 1",
            ):
                await edit(finance, broken)
                kept, now = await finance.verify(OCTOBER) or pytest.fail("it is closed")
                assert kept.sha256 != now.sha256, broken

    run(test)


def test_months_close_in_order_and_48_hours_after_their_end() -> None:
    async def test() -> None:
        clock = Clock()
        with folder() as where, house(clock, where / "x.db") as (book, finance):
            september = month("2026-09")
            await billed(book, clock, "r1", september.start_ms)
            await billed(book, clock, "r2", OCTOBER.start_ms)

            async def refused(period: Any, why: Hurdle) -> CannotClose:
                with pytest.raises(CannotClose) as told:
                    await finance.close(period, actor="a", reason="r")
                assert told.value.why is why
                return told.value

            await refused(OCTOBER, Hurdle.RUNNING)
            clock.ms = CLOSABLE - 1
            await refused(OCTOBER, Hurdle.LATE_USAGE)
            states = {each.name: state for each, state, _ in await finance.periods()}
            assert states == {
                "2026-09": State.CLOSING,
                "2026-10": State.CLOSING,
                "2026-11": State.OPEN,
            }
            clock.ms = CLOSABLE
            assert (await refused(OCTOBER, Hurdle.EARLIER)).earliest == september
            assert await finance.verify(september) is None
            await finance.close(september, actor="a", reason="r")
            await finance.close(OCTOBER, actor="a", reason="r")
            await refused(OCTOBER, Hurdle.CLOSED)
            await refused(september, Hurdle.CLOSED)
            await refused(month("2026-08"), Hurdle.CLOSED)
            states = {each.name: state for each, state, _ in await finance.periods()}
            assert states == {
                "2026-09": State.CLOSED,
                "2026-10": State.CLOSED,
                "2026-11": State.OPEN,
            }

    run(test)


def test_what_was_interrupted_while_it_was_counted_is_counted_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        clock = Clock()
        with folder() as where, house(clock, where / "x.db") as (book, finance):
            await billed(book, clock, "r1", OCTOBER.start_ms)
            clock.ms = OCTOBER.end_ms - 1
            await book.hold(ask("r2"))
            await book.renew(["r2"], lease_s=30 * 86_400)
            clock.ms = CLOSABLE
            with monkeypatch.context() as broken:
                broken.setattr("tenants.closing.read_page", _power_cut)
                with pytest.raises(RuntimeError, match="power"):
                    await finance.close(OCTOBER, actor="a", reason="r")
            assert await finance.verify(OCTOBER) is None
            assert {state for _, state, _ in await finance.periods()} == {State.CLOSING, State.OPEN}
            await book.settle("r2", Meters(input=1))  # it is shut all the same
            closed = await finance.close(OCTOBER, actor="b", reason="again")
            assert (closed.spend_nano_usd, closed.actor) == (2000, "a")
            assert closed.sha256 == await by_hand(finance)

    run(test)


def _power_cut(*_: object) -> None:
    raise RuntimeError("power")


def test_a_month_of_nothing_has_a_hash_too() -> None:
    async def test() -> None:
        clock = Clock(CLOSABLE)
        with folder() as where, house(clock, where / "x.db") as (_, finance):
            closed = await finance.close(OCTOBER, actor="a", reason="r")
            assert (closed.entries, closed.lines, closed.spend_nano_usd) == (0, 0, 0)
            assert closed.sha256 == hashlib.sha256(b"lockgate-period-2\n2026-10\n").hexdigest()
            clock.ms = NOVEMBER.end_ms + CLOSING_MS
            assert (await finance.close(NOVEMBER, actor="a", reason="r")).sha256 != closed.sha256

    run(test)


def test_every_closed_month_has_a_hash_of_its_own() -> None:
    """Nothing stands in the months between, and each is closed all the same."""

    async def test() -> None:
        clock = Clock(CLOSABLE)
        early = month("2026-06")
        with folder() as where, house(clock, where / "x.db") as (_, finance):
            await finance.close(early, actor="a", reason="r")
            for name in ("2026-07", "2026-08", "2026-09"):
                with pytest.raises(CannotClose) as told:
                    await finance.close(OCTOBER, actor="a", reason="r")
                assert (told.value.why, told.value.earliest) == (Hurdle.EARLIER, month(name))
                await finance.close(month(name), actor="a", reason="r")
            await finance.close(OCTOBER, actor="a", reason="r")
            listed = await finance.periods()
            assert listed[0][0] == early
            hashes = {shut.sha256 for _, state, shut in listed if state is State.CLOSED and shut}
            assert len(hashes) == len(listed) - 1 == 5
            for each, state, _ in listed[:-1]:
                assert state is State.CLOSED
                assert await finance.verify(each) is not None

    run(test)
