"""Classes of work as a user has them: which one serves, who is turned away and at what cost, what is
counted as kept, and who may look at the queue."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from executor.contract import LANES_MAX, Cause, Ended, Submit
from executor.echo import EchoExecutor
from gateway import lifecycle
from gateway.answer import fault
from gateway.case import Case
from gateway.house import House
from gateway.promises import PARTS
from gateway.queue import UNKNOWN
from policies.classes import ServiceClass
from policies.facts import Budget
from tests.gateway.inhouse import CHAT, PLAN, Inhouse, chat_body, inhouse

Story = Callable[[Inhouse], Awaitable[None]]
CRITICAL = ServiceClass("critical", reserved=0.2, ttft_ms=60_000, itl_ms=60_000)
INTERACTIVE = ServiceClass("interactive", ttft_ms=60_000, itl_ms=60_000)
BATCH = ServiceClass("batch", weight=None, floor=0.05)
CLASSES = (CRITICAL, INTERACTIVE, BATCH)
GOLD = replace(PLAN, classes=("interactive", "batch", "critical"))
TEXT = "/v1/completions"


class Turnstile:
    """Scripted refusals: the last words on those who come, until there are no more."""

    def __init__(self, *words: Ended | None) -> None:
        self.words = list(words)
        self.seen: list[Submit] = []

    def __call__(self, job: Submit) -> Ended | None:
        self.seen.append(job)
        return self.words.pop(0) if self.words else None


BACKLOG = Ended(request=0, cause=Cause.BACKLOG, retry_ms=1_201)
OVERLOADED = Ended(request=0, cause=Cause.OVERLOADED, retry_ms=2_001)
DISPLACED = Ended(request=0, cause=Cause.BACKLOG, queued_ns=5_000_000, displaced=True)


def lived(tmp_path: Path, story: Story, **furniture: Any) -> None:
    async def run() -> None:
        async with inhouse(tmp_path, **{"classes": CLASSES, **furniture}) as home:
            await story(home)
            await home.at_rest()

    asyncio.run(run())


async def promises(home: Inhouse, by: str = "service_class") -> dict[str, dict[str, Any]]:
    told = (await home.operator().get("/v1/admin/promises", f"by={by}")).json()
    return {str(row[by]): row for row in told["rows"]}


# Which class


WISHES = {
    "pro": (
        (None, None, "interactive", None),
        (None, "auto", "interactive", "default"),
        (None, "flex", "batch", "flex"),
        (None, "priority", "interactive", "default"),  # a wish, no right
    ),
    "gold": (
        (None, "fast", "critical", "priority"),
        ("batch", "priority", "batch", "flex"),  # a credential's class binds
        ("critical", None, "critical", None),
        ("critical", "auto", "critical", "priority"),
    ),
}


@pytest.mark.parametrize("plan", WISHES)
def test_a_tier_is_a_wish_and_the_answer_names_what_was_used(tmp_path: Path, plan: str) -> None:
    door = Turnstile()

    async def story(home: Inhouse) -> None:
        for bound, tier, served, named in WISHES[plan]:
            caller = home.caller()
            if bound is not None:
                ask = {"tenant": "acme", "user": "robot", "service_class": bound}
                made = await home.operator().post("/v1/admin/keys", ask)
                caller = replace(caller, credential=made.json()["secret"])
            fields = {} if tier is None else {"service_tier": tier}
            answer = await caller.chat("hello", **fields)
            assert (answer.status, answer.json().get("service_tier")) == (200, named)
            streamed = (await caller.chat("hello", stream=True, **fields)).events()[:-1]
            assert {event.get("service_tier") for event in streamed} == {named}
            assert [job.workload for job in door.seen[-2:]] == [served, served]

    plans = {"pro": PLAN, "gold": GOLD}
    lived(tmp_path, story, plan=plans[plan], echo=EchoExecutor(refuses=door))


def test_the_executor_knows_the_classes(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        assert [each.name for each in home.echo.terms] == ["critical", "interactive", "batch"]
        me = (await home.caller().get("/v1/me")).json()
        terms = me["class_terms"]
        assert me["service_class"] == "interactive"
        assert terms["interactive"] == {
            "kind": "weighted", "weight": 1.0, "ttft_ms": 60_000, "itl_ms": 60_000,
        }  # fmt: skip
        assert terms["batch"] == {"kind": "backfill", "floor": 0.05}
        checked = (await home.operator().get("/v1/admin/check", "tenant=acme")).json()
        assert (checked["class_terms"], checked["batching"]) == (terms, {"echo": "continuous"})

    lived(tmp_path, story)


# Turned away


ASKED: tuple[dict[str, object], ...] = (
    {},
    {"stream": True},
    {"n": 3},
    {"stream": True, "n": 3},
    {"stream": True, "stream_options": {"x_status": True}},
)


@pytest.mark.parametrize(
    ("word", "status", "kind", "code", "wait_s"),
    (
        (BACKLOG, 429, "rate_limit_error", "queue_backlog", "2"),
        (DISPLACED, 429, "rate_limit_error", "queue_backlog", "1"),
        (OVERLOADED, 503, "overloaded_error", "overloaded", "3"),
    ),
)
def test_who_is_turned_away_is_told_before_the_first_byte_and_pays_nothing(
    tmp_path: Path, word: Ended, status: int, kind: str, code: str, wait_s: str
) -> None:
    plan = replace(PLAN, budget=Budget(30_000), limits=replace(PLAN.limits, rpm=2))
    door = Turnstile()

    async def story(home: Inhouse) -> None:
        for fields in ASKED:  # more than the rate: each is given back
            choices = int(str(fields.get("n", 1)))
            door.words = [word, *[None] * (choices - 1)]  # the others are let in, and let go of
            answer = await home.caller().chat("hello", max_tokens=3, **fields)
            assert (answer.status, answer.headers["content-type"]) == (status, "application/json")
            assert answer.headers["retry-after"] == wait_s
            assert (answer.error["type"], answer.error["code"]) == (kind, code)
            assert f"{wait_s} s" in answer.error["message"]
            assert "acme" not in answer.error["message"]
        rows = (await home.operator().get("/v1/admin/usage", "by=tenant")).json()["rows"]
        assert sum(row["nano_usd"] + row["input_tokens"] for row in rows) == 0
        budgets = (await home.operator().get("/v1/admin/budgets", "tenant=acme")).json()["budgets"]
        assert {each["spent_usd"] + each["held_usd"] for each in budgets} == {
            "0.0000000000.000000000"
        }
        request = answer.headers["x-request-id"]
        told = (await home.operator().get(f"/v1/admin/requests/{request}")).json()
        assert (told["outcome"], told["reason"], told["state"]) == ("failed", code, "voided")
        assert (await home.caller().chat("hello", max_tokens=3)).status == 200  # nothing was lost

    lived(tmp_path, story, plan=plan, echo=EchoExecutor(refuses=door))


def test_a_prompt_that_is_refused_takes_the_others_with_it_at_no_price(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        body = {"model": "echo", "prompt": ["aaa", "bbb"], "max_tokens": 4}
        answer = await home.caller().post(TEXT, body)
        assert (answer.status, answer.error["code"]) == (429, "queue_backlog")
        rows = (await home.operator().get("/v1/admin/usage", "by=tenant")).json()["rows"]
        assert sum(row["nano_usd"] for row in rows) == 0

    lived(tmp_path, story, echo=EchoExecutor(refuses=Turnstile(None, BACKLOG)))


def test_a_long_wait_is_told_as_it_is_and_not_to_be_retried_blindly() -> None:
    long = fault(replace_wait(BACKLOG, 90_001))
    assert long.headers == {"retry-after": "91", "x-should-retry": "false"}
    assert "x-should-retry" not in fault(replace_wait(BACKLOG, 60_000)).headers
    assert fault(replace_wait(BACKLOG, 1)).headers["retry-after"] == "1"
    assert fault(replace_wait(OVERLOADED, None)).headers["retry-after"] == "1"
    assert fault(replace_wait(OVERLOADED, 90_001)).headers["retry-after"] == "60"  # API.md §1


def replace_wait(word: Ended, retry_ms: int | None) -> Ended:
    return Ended(request=1, cause=word.cause, retry_ms=retry_ms)


@pytest.mark.parametrize("path", (CHAT, TEXT))
def test_a_choice_displaced_while_another_speaks_ends_the_stream_and_what_was_sent_is_charged(
    tmp_path: Path, path: str
) -> None:
    async def gate(_: Submit, k: int) -> None:
        if k == 2:
            await asyncio.Event().wait()

    async def story(home: Inhouse) -> None:
        more: dict[str, Any] = {
            "max_tokens": 9,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        body = chat_body("hello", n=2, **more)
        if path == TEXT:
            body = {"model": "echo", "prompt": ["hello", "world"], **more}
        exchange = home.caller().start("POST", path, body)
        await exchange.until(
            lambda each: b"".join(each.parts).count(b"data: ") >= 1 + (path == CHAT)
        )
        home.echo.displace()
        answer = await exchange.end()
        *said, error, done = answer.events()
        assert (answer.status, done) == (200, "[DONE]")
        assert all("usage" not in each or each["usage"] is None for each in said)
        assert set(error) == {"error"}
        assert set(error["error"]) == {"message", "type", "param", "code"}
        assert (error["error"]["type"], error["error"]["code"]) == (
            "rate_limit_error",
            "queue_backlog",
        )
        assert "is charged" in error["error"]["message"]
        assert "costs nothing" not in error["error"]["message"]
        request = answer.headers["x-request-id"]
        told = (await home.operator().get(f"/v1/admin/requests/{request}")).json()
        assert (told["outcome"], told["reason"], told["state"]) == (
            "failed",
            "queue_backlog",
            "settled",
        )
        assert (told["tokens"]["output"], told["tokens"]["delivered"]) == (2, 2)
        assert Decimal(told["reserved_usd"]) > Decimal(told["price_usd"]) > 0
        (budget,) = (await home.operator().get("/v1/admin/budgets", "tenant=acme")).json()[
            "budgets"
        ]
        assert (budget["spent_usd"], budget["held_usd"]) == (told["price_usd"], "0.000000000")
        row = (await promises(home))["interactive"]
        assert (row["requests"], row["refused"], row["displaced"]) == (1, 1, 1)

    lived(tmp_path, story, echo=EchoExecutor(gate=gate, seqs_max=1))


# Kept and broken


def test_promises_are_counted_by_class_and_tenant(tmp_path: Path) -> None:
    door = Turnstile(None, BACKLOG, DISPLACED, OVERLOADED)

    async def story(home: Inhouse) -> None:
        statuses = [(await home.caller().chat("hello")).status for _ in range(4)]
        assert statuses == [200, 429, 429, 503]
        await home.caller("globex/carol").chat("hello", service_tier="flex")
        limited = await home.caller().chat("hello", n=9)  # no promise covers it
        assert limited.status == 400
        rows = await promises(home)
        mine = rows["interactive"]
        assert (mine["ttft_ms"], mine["itl_ms"]) == (60_000, 60_000)
        assert (mine["requests"], mine["promised"], mine["kept"], mine["broken"]) == (4, 2, 1, 1)
        assert (mine["ttft_kept"], mine["itl_kept"], mine["ttft_broken"]) == (1, 1, 1)
        assert (mine["refused"], mine["displaced"], mine["unserved"]) == (2, 1, 1)
        assert (rows["batch"]["requests"], rows["batch"]["promised"]) == (1, 0)
        text = (await home.operator().get("/metrics")).body.decode()
        count = "lockgate_class_requests_total"
        for outcome in ("admitted", "refused_backlog", "refused_platform", "displaced"):
            assert f'{count}{{outcome="{outcome}",service_class="interactive"}} 1.0' in text
        kept = 'promise="ttft",service_class="interactive",verdict="kept"'
        assert f"lockgate_class_promises_total{{{kept}}} 1.0" in text
        ours = [line for line in text.splitlines() if line.startswith("lockgate_class_")]
        assert not any(name in line for line in ours for name in ("acme", "globex"))

    lived(tmp_path, story, echo=EchoExecutor(refuses=door))


def test_a_promise_that_cannot_be_kept_is_broken(tmp_path: Path) -> None:
    held = asyncio.Event()

    async def gate(_: Submit, k: int) -> None:
        if k == 0:
            await held.wait()

    async def story(home: Inhouse) -> None:
        exchange = home.caller().start("POST", CHAT, chat_body("hello"))
        while not home.echo.gauges.running:
            await asyncio.sleep(0)
        await asyncio.to_thread(home.folder.stat)  # a millisecond passes, whatever the machine
        begin_ns = home.house.clock.monotonic_ns()
        while home.house.clock.monotonic_ns() - begin_ns < 2_000_000:
            await asyncio.sleep(0)
        held.set()
        assert (await exchange.end()).status == 200
        row = (await promises(home))["interactive"]
        assert (row["ttft_broken"], row["kept"], row["broken"], row["unserved"]) == (1, 0, 1, 0)

    hasty = ServiceClass("interactive", ttft_ms=1)
    lived(tmp_path, story, classes=(hasty,), echo=EchoExecutor(gate=gate))


def test_a_stream_that_is_cut_is_judged_by_what_had_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait for a third token that nobody stayed to hear is no slow token of ours."""
    now, cases = [1], list[Case]()
    observe = lifecycle.observe

    def observed(house: House, case: Case) -> None:
        cases.append(case)
        observe(house, case)

    monkeypatch.setattr(lifecycle, "observe", observed)
    third = asyncio.Event()

    async def gate(_: Submit, k: int) -> None:
        now[0] += 1_000_000
        if k == 2:
            third.set()
            await asyncio.Event().wait()

    async def story(home: Inhouse) -> None:
        exchange = home.caller().start("POST", CHAT, chat_body("hello", stream=True))
        await third.wait()
        await exchange.until(lambda each: len(each.parts) >= 1)
        now[0] += 10_000_000_000
        exchange.leave()
        await exchange.end()
        row = (await promises(home))["interactive"]
        assert (row["requests"], row["kept"], row["itl_kept"], row["broken"]) == (1, 1, 1, 0)
        (case,) = cases
        assert case.received_ns < (case.left_ns or 0) <= (case.closed_ns or 0)
        text = (await home.operator().get("/metrics")).body.decode()
        assert 'class_requests_total{outcome="cancelled",service_class="interactive"} 1.0' in text

    strict = ServiceClass("interactive", ttft_ms=60_000, itl_ms=100)
    echo = EchoExecutor(gate=gate, clock_ns=lambda: now[0])
    lived(tmp_path, story, classes=(strict,), echo=echo)


def test_the_columns_add_up(tmp_path: Path) -> None:
    door = Turnstile(None, BACKLOG, OVERLOADED)

    async def story(home: Inhouse) -> None:
        for _ in range(3):
            await home.caller().chat("hello")
        await home.caller().chat("hello", service_tier="flex")  # it is promised nothing
        assert (await home.caller().chat("hello")).status == 429  # the rate
        rows = (await home.operator().get("/v1/admin/promises")).json()["rows"]
        for row in rows:
            assert row["requests"] == sum(row[part] for part in PARTS), row
        mine = {row["service_class"]: [row[part] for part in PARTS] for row in rows}
        assert mine == {"interactive": [1, 1, 1, 1, 0, 0], "batch": [0, 0, 0, 0, 0, 1]}

    # what is refused gives its place back
    plan = replace(PLAN, limits=replace(PLAN.limits, rpm=2))
    lived(tmp_path, story, plan=plan, echo=EchoExecutor(refuses=door))


def test_a_tenant_sees_its_own_promises_and_an_operator_everybodys(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        await home.caller().chat("hello")
        await home.caller("globex/carol").chat("hello")
        path = "/v1/admin/promises"
        assert set(await promises(home, "tenant")) == {"acme", "globex"}
        mine = await home.operator("acme/admin").get(path)
        assert [row["tenant"] for row in mine.json()["rows"]] == ["acme"]
        assert b"globex" not in mine.body
        assert (await home.operator("acme/admin").get(path, "tenant=globex")).status == 403
        assert (await home.operator().get(path, "tenant=nobody")).status == 404
        assert (await home.operator().get(path, "by=user")).status == 400
        (hour,) = (await home.operator().get(path, "by=hour")).json()["rows"]
        assert (hour["hour"][14:], hour["requests"]) == ("00:00+00:00", 2)

    lived(tmp_path, story)


# The queue


def test_the_queue_names_everybody_to_operators_and_nobody_else_to_a_tenant(tmp_path: Path) -> None:
    held = asyncio.Event()

    async def gate(_: Submit, __: int) -> None:
        await held.wait()

    async def story(home: Inhouse) -> None:
        who = ("acme/alice", "acme/bob", "globex/carol")
        fields: tuple[dict[str, str], ...] = ({}, {}, {"service_tier": "flex"})
        started = []
        for name, more in zip(who, fields, strict=True):
            started.append(home.caller(name).start("POST", CHAT, chat_body("hello", **more)))
            while home.echo.open_turns < len(started):
                await asyncio.sleep(0)
        everything = (await home.operator().get("/v1/admin/queue")).json()
        lanes = {(lane["tenant"], lane["service_class"]): lane for lane in everything["lanes"]}
        assert set(lanes) == {("acme", "interactive"), ("globex", "batch")}
        mine = lanes["acme", "interactive"]
        assert (mine["running"], mine["waiting"], mine["share_used"], mine["share_due"]) == (
            *(1, 1, 1.0, 0.5),
        )
        assert (everything["silent"], everything["left_out"]) == ([], 0)
        sums = {row["service_class"]: row for row in everything["classes"]}
        assert (sums["interactive"]["running"], sums["interactive"]["waiting"]) == (1, 1)
        admin = home.operator("globex/admin")
        (own,) = (await admin.get("/v1/admin/queue")).json()["lanes"]
        assert set(own) == {
            *("model", "service_class", "tenant", "running", "waiting", "oldest_ms"),
        }
        assert (own["tenant"], own["waiting"]) == ("globex", 1)
        narrowed = (await home.operator().get("/v1/admin/queue", "tenant=globex")).json()
        assert [lane["tenant"] for lane in narrowed["lanes"]] == ["globex"]
        assert (await admin.get("/v1/admin/queue", "tenant=acme")).status == 403
        text = (await home.operator().get("/metrics")).body.decode()
        assert 'lockgate_class_waiting{service_class="batch"} 1.0' in text
        assert "lockgate_share_lag_max 0.5" in text  # globex waits and has nothing of its half
        held.set()
        assert [(await each.end()).status for each in started] == [200, 200, 200]

    lived(tmp_path, story, echo=EchoExecutor(gate=gate, seqs_max=1))


def test_in_a_crowd_a_tenant_sees_its_own_and_the_sums_count_everybody(tmp_path: Path) -> None:
    held = asyncio.Event()
    crowd = LANES_MAX + 10

    async def gate(_: Submit, __: int) -> None:
        await held.wait()

    async def story(home: Inhouse) -> None:
        async with AsyncExitStack() as waiting:
            for n in range(crowd):
                lane = (("quiet" if n == 0 else f"t{n}", 1.0), ("u", 1.0))
                for _ in range(2):
                    job = Submit(
                        request=0, prompt=(1,), max_new_tokens=1, share=lane, workload="batch"
                    )
                    await waiting.enter_async_context(home.echo.turn(job))
            mine = home.caller().start("POST", CHAT, chat_body("hello"))
            while home.echo.open_turns <= 2 * crowd:
                await asyncio.sleep(0)
            seen = (await home.operator().get("/v1/admin/queue")).json()
            assert (len(seen["lanes"]), seen["left_out"]) == (LANES_MAX, crowd + 1 - LANES_MAX)
            assert "acme" not in {lane["tenant"] for lane in seen["lanes"]}
            assert {row["service_class"]: row["waiting"] for row in seen["classes"]} == {
                "batch": 2 * crowd - 1, "interactive": 1,
            }  # fmt: skip
            told = (await home.operator("acme/admin").get("/v1/admin/queue")).json()
            (own,) = told["lanes"]
            assert (own["tenant"], own["waiting"], told["left_out"]) == ("acme", 1, 0)
            (whole,) = told["classes"]
            assert (whole["service_class"], whole["running"], whole["waiting"]) == (
                "interactive",
                0,
                1,
            )
            assert not {"share_used", "share_due", "blocks"} & {*own, *whole}
            none = (await home.operator("globex/admin").get("/v1/admin/queue")).json()
            assert (none["lanes"], none["classes"]) == ([], [])
            text = (await home.operator().get("/metrics")).body.decode()
            assert f'lockgate_class_waiting{{service_class="batch"}} {2 * crowd - 1}.0' in text
            held.set()
        assert (await mine.end()).status == 200

    lived(tmp_path, story, echo=EchoExecutor(gate=gate, seqs_max=1))


def test_an_executor_that_says_nothing_is_named(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        home.echo.fail()
        told = (await home.operator().get("/v1/admin/queue")).json()
        assert told == {"lanes": [], "classes": [], "left_out": 0, "silent": ["echo"]}
        assert (await home.operator().get("/metrics")).status == 200
        assert UNKNOWN not in str(told)
        home.echo.recover()

    lived(tmp_path, story)
