"""/v1/messages: what is asked in Anthropic's form, answered in its words, refused in its words."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor.echo import EchoExecutor
from gateway.guard import FrontBounds
from gateway.house import Timings
from policies.facts import Budget, Limits
from tests.gateway.inhouse import MODEL, PLAN, Answered, Caller, Inhouse, inhouse
from tests.gateway.registered_kit import register
from tests.gateway.test_blocks import events_of, put_together
from tests.gateway.test_line import Hold, lived

MESSAGES = "/v1/messages"
Body = dict[str, Any]


def body(content: object = "hello", **fields: object) -> Body:
    asked = {"model": MODEL, "max_tokens": 64, "messages": [{"role": "user", "content": content}]}
    return {**asked, **fields}


async def said(caller: Caller, **fields: object) -> Body:
    answer = await caller.post(MESSAGES, body(**fields))
    assert answer.status == 200, answer.body
    told: Body = answer.json()
    return told


def refused(answer: Answered, status: int, kind: str) -> Body:
    """In Anthropic's words, and never in OpenAI's."""
    told = answer.json()
    assert (answer.status, told["error"]["type"]) == (status, kind), answer.body
    assert set(told) == {"type", "error", "request_id"}
    assert set(told["error"]) == {"type", "message", "code", "param"}
    assert told["type"] == "error"
    named = answer.headers["request-id"]
    assert named == answer.headers["x-request-id"] == told["request_id"]
    error: Body = told["error"]
    return error


def test_an_answer_is_a_message(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        answer = await home.caller().post(MESSAGES, body())
        told = answer.json()
        assert answer.headers["request-id"] == answer.headers["x-request-id"]
        assert told["id"] == "msg_" + answer.headers["request-id"].removeprefix("req_")
        (block,) = told["content"]
        assert block["type"] == "text"
        assert "hello" in block["text"]
        assert (told["type"], told["role"], told["model"]) == ("message", "assistant", MODEL)
        assert (told["stop_reason"], told["stop_sequence"]) == ("end_turn", None)
        chat = (await home.caller().chat("hello", max_tokens=64)).json()
        assert block["text"] == chat["choices"][0]["message"]["content"]
        assert told["usage"] == {
            "input_tokens": chat["usage"]["prompt_tokens"],
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": chat["usage"]["completion_tokens"],
        }

    lived(tmp_path, story)


SHAPES: tuple[Body, ...] = (
    {},
    {"max_tokens": 3},
    {"stop_sequences": ["zzz", "ell"]},
    {"system": "Be brief."},
    {"system": [{"type": "text", "text": "Be", "cache_control": {"type": "ephemeral"}}]},
    {"service_tier": "standard_only", "metadata": {"user_id": "u"}, "temperature": 0.5},
    {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    {
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "system", "content": "b"},
            {"role": "user", "content": "c"},
        ]
    },
    {"thinking": {"type": "disabled"}, "tools": [], "top_k": 0, "top_p": 1, "unknown": 1},
)


def test_a_stream_says_what_the_whole_says(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        for fields in SHAPES:
            whole = await said(home.caller(), **fields)
            streamed = await home.caller().post(MESSAGES, body(stream=True, **fields))
            assert streamed.headers["content-type"].startswith("text/event-stream")
            assert streamed.headers["request-id"].startswith("req_")
            assert b"[DONE]" not in streamed.body
            told = put_together(events_of(streamed.body))
            assert told.pop("id") != whole.pop("id")
            assert told == whole, fields

    lived(tmp_path, story)


def test_each_end_has_its_reason(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        told = await said(home.caller(), max_tokens=1)
        assert (told["stop_reason"], told["usage"]["output_tokens"]) == ("max_tokens", 1)
        told = await said(home.caller(), stop_sequences=["zzz", "ell"])
        assert (told["stop_reason"], told["stop_sequence"]) == ("stop_sequence", "ell")
        assert told["content"][0]["text"].endswith("h")
        nothing = await said(home.caller(), content="xyz", stop_sequences=["u"])
        assert (nothing["content"], nothing["stop_sequence"]) == ([], "u")

    lived(tmp_path, story)


def test_what_the_cache_had_is_no_input(tmp_path: Path) -> None:
    echo = EchoExecutor(found=lambda _: (5, 0))

    async def story(home: Inhouse) -> None:
        chat = (await home.caller().chat("hello")).json()["usage"]
        whole = (await said(home.caller()))["usage"]
        streamed = await home.caller().post(MESSAGES, body(stream=True))
        assert put_together(events_of(streamed.body))["usage"] == whole
        assert whole["cache_read_input_tokens"] == chat["prompt_tokens_details"]["cached_tokens"]
        assert whole["input_tokens"] + whole["cache_read_input_tokens"] == chat["prompt_tokens"]

    lived(tmp_path, story, echo=echo)


def test_turns_are_read_as_the_same_chat(tmp_path: Path) -> None:
    """What one role says twice in a row is one turn; a system prompt is a system message."""

    async def story(home: Inhouse) -> None:
        messages = [
            {"role": "user", "content": "a"},
            {"role": "user", "content": [{"type": "text", "text": "b"}]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "x"}, TEXT]},
            {"role": "user", "content": "c"},
        ]
        told = await said(home.caller(), system="s", messages=messages)
        alike = [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "a\nb"},
            {"role": "assistant", "content": "t"},
            {"role": "user", "content": "c"},
        ]
        chat = (await home.caller().chat(messages=alike, max_tokens=64)).json()
        assert told["content"][0]["text"] == chat["choices"][0]["message"]["content"]

    lived(tmp_path, story)


TEXT = {"type": "text", "text": "t"}


def test_a_registered_document_is_read(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice = home.caller()
        source = {"type": "file", "file_id": await register(alice, "The rent is 7.")}
        told = await said(alice, content=[{"type": "document", "source": source}, TEXT])
        assert "The rent is 7." in told["content"][0]["text"]
        strange = home.caller("globex/carol")
        answer = await strange.post(MESSAGES, body([{"type": "document", "source": source}, TEXT]))
        refused(answer, 404, "not_found_error")

    lived(tmp_path, story)


BAD: tuple[tuple[Body, str], ...] = (
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": None}, "max_tokens"),
    ({"temperature": 1.5}, "temperature"),
    ({"top_p": -1}, "top_p"),
    ({"top_k": -1}, "top_k"),
    ({"stop_sequences": [""]}, "stop_sequences[0]"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}, "messages"),
    ({"content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}, "messages[0].content[0]"),
    ({"content": [{"type": "document", "source": {"type": "url", "url": "x"}}]}, "messages[0].content[0].source"),
    ({"content": [{"type": "text"}]}, "messages[0].content[0].text"),
    ({"content": [{"type": "tool_result", "tool_use_id": "t"}]}, "messages[0].content[0].tool_use_id"),
    ({"system": [{"type": "image"}]}, "system[0].type"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
    ({"service_tier": "priority"}, "service_tier"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "bash_20250124", "name": "b", "input_schema": {}}]}, "tools[0].type"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"cache_salt": "x"}, "cache_salt"),
    ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {}}}}, "output_config"),
    ({"metadata": {"user_id": "x" * 513}}, "metadata.user_id"),
    ({"max_tokens": 99_999}, "max_tokens"),
)  # fmt: skip


def test_what_cannot_be_is_refused_by_name(tmp_path: Path) -> None:
    plan = replace(PLAN, limits=replace(PLAN.limits, max_output_tokens=1000))

    async def story(home: Inhouse) -> None:
        for fields, param in BAD:
            for stream in (False, True):
                answer = await home.caller().post(MESSAGES, body(stream=stream, **fields))
                error = refused(answer, 400, "invalid_request_error")
                assert error["param"] == param, (fields, error)
        for raw in (b"[]", b"null", b"{", b"\xff", b'"x"'):
            refused(await home.caller().post(MESSAGES, raw), 400, "invalid_request_error")
        answer = await home.caller().post(MESSAGES, body(model="absent"))
        assert refused(answer, 404, "not_found_error")["code"] == "model_not_found"

    lived(tmp_path, story, plan=plan)


def test_every_refusal_of_the_path_is_in_these_words(tmp_path: Path) -> None:
    async def run() -> None:
        bounds = FrontBounds(body_bytes_max=1000, body_s=0.01)
        async with inhouse(tmp_path, bounds=bounds) as home:
            for path in (MESSAGES, MESSAGES + "/count_tokens"):
                refused(await home.caller(None).post(path, body()), 401, "authentication_error")
                refused(await home.caller("operator").post(path, body()), 403, "permission_error")
                refused(await home.caller().get(path), 405, "invalid_request_error")
                long = await home.caller().post(path, body("x" * 2000))
                refused(long, 413, "request_too_large")
                packed = home.caller().with_headers(content_encoding="gzip")
                refused(await packed.post(path, body()), 415, "invalid_request_error")
                both = home.caller().with_headers(x_api_key="lg_x")
                error = refused(await both.post(path, body()), 400, "invalid_request_error")
                assert error["code"] == "malformed_credential"
                home.switch["draining"] = True
                down = await home.caller().post(path, body())
                refused(down, 503, "overloaded_error")
                assert down.headers["retry-after"] == "1"
                home.switch["draining"] = False
            refused(await home.caller().get(MESSAGES + "/absent"), 404, "not_found_error")
            elsewhere = await home.caller().get("/v1/messages_")
            assert elsewhere.error["code"] == "not_found"
            assert "request-id" not in elsewhere.headers
            assert "request-id" not in (await home.caller().chat()).headers

    asyncio.run(run())


def test_a_body_that_comes_too_slowly_is_told_so_in_these_words(tmp_path: Path) -> None:
    async def run() -> None:
        async with inhouse(tmp_path, bounds=FrontBounds(body_s=0.01)) as home:
            sent: list[Any] = []

            async def receive() -> dict[str, Any]:
                await asyncio.Event().wait()
                raise AssertionError

            async def send(message: Any) -> None:
                sent.append(message)

            headers = [(b"host", b"test"), (b"authorization", _bearer(home))]
            scope = {
                "type": "http", "http_version": "1.1", "method": "POST", "path": MESSAGES,
                "raw_path": MESSAGES.encode(), "query_string": b"", "headers": headers,
            }  # fmt: skip
            await home.public(scope, receive, send)
            assert sent[0]["status"] == 408
            assert json.loads(sent[1]["body"])["error"]["type"] == "timeout_error"

    asyncio.run(run())


def _bearer(home: Inhouse) -> bytes:
    return b"Bearer " + home.tokens["acme/alice"].encode()


def test_a_key_is_taken_by_x_api_key(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        made = await home.operator().post("/v1/admin/keys", {"tenant": "acme", "user": "alice"})
        key = made.json()["secret"]
        by_key = Caller(home.public, None).with_headers(
            x_api_key=key, anthropic_version="2023-06-01", anthropic_beta="x,y"
        )
        assert (await by_key.post(MESSAGES, body())).status == 200
        await home.operator().post(f"/v1/admin/keys/{made.json()['id']}/revoke", {})
        refused(await by_key.post(MESSAGES, body()), 401, "authentication_error")

    lived(tmp_path, story)


def test_whoever_is_not_known_reads_the_same(tmp_path: Path) -> None:
    """But for the request's own id, and by whichever header a credential came."""

    async def story(home: Inhouse) -> None:
        nobody = Caller(home.public, None)
        made = await home.operator().post("/v1/admin/keys", {"tenant": "acme", "user": "alice"})
        await home.operator().post(f"/v1/admin/keys/{made.json()['id']}/revoke", {})
        token = home.tokens["acme/alice"]
        callers = [
            nobody,
            *(
                nobody.with_headers(x_api_key=key)
                for key in ("", "x", "lg_x", token, made.json()["secret"], "lg_" + "a" * 9000)
            ),
            *(Caller(home.public, text) for text in ("x", token[:-4] + "AAAA")),
        ]
        told = []
        for caller in callers:
            answer = await caller.post(MESSAGES, body())
            refused(answer, 401, "authentication_error")
            told.append({**answer.json(), "request_id": None})
        assert all(each == told[0] for each in told)

    lived(tmp_path, story)


def test_rates_and_budgets_are_refused_in_these_words(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        spent = await home.caller().post(MESSAGES, body(max_tokens=3000))
        error = refused(spent, 429, "billing_error")
        assert error["code"] == "insufficient_quota"
        assert spent.headers["x-should-retry"] == "false"
        carol = home.caller("globex/carol")
        await said(carol)
        often = await carol.post(MESSAGES, body())
        assert refused(often, 429, "rate_limit_error")["code"] == "rate_limit_exceeded"
        assert int(often.headers["retry-after"]) >= 1

    plan = replace(PLAN, budget=Budget(1_000_000), user_limits=Limits(rpm=1))
    lived(tmp_path, story, plan=plan)


def test_a_queued_stream_pings(tmp_path: Path) -> None:
    async def run() -> None:
        hold = Hold()
        echo = EchoExecutor(gate=hold, seqs_max=1)
        async with inhouse(tmp_path, echo=echo, timings=Timings(keepalive_ms=15)) as home:
            first = home.caller().start("POST", MESSAGES, body())
            await hold.waiting.wait()
            second = home.caller().start("POST", MESSAGES, body(stream=True))
            await second.until(lambda it: b"event: ping\n" in b"".join(it.parts))
            hold.opened.set()
            await first.end()
            events = events_of((await second.end()).body)
            assert events[0]["type"] == "message_start"
            assert {"type": "ping"} in events
            rest = [each for each in events if each["type"] != "ping"]
            assert put_together(rest)["stop_reason"] == "end_turn"

    asyncio.run(run())


def test_a_fault_after_the_first_byte_is_an_error_event(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        answer = await home.caller().post(MESSAGES, body(stream=True))
        assert answer.status == 200
        *_, last = events_of(answer.body)
        assert last["type"] == "error"
        assert last["error"]["type"] == "overloaded_error"
        assert last["error"]["code"] == "executor_lost"
        assert last["request_id"] == answer.headers["request-id"]

    lived(tmp_path, story, echo=EchoExecutor(crash_at=3))


@pytest.mark.parametrize("content", ("hello", [TEXT]))
def test_what_was_said_is_in_no_record(tmp_path: Path, content: object) -> None:
    async def story(home: Inhouse) -> None:
        await said(home.caller(), content=content, stop_sequences=["l"])
        (record,) = [each for each in home.audited() if each["kind"] == "request.completed"]
        assert record["route"] == MESSAGES
        assert "hello" not in json.dumps(home.audited()) + repr(home.logged)

    lived(tmp_path, story)
