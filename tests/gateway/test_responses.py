"""/v1/responses through the whole line: whole, streamed, cut short, failing, by a key.  API.md §1, §2 (72), §3."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor.echo import EchoExecutor
from gateway.errors import ApiError, unavailable
from gateway.house import Timings
from policies.facts import Budget
from tests.gateway.inhouse import PLAN, Caller, Inhouse
from tests.gateway.response_kit import RESPONSES, asked, events_of, followed, read
from tests.gateway.test_line import Hold, lived


def test_whole_and_streamed_say_the_same(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        caller = home.caller()
        for fields in ({}, {"max_output_tokens": 3}, {"instructions": "Be kind.", "user": "u"}):
            whole = read(await caller.post(RESPONSES, asked("hello 😀", **fields)))
            answer = await caller.post(RESPONSES, asked("hello 😀", stream=True, **fields))
            assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
            found = followed(events_of(answer.body))
            for body in (whole, found.last):
                assert body["id"].startswith("resp_")
                del body["id"], body["created_at"]
                for item in body["output"]:
                    assert item.pop("id").startswith("msg_")
            assert found.last == whole
            assert whole["usage"]["total_tokens"] > 0
        assert whole["output"][0]["content"][0]["text"].startswith("system\nBe kind.\nuser\nhello")
        assert whole["status"] == "completed"

    lived(tmp_path, story)


def test_what_was_asked_is_repeated(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        fields: dict[str, Any] = {
            "instructions": "Be kind.",
            "max_output_tokens": 9,
            "metadata": {"k": "v"},
            "temperature": 0.5,
            "top_p": 0.9,
            "text": {"format": {"type": "text"}, "verbosity": "low"},
            "prompt_cache_key": "c",
            "safety_identifier": "s",
            "user": "u",
            "max_tool_calls": 2,
            "parallel_tool_calls": False,
        }
        body = read(await home.caller().post(RESPONSES, asked(**fields)))
        assert fields.items() <= body.items()
        assert body["store"] is False
        assert body["background"] is False
        plain = read(await home.caller().post(RESPONSES, asked(service_tier="auto")))
        assert (plain["temperature"], plain["top_p"]) == (1.0, 1.0)
        assert plain["service_tier"] == "default"
        assert plain["tools"] == []

    lived(tmp_path, story)


def test_a_limit_makes_it_incomplete(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        body = read(await home.caller().post(RESPONSES, asked(max_output_tokens=2)))
        assert body["status"] == "incomplete"
        assert body["incomplete_details"] == {"reason": "max_output_tokens"}
        assert body["output"][0]["status"] == "incomplete"
        assert body["usage"]["output_tokens"] == 2
        assert "x_limit" not in body
        answer = await home.caller().post(RESPONSES, asked(max_output_tokens=2, stream=True))
        assert events_of(answer.body)[-1]["type"] == "response.incomplete"

    lived(tmp_path, story)


def test_a_budget_that_ends_it_says_so(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        body = read(await home.caller().post(RESPONSES, asked("x" * 60)))
        assert body["status"] == "incomplete"
        assert body["x_limit"] == {"reason": "token_budget"}
        answer = await home.caller("acme/bob").post(RESPONSES, asked("x" * 200))
        assert (answer.status, answer.error["code"]) == (429, "insufficient_quota")

    budget = Budget(80 * 200 + 30 * 600)  # USD-nano: the prompt, and some thirty tokens
    lived(tmp_path, story, plan=replace(PLAN, budget=budget))


def test_a_fault_before_the_first_word_is_an_http_status(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        for stream in (False, True):
            answer = await home.caller().post(RESPONSES, asked(model="absent", stream=stream))
            assert (answer.status, answer.error["code"]) == (404, "model_not_found")
            answer = await home.caller(None).post(RESPONSES, asked(stream=stream))
            assert answer.status == 401

    lived(tmp_path, story)


def test_a_late_fault_is_an_event_of_its_own(tmp_path: Path) -> None:
    gate = Hold(4)

    async def story(home: Inhouse) -> None:
        exchange = home.caller().start("POST", RESPONSES, asked(stream=True))
        await exchange.until(lambda e: b"output_text.delta" in b"".join(e.parts))
        home.house.live.interrupt_all(stopped)
        answer = await exchange.end()
        assert exchange.complete
        found = followed(events_of(answer.body))
        assert found.status == "failed"
        assert found.error is not None
        assert found.error["code"] == "draining"
        assert found.last["output"][0]["status"] == "incomplete"
        assert found.last["usage"]["output_tokens"] > 0

    lived(tmp_path, story, echo=EchoExecutor(gate=gate))


def stopped() -> ApiError:
    return unavailable("This server is shutting down. Try again.", code="draining")


def test_whoever_waits_long_hears_that_it_began(tmp_path: Path) -> None:
    gate = Hold()

    async def story(home: Inhouse) -> None:
        exchange = home.caller().start("POST", RESPONSES, asked(stream=True))
        await exchange.until(lambda e: b": keep-alive" in b"".join(e.parts))
        gate.opened.set()
        found = followed(events_of((await exchange.end()).body))
        assert found.begun == ["created", "in_progress"]
        assert found.status == "completed"

    lived(tmp_path, story, echo=EchoExecutor(gate=gate), timings=Timings(keepalive_ms=10))


def test_leaving_ends_it_and_bills_what_was_generated(tmp_path: Path) -> None:
    gate = Hold(4)

    async def story(home: Inhouse) -> None:
        exchange = home.caller().start("POST", RESPONSES, asked(stream=True))
        await exchange.until(lambda e: b"output_text.delta" in b"".join(e.parts))
        exchange.leave()
        await exchange.end()
        (record,) = [e for e in home.audited() if e["kind"] == "request.cancelled"]
        assert record["route"] == RESPONSES
        assert record["output_tokens"] > 0

    lived(tmp_path, story, echo=EchoExecutor(gate=gate))


def keyed(caller: Caller, key: str = "k-1") -> Caller:
    return caller.with_headers(idempotency_key=key)


@pytest.mark.parametrize("stream", (False, True))
def test_by_a_key_it_is_told_again(tmp_path: Path, stream: bool) -> None:
    async def story(home: Inhouse) -> None:
        caller = keyed(home.caller())
        first = await caller.post(RESPONSES, asked(stream=stream))
        again = await caller.post(RESPONSES, asked(stream=stream))
        assert again.body == first.body
        assert again.headers["idempotent-replayed"] == "true"
        other = await caller.post(RESPONSES, asked("other", stream=stream))
        assert other.error["code"] == "idempotency_key_reuse"
        usage = (await home.operator().get("/v1/admin/usage", "by=tenant")).json()
        assert usage["rows"][0]["requests"] == 1

    lived(tmp_path, story)
