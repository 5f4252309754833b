"""What a clerk with a calculator finds: every figure that is shown, recomputed from the rows alone.

The arithmetic here is the test's own, in fractions, over the database file: it borrows nothing from
the code that it checks.  Source: MONEY.md §1, invariants 1, 4 to 7 and 9.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from executor.echo import EchoExecutor
from gateway import views
from gateway.house import Timings
from policies.facts import Budget, Price
from policies.price import in_usd
from tests.gateway.inhouse import CHAT, PLAN, PRICE, Caller, Inhouse, chat_body
from tests.gateway.test_line import Hold, lived

ODD = Price("echo@odd", "echo", 0, 333_333_333, 77_777_777, 1_234_567_891, 999_999_999)
SUB = Price("echo@sub", "echo", 0, 333_333, 77_777, 1_234_567, 1_499_999)
FREE = Price("echo@free", "echo", 0, 0, 0, 0, 0)
DEAR = Price("echo@dear", "echo", 0, 10**15, 10**15, 10**15, 10**15)
GROUPS = ("tenant", "project", "user", "key", "model")
ACCOUNT = {
    "key": "key_id",
    "user": "user_account",
    "project": "project_account",
    "tenant": "tenant",
}


def half_up(amount: Fraction) -> int:
    return (2 * amount.numerator + amount.denominator) // (2 * amount.denominator)


def up(amount: Fraction) -> int:
    return -(-amount.numerator // amount.denominator)


def rows(conn: sqlite3.Connection, table: str) -> list[dict[str, Any]]:
    conn.row_factory = sqlite3.Row
    return [dict(row) for row in conn.execute(f"SELECT * FROM {table}")]


def faults(path: Path) -> Iterator[str]:
    """Whatever in the book does not add up."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as conn:
        prices = {row["id"]: row for row in rows(conn, "price")}
        held = rows(conn, "reservation")
        events, entries = rows(conn, "usage_event"), rows(conn, "ledger_entry")
        windows = rows(conn, "budget_window")
    for table in (prices.values(), held, events, entries, windows):
        yield from (f"{row} holds a float" for row in table if float in map(type, row.values()))
    for row in held:
        of, price = row["request_id"], prices[row["price_id"]]
        mine = [each for each in events if each["request_id"] == of]
        moves = [each for each in entries if each["request_id"] == of]
        for line in mine:
            exact = Fraction(line["tokens"] * line["unit_price"], 10**6)
            right = {half_up(exact)} if line["entry"] == "usage" else {up(exact), up(exact) + 1}
            if line["entry"] != "reversal" and line["nano_usd"] not in right:
                yield f"{line} should be one of {right}"
            if line["entry"] == "usage" and line["unit_price"] != price[line["meter"]]:
                yield f"{line} is not at the price of its hold"
        sums = {
            "lines": sum(each["nano_usd"] for each in mine),
            "ledger": sum(
                each["amount"] * ((each["credit"] == "spend") - (each["debit"] == "spend"))
                for each in moves
            ),
        }
        yield from (
            f"{of}: {n} {s}, not {row['charge']}" for n, s in sums.items() if s != row["charge"]
        )
        worst = up(
            Fraction(row["prompt_tokens"] * max(price["input"], price["cache_write"]), 10**6)
        )
        worst += up(Fraction(row["output_tokens"] * row["n"] * price["output"], 10**6))
        if not row["charge"] <= worst <= row["amount"] <= worst + 1:
            yield f"{row} should have reserved {worst}"
    for window in windows:
        own = [
            row
            for row in held
            if row[ACCOUNT[window["scope"]]] == window["account"]
            and row["at_ms"] >= window["start_s"] * 1000
            and (window["end_s"] is None or row["at_ms"] < window["end_s"] * 1000)
        ]
        spent = sum(row["charge"] for row in own)
        open_ = sum(row["amount"] for row in own if row["state"] == "HELD")
        if (window["spent"], window["held"]) != (spent, open_):
            yield f"{window} should hold {spent} and {open_}"


async def balanced(home: Inhouse) -> int:
    """Nothing is wrong, and every cut of the report, the ledger, the audit log and the sum of all
    explanations are one number, which is returned."""
    path = home.folder / "lockgate.db"
    assert list(faults(path)) == []
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as conn:
        total: int = sum(row["charge"] for row in rows(conn, "reservation"))
        ids = [row["request_id"] for row in rows(conn, "reservation")]
    money = Decimal(total).scaleb(-9)
    for size in range(1, len(GROUPS) + 1):
        for by in combinations(GROUPS, size):
            told = (await home.operator().get("/v1/admin/usage", "by=" + ",".join(by))).json()
            assert sum(row["nano_usd"] for row in told["rows"]) == total, by
            assert sum(Decimal(row["usd"]) for row in told["rows"]) == money
            assert (told["total"]["nano_usd"], Decimal(told["total"]["usd"])) == (total, money)
    assert await home.house.book.spend(from_ms=0, to_ms=2**62) == total
    assert sum(each.get("nano_usd") or 0 for each in home.audited()) == total
    explained = Decimal(0)
    for request_id in ids:
        told = (await home.operator().get("/v1/admin/requests/" + request_id)).json()
        lines = sum((Decimal(line["usd"]) for line in told["price_lines"]), Decimal(0))
        assert lines == Decimal(told["price_usd"])
        explained += lines
    assert explained == money
    return total


@pytest.mark.slow
@pytest.mark.parametrize("price", (PRICE, ODD, SUB, FREE, DEAR), ids=lambda price: price.id)
def test_whatever_happens_the_books_balance(tmp_path: Path, price: Price) -> None:
    hold = Hold(10**9)

    async def story(home: Inhouse) -> None:
        alice, bob = home.caller(), home.caller("acme/bob")
        complete: dict[str, object] = {"model": "echo", "prompt": "abcdefgh", "max_tokens": 50}

        def shut(free: int) -> None:
            hold.free = free
            hold.opened.clear()
            hold.waiting.clear()

        for length in range(1, 8):
            assert (await alice.chat("x" * length)).status == 200
        answered: tuple[dict[str, object], ...] = (
            {"stop": ["cd", "f"], "n": 2},
            {"stop": ["cd"], "stream": True},
            {"prompt": ["aaa", "bbbb", "c"], "n": 2, "ignore_eos": True, "max_tokens": 5},
        )
        for fields in answered:
            assert (await alice.post("/v1/completions", complete | fields)).status == 200
        refused: tuple[dict[str, object], ...] = ({"n": 9}, {"model": "nope"}, {"temperature": 99})
        for fields in refused:
            assert (await alice.post(CHAT, chat_body() | fields)).status in {400, 404}
        for free in (0, 1, 3):  # leaving in prefill and in decode
            shut(free)
            left = bob.start("POST", CHAT, chat_body("leaving", stream=free > 0))
            await hold.waiting.wait()
            left.leave()
            await left.end()
        hold.free = 10**9
        for turns in range(0, 60, 3):  # leaving at any moment whatsoever
            left = bob.start("POST", CHAT, chat_body("leaving", stream=turns % 2 == 0))
            for _ in range(turns):
                await asyncio.sleep(0)
            left.leave()
            await left.end()
        shut(2)  # two run; one leaves the line, one waits too long in it
        running = [alice.start("POST", CHAT, chat_body("a")), bob.start("POST", CHAT, chat_body())]
        async with asyncio.timeout(10):
            while home.echo.gauges.running < 2:
                await asyncio.sleep(0)
        late, left = (alice.start("POST", CHAT, chat_body()) for _ in range(2))
        async with asyncio.timeout(10):
            while home.echo.gauges.waiting < 2:
                await asyncio.sleep(0)
        left.leave()
        await left.end()
        assert (await late.end()).error["code"] == "queue_deadline"
        home.echo.fail()
        assert {(await each.end()).status for each in running} == {503}
        home.echo.recover()
        shut(2)
        made = await home.operator().post(
            "/v1/admin/keys", {"tenant": "acme", "user": "svc", "project": "p"}
        )
        service = Caller(home.public, made.json()["secret"])
        stream = service.start("POST", CHAT, chat_body("revoked", stream=True))
        await hold.waiting.wait()
        await home.operator().post(f"/v1/admin/keys/{made.json()['id']}/revoke", {})
        assert (await stream.end()).events()[-2]["error"]["code"] == "authorization_revoked"
        hold.opened.set()
        assert (await balanced(home) > 0) is (price is not FREE)

    lived(
        tmp_path,
        story,
        prices=(price,),
        plan=replace(PLAN, budget=Budget(10**18)),
        echo=EchoExecutor(gate=hold, seqs_max=2),
        timings=Timings(queue_ms_max=50),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("price", "worst"),
    (
        (PRICE, 5 * 200 + 7 * 600),
        (SUB, 7 + 11),  # 6.2 and 10.5, each up
        (ODD, 6174 + 7000),  # 6172.8, up, and one more since three lines may each round up
    ),
)
def test_a_budget_short_by_one_nano_dollar_refuses(
    tmp_path: Path, price: Price, worst: int
) -> None:
    body = {"model": "echo", "prompt": "xxxxx", "max_tokens": 7, "ignore_eos": True}
    for short, status in ((0, 200), (1, 429)):

        async def story(home: Inhouse, status: int = status) -> None:
            answer = await home.caller().post("/v1/completions", body)
            assert answer.status == status
            assert (await balanced(home) > 0) is (status == 200)

        plan = replace(PLAN, budget=Budget(worst - short))
        lived(tmp_path / str(short), story, plan=plan, prices=(price,))


@pytest.mark.slow
@pytest.mark.parametrize("poor", ("key", "user", "project", "tenant"))
def test_of_four_budgets_the_one_that_is_short_is_named_and_none_moves(
    tmp_path: Path, poor: str
) -> None:
    async def story(home: Inhouse) -> None:
        operator = home.operator()
        made = (
            await operator.post("/v1/admin/keys", {"tenant": "acme", "user": "svc", "project": "p"})
        ).json()
        names = {"key": made["id"], "user": "svc", "project": "p", "tenant": None}
        for scope, name in names.items():
            cents = 12_999 if scope == poor else 13_000  # 5 × 200 + 20 × 600
            ask = {"tenant": "acme", "scope": scope, "usd": in_usd(cents), "reason": "test"}
            done = await operator.post("/v1/admin/budgets", ask | ({"id": name} if name else {}))
            assert done.status == 200
        service = Caller(home.public, made["secret"])
        body = {"model": "echo", "prompt": "xxxxx", "max_tokens": 20, "ignore_eos": True}
        refused = await service.post("/v1/completions", body)
        assert refused.error["message"].startswith(f"The {poor} budget ")
        me = (await service.get("/v1/me")).json()
        assert [row["scope"] for row in me["budgets"]] == list(names)
        assert {row["held_usd"] for row in me["budgets"]} == {"0.000000000"}
        assert (await service.post("/v1/completions", body | {"max_tokens": 19})).status == 200
        assert await balanced(home) == 1000 + 19 * 600
        for row in (await service.get("/v1/me")).json()["budgets"]:
            assert row["spent_usd"] == in_usd(12_400)
            assert row["remaining_usd"] == in_usd(599 if row["scope"] == poor else 600)

    lived(tmp_path, story)


def test_the_price_is_the_one_at_admission(tmp_path: Path) -> None:
    hold = Hold(1)
    change_s = int(time.time()) + 3600
    dearer = replace(PRICE, id="echo@1", effective_s=change_s, input=7 * PRICE.input)

    async def story(home: Inhouse) -> None:
        early = home.caller().start("POST", CHAT, chat_body("a", stream=True))
        await hold.waiting.wait()
        home.time.ahead_ms = 2 * 3_600_000
        hold.opened.set()
        answers = [await early.end(), await home.caller().chat("a")]
        units = []
        for answer in answers:
            path = "/v1/admin/requests/" + answer.headers["x-request-id"]
            units.append((await home.operator().get(path)).json()["price_lines"][0])
        assert [unit["usd_per_million"] for unit in units] == ["0.200000000", "1.400000000"]
        await balanced(home)

    lived(tmp_path, story, prices=(PRICE, dearer), echo=EchoExecutor(gate=hold))


# What is shown.


def test_an_explanation_without_a_record_does_not_run_for_ever(tmp_path: Path) -> None:
    """Who leaves while the budget is being asked has a hold that was voided, and no record."""

    async def story(home: Inhouse) -> None:
        seen = set()
        for turns in range(40):
            left = home.caller().start("POST", CHAT, chat_body())
            for _ in range(turns):
                await asyncio.sleep(0)
            left.leave()
            await left.end()
        await home.booked()
        with closing(sqlite3.connect(home.folder / "lockgate.db")) as conn:
            for row in rows(conn, "reservation"):
                path = "/v1/admin/requests/" + row["request_id"]
                seen.add((await home.operator().get(path)).json()["outcome"])
        assert "not_started" in seen
        assert "running" not in seen

    lived(tmp_path, story)


def test_the_stages_that_owners_see_are_rounded_by_their_instants_too(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        made = await home.caller().chat()
        path = "/v1/requests/" + made.headers["x-request-id"]
        found = await home.house.book.explain(made.headers["x-request-id"])
        assert found is not None
        assert found.record is not None
        record = replace(found.record, admitted_ns=123_456_789, queued_ns=0, prefill_ns=98_765_432)
        told = views.explanation_view(replace(found, record=record), operator=False)
        received = datetime.fromisoformat(str(told["received_at"]))
        stages: Any = told["stages"]
        after = [datetime.fromisoformat(each["at"]) - received for each in stages]
        assert [each / timedelta(milliseconds=1) for each in after] == [0, 120, 120, 219]
        assert (await home.caller().get(path)).status == 200

    lived(tmp_path, story)


@pytest.mark.parametrize(
    ("text", "ms"),
    (
        ("1970-01-01", 0),
        ("2026-11-01", 1_793_491_200_000),
        ("2026-11-01T12:00:00.001Z", 1_793_534_400_001),
        ("2026-11-01T00:00:00.003+01:00", 1_793_487_600_003),
        ("2033-05-18T03:33:20.017Z", 2_000_000_000_017),
        ("2039-01-18T04:28:51.581Z", 2_178_937_731_581),  # as a float it is less
        ("9999-12-31T23:59:59.999Z", 253_402_300_799_999),
    ),
)
def test_the_bounds_of_a_report_are_exact(text: str, ms: int) -> None:
    """A bound that is off by one counts a request twice over two periods, or not at all."""
    assert views.instant_ms(text, "from", 0) == ms


def test_a_report_over_no_time_is_refused(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        for query in ("from=2026-11-30&to=2026-11-01", "from=2026-11-30&to=2026-11-30"):
            answer = await home.operator().get("/v1/admin/usage", query)
            assert answer.status == 400
            assert answer.json()["param"] == "to"

    lived(tmp_path, story)


def test_check_shows_what_a_user_has_really_spent(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        operator = home.operator()
        ask = {"tenant": "acme", "scope": "user", "id": "alice", "usd": "1", "reason": "test"}
        await operator.post("/v1/admin/budgets", ask)
        await home.caller().chat("hello")
        (mine, _) = (await home.caller().get("/v1/me")).json()["budgets"]
        seen = (await operator.get("/v1/admin/check", "tenant=acme&user=alice")).json()
        assert seen["budgets"][0] == mine
        assert mine["spent_usd"] != "0.000000000"
        other = "tenant=acme&user=alice&issuer=lockgate:keys"
        seen = (await operator.get("/v1/admin/check", other)).json()
        assert seen["issuer"] == "lockgate:keys"
        assert seen["budgets"][0]["spent_usd"] == "0.000000000"
        shown = (await operator.get("/v1/admin/budgets", "tenant=acme")).json()["budgets"]
        (row,) = [row for row in shown if row["scope"] == "user"]
        assert (row["window"], row["hard"]) == ("calendar_month", True)

    lived(tmp_path, story)


def test_a_key_of_a_class_outside_the_plan_is_not_made(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        ask = {"tenant": "acme", "user": "svc"}
        refused = await home.operator().post("/v1/admin/keys", ask | {"service_class": "gold"})
        assert (refused.status, refused.json()["param"]) == (400, "service_class")
        assert "interactive, batch" in refused.json()["detail"]
        made = await home.operator().post("/v1/admin/keys", ask | {"service_class": "batch"})
        assert made.status == 200

    lived(tmp_path, story)


def test_a_tenant_that_is_mistyped_is_not_there(tmp_path: Path) -> None:
    """Least of all is anything revoked of it, while the real tokens go on."""

    async def story(home: Inhouse) -> None:
        operator = home.operator()
        ask = {"tenant": "acmee", "issuer": "https://dev.lockgate.invalid/", "subject": "alice"}
        for answer in (
            await operator.post("/v1/admin/tokens/revoke", ask),
            await operator.get("/v1/admin/check", "tenant=acmee"),
        ):
            assert answer.status == 404
            assert answer.json()["detail"] == "There is no tenant 'acmee'."
        kinds = {each["kind"] for each in home.audited()}
        assert "subject.revoked" not in kinds

    lived(tmp_path, story)


def test_tenants_are_listed_with_their_plans(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        found = (await home.operator().get("/v1/admin/tenants")).json()["tenants"]
        assert found[0] == {"tenant": "acme", "plan": "pro", "suspended": False}

    lived(tmp_path, story)
