"""What a stream tells of itself: the place and when the turn may come, what ended it, whether to come again.

Comments for everybody, data events for who asked.  Source: API.md §3 (StreamStatus).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor.contract import Submit, Waiting
from executor.echo import EchoExecutor
from executor.starts import STARTS_LEAST
from gateway.api.sse import fault
from gateway.errors import ApiError, unavailable
from gateway.house import Timings
from policies.facts import Budget
from tests.gateway.inhouse import CHAT, PLAN, Answered, Exchange, Inhouse, chat_body, inhouse
from tests.gateway.test_line import Hold, lived

ASKED: dict[str, Any] = {"stream_options": {"x_status": True}}
TEXT = "/v1/completions"


def states(answer: Answered) -> list[dict[str, Any]]:
    return [each["x_status"] for each in answer.events()[:-1] if "x_status" in each]


# queued(position, eta)


class Passing:
    """Lets one job after the other through, each `every_ns` after the one before."""

    def __init__(self, every_ns: int) -> None:
        self.now_ns = 0
        self.every_ns = every_ns
        self.open = asyncio.Semaphore(0)

    async def __call__(self, job: Submit, token: int) -> None:
        if token == 0:
            await self.open.acquire()
            self.now_ns += self.every_ns


def queue_of(home: Inhouse, name: str, count: int) -> list[Exchange]:
    body = chat_body(stream=True, **ASKED)
    return [home.caller(name).start("POST", CHAT, body) for _ in range(count)]


@pytest.mark.parametrize("asked", (False, True))
def test_who_waits_hears_the_place_and_when_its_turn_may_come(
    tmp_path: Path, *, asked: bool
) -> None:
    async def story() -> None:
        gate = Passing(2_000_000_000)
        echo = EchoExecutor(gate=gate, seqs_max=1, clock_ns=lambda: gate.now_ns)
        async with inhouse(tmp_path, echo=echo, timings=Timings(keepalive_ms=5)) as home:
            first = queue_of(home, "acme/alice", STARTS_LEAST + 2)
            for each in first:
                await each.until(lambda it: it.status == 200)
            more = ASKED if asked else {}
            last = home.caller().start("POST", CHAT, chat_body(stream=True, **more))
            await last.until(lambda it: len(it.parts) > 1)
            for _ in range(len(first) + 1):
                gate.open.release()
                await asyncio.sleep(0.02)
            for each in first:
                await each.end()
            answer = await last.end()
            if asked:
                queued = [each for each in states(answer) if each["state"] == "queued"]
                assert queued[0] == {"state": "queued", "position": STARTS_LEAST + 1}
                assert queued[-1] == {"state": "queued", "position": 0, "eta_ms": 2_000}
            else:
                assert all("x_status" not in each for each in answer.events()[:-1])
                assert ": status queued 0 2000" in answer.comments()
            await home.at_rest()

    asyncio.run(story())


def test_the_estimate_is_of_the_tenants_own_starts(tmp_path: Path) -> None:
    """Another tenant's pace gives nobody an estimate."""

    async def story() -> None:
        gate = Passing(2_000_000_000)
        echo = EchoExecutor(gate=gate, seqs_max=1, clock_ns=lambda: gate.now_ns)
        async with inhouse(tmp_path, echo=echo) as home:
            theirs = queue_of(home, "globex/carol", STARTS_LEAST + 4)
            for each in theirs:
                await each.until(lambda it: it.status == 200)
            mine = queue_of(home, "acme/alice", 2)
            for each in mine:
                await each.until(lambda it: it.status == 200)
            for _ in range(len(theirs) + len(mine)):
                gate.open.release()
                await asyncio.sleep(0.01)
            told = [states(await each.end()) for each in (*mine, *theirs)]
            queued = [[each for each in one if each["state"] == "queued"] for one in told]
            assert [each["position"] for each in queued[1]] == [1, 0]
            assert all("eta_ms" not in each for one in queued[:2] for each in one)
            assert any("eta_ms" in each for one in queued[2:] for each in one)
            await home.at_rest()

    asyncio.run(story())


def test_one_that_is_put_back_is_queued_again_and_goes_on(tmp_path: Path) -> None:
    gate = Hold(2)

    async def story(home: Inhouse) -> None:
        exchange = home.caller().start("POST", CHAT, chat_body("abcdef", stream=True, **ASKED))
        await gate.waiting.wait()
        turn = home.echo._running[0].turn
        turn.push(Waiting(request=turn.request, position=0))
        await exchange.until(lambda it: b'"queued"' in b"".join(it.parts))
        gate.opened.set()
        answer = await exchange.end()
        text = "".join(c["delta"].get("content", "") for e in answer.events()[:-1] for c in e["choices"])  # fmt: skip
        assert "abcdef" in text
        assert [each["state"] for each in states(answer)][-1] == "queued"
        assert answer.events()[-2]["choices"][0]["finish_reason"] == "stop"

    lived(tmp_path, story, echo=EchoExecutor(gate=gate))


# limited(reason)

ENDLESS = {"model": "echo", "prompt": "xxxxx", "ignore_eos": True, "stream": True}
LIMITS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "max_tokens": ({"max_tokens": 7}, {}),
    "context": ({"max_tokens": 4_000}, {"echo": EchoExecutor(context_tokens=32)}),
    "token_budget": ({}, {"plan": replace(PLAN, budget=Budget(5 * 200 + 20 * 600))}),
}


@pytest.mark.parametrize("reason", LIMITS)
@pytest.mark.parametrize("asked", (False, True))
def test_what_ended_it_can_be_told_apart(tmp_path: Path, reason: str, *, asked: bool) -> None:
    fields, furniture = LIMITS[reason]

    async def story(home: Inhouse) -> None:
        answer = await home.caller().post(TEXT, {**ENDLESS, **fields, **(ASKED if asked else {})})
        last = answer.events()[-2]
        assert last["choices"][0]["finish_reason"] == "length"
        told = last.get("x_limit")
        if asked or reason == "token_budget":
            assert told == {"reason": reason}
        else:
            assert told is None, "who did not ask hears no more than OpenAI says"

    lived(tmp_path, story, **furniture)


def test_the_plans_own_longest_is_a_number_of_tokens(tmp_path: Path) -> None:
    plan = replace(PLAN, limits=replace(PLAN.limits, max_output_tokens=5))

    async def story(home: Inhouse) -> None:
        answer = await home.caller().post(TEXT, {**ENDLESS, **ASKED})
        assert answer.events()[-2]["x_limit"] == {"reason": "max_tokens"}

    lived(tmp_path, story, plan=plan)


def test_what_ended_by_itself_has_no_limit(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        answer = await home.caller().chat("hello", stream=True, **ASKED)
        assert all("x_limit" not in each for each in answer.events()[:-1])

    lived(tmp_path, story)


# failed(retryable, after_ms)


@pytest.mark.parametrize("asked", (False, True))
def test_a_fault_in_mid_stream_says_whether_to_come_again(tmp_path: Path, *, asked: bool) -> None:
    async def story(home: Inhouse) -> None:
        more = ASKED if asked else {}
        answer = await home.caller().chat("abcdef", stream=True, **more)
        *_, event, done = answer.events()
        assert done == "[DONE]"
        assert set(event["error"]) == {"message", "type", "param", "code"}
        assert event["error"]["code"] == "executor_lost"
        status = {"state": "failed", "retryable": True, "retry_after_ms": 1000}
        assert event.get("x_status") == (status if asked else None)

    lived(tmp_path, story, echo=EchoExecutor(crash_at=2))


def test_one_displaced_while_it_waited_hears_when(tmp_path: Path) -> None:
    gate = Hold()

    async def story(home: Inhouse) -> None:
        first = home.caller().start("POST", CHAT, chat_body())
        await gate.waiting.wait()
        (second,) = queue_of(home, "acme/alice", 1)
        await second.until(lambda it: it.status == 200)
        home.echo.displace()
        answer = await second.end()
        event = answer.events()[-2]
        assert event["error"]["code"] == "queue_backlog"
        assert event["x_status"] == {"state": "failed", "retryable": True, "retry_after_ms": 1000}
        gate.opened.set()
        await first.end()

    lived(tmp_path, story, echo=EchoExecutor(gate=gate, seqs_max=1))


def test_what_asking_again_does_not_mend_says_so() -> None:
    for why, retryable, after in (
        (unavailable("x", retry_after_s=7), "true", "7000"),
        (ApiError(401, "authentication_error", "x", "x"), "false", "null"),
        (ApiError(429, "insufficient_quota", "insufficient_quota", "x"), "false", "null"),
    ):
        told = fault(why, x_status=True)
        end = f'"x_status":{{"state":"failed","retryable":{retryable},"retry_after_ms":{after}}}'
        assert told.endswith(end.encode() + b"}\n\ndata: [DONE]\n\n")
        assert b"x_status" not in fault(why)
