"""Streams, the edge of the API, and leaving: API.md §2 (32–39, 49–57), §3; SECURITY.md A11."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp

from executor.echo import EchoExecutor
from gateway.app import public_app
from gateway.errors import ApiError
from gateway.guard import FrontBounds, front
from gateway.house import Timings
from policies.facts import Limits
from tests.gateway.inhouse import CHAT, MODEL, PLAN, Answered, Caller, Inhouse, chat_body, inhouse
from tests.gateway.test_line import Hold, lived

TEXT = "/v1/completions"
USAGE: dict[str, object] = {"stream": True, "stream_options": {"include_usage": True}}


def is_well_formed(answer: Answered) -> None:
    """Byte for byte what every client can read (API.md §0.3, §3)."""
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache, no-transform"
    assert answer.headers["x-accel-buffering"] == "no"
    assert "content-encoding" not in answer.headers
    assert "content-length" not in answer.headers
    text = answer.body.decode()
    assert "\r" not in text
    assert not text.startswith("\ufeff")
    assert text.endswith("\n\n")
    *blocks, end = text.split("\n\n")
    assert end == ""
    assert blocks[-1] == "data: [DONE]"
    assert blocks.count("data: [DONE]") == 1
    for block in blocks:
        assert re.fullmatch(r"(data: |: )[^\n]*", block), block


@pytest.mark.parametrize("n", (1, 3))
def test_a_chat_stream_keeps_the_order(tmp_path: Path, n: int) -> None:
    async def story(home: Inhouse) -> None:
        answer = await home.caller().chat("hello", stream=True, n=n)
        is_well_formed(answer)
        *chunks, _ = answer.events()
        assert {(c["id"], c["created"], c["model"], c["object"]) for c in chunks} == {
            (chunks[0]["id"], chunks[0]["created"], MODEL, "chat.completion.chunk")
        }
        for chunk in chunks:
            assert len(chunk["choices"]) == 1  # never empty without include_usage
            assert "usage" not in chunk
            assert "tool_calls" not in chunk["choices"][0]["delta"]
        for index in range(n):
            mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
            first, *middle, last = mine
            assert first["delta"] == {"role": "assistant", "content": ""}
            assert middle
            assert all(set(each["delta"]) == {"content"} for each in middle)
            assert all(each["delta"]["content"] for each in middle)
            assert last["delta"] == {}
            assert last["finish_reason"] == "stop"
            assert all(each["finish_reason"] is None for each in mine[:-1])

    lived(tmp_path, story)


def test_a_text_stream_keeps_the_order(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        body = {"model": MODEL, "prompt": "abc", "max_tokens": 2, **USAGE}
        answer = await home.caller().post(TEXT, body)
        is_well_formed(answer)
        *chunks, usage, _ = answer.events()
        assert [c["choices"][0]["finish_reason"] for c in chunks][-1] == "length"
        assert {chunk["object"] for chunk in [*chunks, usage]} == {"text_completion"}
        assert usage["choices"] == []
        assert usage["usage"]["completion_tokens"] == 2

    lived(tmp_path, story)


SHAPES: tuple[dict[str, object], ...] = (
    {},
    {"n": 3},
    {"max_tokens": 2},
    {"stop": ["ell"]},
    {"logprobs": True, "top_logprobs": 2},
    {"ignore_eos": True, "max_tokens": 40},
)


def test_usage_is_equal_in_both_modes_and_in_the_ledger(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        billed = 0
        for fields in SHAPES:
            whole = (await home.caller().chat("hello there", **fields)).json()
            streamed = await home.caller().chat("hello there", **USAGE, **fields)
            *chunks, last, done = streamed.events()
            assert done == "[DONE]"
            assert (last["choices"], last["usage"]) == ([], whole["usage"]), fields
            assert all(chunk["usage"] is None for chunk in chunks)
            finish = [c["choices"][0]["finish_reason"] for c in chunks]
            ends = [each for each in finish if each is not None]
            assert ends == [choice["finish_reason"] for choice in whole["choices"]]
            billed += 2 * whole["usage"]["completion_tokens"]
        rows = (await home.operator().get("/v1/admin/usage", "by=tenant")).json()["rows"]
        assert rows[0]["output_tokens"] == billed

    lived(tmp_path, story)


def test_usage_so_far_on_every_chunk_where_asked(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        options = {"include_usage": True, "continuous_usage_stats": True}
        answer = await home.caller().chat("hello", stream=True, stream_options=options)
        *chunks, last, _ = answer.events()
        told = [
            c["usage"]["completion_tokens"]
            for c in chunks
            if c["choices"][0]["delta"].get("content")
        ]
        assert told == sorted(told)
        assert told[0] >= 1
        assert chunks[-1]["usage"] == last["usage"]

    lived(tmp_path, story)


def test_a_queued_stream_is_kept_alive_by_comments(tmp_path: Path) -> None:
    async def run() -> None:
        hold = Hold()
        timings = Timings(keepalive_ms=15)
        echo = EchoExecutor(gate=hold, seqs_max=1)
        async with inhouse(tmp_path, echo=echo, timings=timings) as home:
            first = home.caller("globex/carol").start("POST", CHAT, chat_body())
            await hold.waiting.wait()
            plain = home.caller().start("POST", CHAT, chat_body(stream=True))
            told = home.caller().start(
                "POST", CHAT, chat_body(stream=True, stream_options={"x_status": True})
            )
            await plain.until(lambda each: len(each.parts) >= 3)
            await told.until(lambda each: len(each.parts) >= 2)
            assert plain.status == 200
            assert all(part.startswith(b": ") for part in plain.parts)
            hold.opened.set()
            answers = [await exchange.end() for exchange in (plain, told, first)]
            is_well_formed(answers[0])
            is_well_formed(answers[1])
            assert all(chunk["choices"] for chunk in answers[0].events()[:-1])
            states = [c["x_status"]["state"] for c in answers[1].events()[:-1] if "x_status" in c]
            assert states[0] == "queued"
            positions = [
                c["x_status"]["position"]
                for c in answers[1].events()[:-1]
                if c.get("x_status", {}).get("state") == "queued"
            ]
            assert positions[0] == 1  # within the tenant: globex does not count
            await home.at_rest()

    asyncio.run(run())


@pytest.mark.parametrize("stream", (False, True))
def test_a_fault_before_the_first_token_is_a_status(tmp_path: Path, *, stream: bool) -> None:
    async def story(home: Inhouse) -> None:
        answer = await home.caller().chat(stream=stream)
        assert (answer.status, answer.error["code"]) == (503, "executor_lost")
        assert answer.headers["content-type"] == "application/json"
        assert 1 <= int(answer.headers["retry-after"]) <= 60

    lived(tmp_path, story, echo=EchoExecutor(crash_at=0))


def test_waiting_too_long_is_a_408_that_costs_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        hold = Hold()
        timings = Timings(queue_ms_max=20)
        echo = EchoExecutor(gate=hold, seqs_max=1)
        async with inhouse(tmp_path, echo=echo, timings=timings) as home:
            first = home.caller().start("POST", CHAT, chat_body())
            await hold.waiting.wait()
            late = await home.caller("globex/carol").chat(stream=True)
            assert (late.status, late.error["type"]) == (408, "timeout")
            assert late.headers["retry-after"]
            hold.opened.set()
            await first.end()
            await home.at_rest()
            view = await home.operator().get("/v1/admin/requests/" + late.headers["x-request-id"])
            assert (view.json()["state"], view.json()["price_usd"]) == ("voided", "0.000000000")

    asyncio.run(run())


def test_a_dead_executor_in_mid_stream_has_no_finish_reason(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        answer = await home.caller().chat("hello there", stream=True, n=2)
        is_well_formed(answer)
        *chunks, fault, _ = answer.events()
        assert fault["error"].keys() == {"message", "type", "param", "code"}
        assert not any(choice["finish_reason"] for chunk in chunks for choice in chunk["choices"])

    lived(tmp_path, story, echo=EchoExecutor(crash_at=3))


# The edge


async def bad_credentials(home: Inhouse, path: str) -> list[Answered]:
    token = home.tokens["acme/alice"]
    head, body, mark = token.split(".")
    wrong = [
        "x",
        "lg_aaaaaaaaaaaaaaaa_" + "b" * 52,
        f"{head}.{body}.",
        f"{head}.{body}.{mark[::-1]}",
    ]
    callers = [home.caller(None), *(replace(home.caller(None), credential=each) for each in wrong)]
    callers.append(home.caller(None).with_headers(authorization=f"Basic {token}"))
    callers.append(home.caller(None).with_headers(x_api_key=token))  # a token is no key
    home.time.ahead_ms = 30 * 86_400_000  # and one that has expired
    callers.append(home.caller())
    answers = [await caller.start("POST", path, chat_body()).end() for caller in callers]
    home.time.ahead_ms = 0
    return answers


@pytest.mark.parametrize("path", (CHAT, TEXT))
def test_every_bad_credential_reads_alike(tmp_path: Path, path: str) -> None:
    async def story(home: Inhouse) -> None:
        answers = await bad_credentials(home, path)
        assert {answer.status for answer in answers} == {401}
        assert len({answer.body for answer in answers}) == 1
        assert answers[0].error["code"] == "invalid_api_key"
        assert answers[0].error["type"] == "authentication_error"
        for answer in answers:
            assert answer.headers["www-authenticate"] == 'Bearer error="invalid_token"'
        denied = [each for each in home.audited() if each["kind"] == "auth.denied"]
        assert len(denied) == len(answers)
        assert len({each["reason"] for each in denied}) > 3  # the log knows which it was

    lived(tmp_path, story)


def test_two_credentials_or_one_in_the_query_are_refused(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        token = home.tokens["acme/alice"]
        both = await home.caller().with_headers(x_api_key=token).chat()
        twice = await home.caller().with_headers(authorization=f"Bearer {token}").chat()
        query = await home.caller(None).start("POST", CHAT, chat_body(), f"api_key={token}").end()
        hidden = await home.caller(None).get("/v1/me", f"x={token}")
        for answer in (both, twice, query, hidden):
            assert answer.status == 400
            assert token.encode() not in answer.body
        kinds = {each["kind"] for each in home.audited() if "request_id" in each}
        assert kinds == {"request.rejected"}

    lived(tmp_path, story)


def test_a_request_id_is_everywhere_and_never_the_callers(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        asker = home.caller().with_headers(x_request_id="mine")
        answers = [
            await asker.chat(),
            await asker.chat(stream=True),
            await asker.chat(temperature=9),
            await asker.post(CHAT, b"{"),
            await asker.get("/health"),
            await asker.get("/v1/models"),
            await asker.get("/v1/nowhere"),
            await asker.get("/v1//me"),
            await asker.get(CHAT),
            await home.caller(None).chat(),
            await asker.post(CHAT, b"x" * 5 * 2**20),
        ]
        assert [answer.status for answer in answers] == [
            *(200, 200, 400, 400, 200, 200, 404, 404, 405, 401, 413)
        ]
        ids = [answer.headers["x-request-id"] for answer in answers]
        assert all(re.fullmatch(r"req_[0-9a-f]{24}", each) for each in ids)
        assert len(set(ids)) == len(ids)
        for answer in answers:
            if answer.status >= 400:
                assert isinstance(answer.error["code"], str | None)
        assert answers[8].headers["allow"] == "POST"

    lived(tmp_path, story)


def test_preflight_passes_for_listed_origins_alone(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        app: ASGIApp = front(
            public_app(home.house, lambda: 1),
            hosts=["test"],
            origins=["https://app.example"],
            mint=lambda: "req_" + "0" * 24,
            report=lambda request_id, why: None,
            stalled=lambda request_id: None,
        )
        asked = "authorization,content-type,x-stainless-lang,x-stainless-retry-count,x-evil"
        browser = Caller(app, None).with_headers(
            origin="https://app.example",
            access_control_request_method="POST",
            access_control_request_headers=asked,
        )
        preflight = await browser.start("OPTIONS", CHAT).end()
        assert preflight.status == 204
        allowed = preflight.headers["access-control-allow-headers"]
        assert allowed == "authorization, content-type, x-stainless-lang, x-stainless-retry-count"
        token = home.tokens["acme/alice"]
        answer = await Caller(app, token).with_headers(origin="https://app.example").chat()
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        assert "x-request-id" in answer.headers["access-control-expose-headers"]
        for origin in ("https://app.example.evil", "null", "http://app.example"):
            other = await Caller(app, token).with_headers(origin=origin).chat()
            assert "access-control-allow-origin" not in other.headers
        assert "access-control-allow-origin" not in (await home.caller().chat()).headers

    lived(tmp_path, story)


@pytest.mark.parametrize("declared", (False, True))
def test_a_body_too_large_is_a_413(tmp_path: Path, *, declared: bool) -> None:
    async def story(home: Inhouse) -> None:
        asker, body = home.caller(), b"x" * 2001
        if declared:
            asker = asker.with_headers(content_length="2001")
        answer = await asker.post(CHAT, body)
        assert (answer.status, answer.error["code"]) == (413, "request_too_large")
        assert (await home.caller().chat()).status == 200

    lived(tmp_path, story, bounds=FrontBounds(body_bytes_max=2000))


def test_an_unlisted_model_and_an_absent_one_are_one(tmp_path: Path) -> None:
    """A11: no byte and no path tells them apart."""
    plan = replace(PLAN, models=("another",))

    async def story(home: Inhouse) -> None:
        answers = [
            await home.caller().post(path, {"model": name, **body})
            for path, body in ((CHAT, {"messages": []}), (TEXT, {"prompt": 5}))
            for name in (MODEL, "absent", "../echo", "ECHO", "echo ", "another")
        ]
        answers += [
            await home.caller().get("/v1/models/" + name)
            for name in (MODEL, "absent", "a/b/c", "another", "a%2Fb")
        ]
        assert {answer.status for answer in answers} == {404}
        assert len({answer.body for answer in answers}) == 1
        assert answers[0].error["code"] == "model_not_found"
        denied = [each for each in home.audited() if each["kind"] == "authz.denied"]
        assert len(denied) == len(answers)
        assert (await home.caller().get("/v1/models")).json()["data"] == []

    lived(tmp_path, story, plan=plan)


def test_models_are_listed_and_found(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        listed = (await home.caller().get("/v1/models")).json()
        assert listed["object"] == "list"
        (model,) = listed["data"]
        assert model.items() >= {"id": MODEL, "object": "model", "max_model_len": 4096}.items()
        assert (await home.caller().get("/v1/models/" + MODEL)).json() == model
        climbing = await home.caller().get("/v1/models/../me")
        assert climbing.status == 404

    lived(tmp_path, story)


def test_a_key_is_taken_in_both_headers(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        made = await home.operator("acme/admin").post(
            "/v1/admin/keys", {"tenant": "acme", "user": "robot"}
        )
        secret = made.json()["secret"]
        bearer = replace(home.caller(None), credential=secret)
        plain = home.caller(None).with_headers(x_api_key=secret)
        for asker in (bearer, plain):
            assert (await asker.chat()).status == 200
            me = (await asker.get("/v1/me")).json()
            assert (me["tenant"], me["user"], me["credential"]["kind"]) == ("acme", "robot", "key")

    lived(tmp_path, story)


def test_an_operator_asks_no_model(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        for name in ("operator", "operator/finance", "operator/security"):
            answer = await home.caller(name).chat()
            assert (answer.status, answer.error["code"]) == (403, "no_tenant")
            assert (await home.caller(name).get("/v1/me")).json()["models"] == []

    lived(tmp_path, story)


# Leaving


@pytest.mark.parametrize("n", (1, 3))
def test_leaving_frees_every_choice_and_bills_once(tmp_path: Path, n: int) -> None:
    async def run() -> None:
        hold = Hold(2)
        async with inhouse(tmp_path, echo=EchoExecutor(gate=hold)) as home:
            exchange = home.caller().start("POST", CHAT, chat_body("hello", stream=True, n=n))
            await exchange.until(lambda each: len(each.parts) >= n)
            exchange.leave()
            await exchange.end()
            await home.at_rest()
            usage = (await home.operator().get("/v1/admin/usage", "by=tenant")).json()["rows"]
            assert [row["output_tokens"] for row in usage] == [home.echo.gauges.generated_tokens]
            assert len([each for each in home.logged if each["event"] == "request"]) == 1

    asyncio.run(run())


def test_a_reader_that_takes_nothing_is_left(tmp_path: Path) -> None:
    """A send that never returns: the handler is cancelled after the deadline, and billed."""

    async def run() -> None:
        bounds = FrontBounds(send_s=0.05)
        async with inhouse(tmp_path, bounds=bounds) as home:
            never = asyncio.Event()
            app = home.public

            async def deaf(scope: Any, receive: Any, send: Any) -> None:
                async def stuck(message: Any) -> None:
                    await never.wait()

                await app(scope, receive, stuck)

            exchange = replace(home.caller(), app=deaf).start("POST", CHAT, chat_body(stream=True))
            await exchange.end()
            await home.at_rest()
            (record,) = [each for each in home.audited() if each["kind"] == "request.cancelled"]
            assert record["output_tokens"] == home.echo.gauges.generated_tokens
            assert [entry["event"] for entry in home.logged] == ["request", "stalled"]

    asyncio.run(run())


@pytest.mark.parametrize(
    "withdraw",
    (
        lambda home: home.house.directory.suspend("acme", actor="t"),
        lambda home: home.house.directory.revoke_subject(
            tenant="acme", issuer="https://dev.lockgate.invalid/", subject="alice", actor="t"
        ),
    ),
)
def test_authority_withdrawn_while_queued(
    tmp_path: Path, withdraw: Callable[[Inhouse], Awaitable[None]]
) -> None:
    async def run() -> None:
        hold = Hold()
        async with inhouse(tmp_path, echo=EchoExecutor(gate=hold, seqs_max=1)) as home:
            first = home.caller("globex/carol").start("POST", CHAT, chat_body())
            await hold.waiting.wait()
            mine = home.caller().start("POST", CHAT, chat_body(stream=True))
            async with asyncio.timeout(10):
                while home.echo.gauges.waiting == 0:
                    await asyncio.sleep(0.001)
            await withdraw(home)
            answer = await mine.end()
            assert (answer.status, answer.error["code"]) == (403, "authorization_revoked")
            hold.opened.set()
            assert (await first.end()).status == 200
            await home.at_rest()

    asyncio.run(run())


def test_a_fault_of_the_gate_is_ours(tmp_path: Path) -> None:
    async def gate(job: object, token: int) -> None:
        raise ApiError(400, "x", "x", "x")  # whatever it is, it is no fault of the caller's

    async def story(home: Inhouse) -> None:
        answer = await home.caller().chat()
        assert answer.status == 503
        (record,) = [each for each in home.audited() if each["kind"] == "request.failed"]
        assert (record["reason"], record["nano_usd"]) == ("executor_lost", 0)

    lived(tmp_path, story, echo=EchoExecutor(gate=gate))


def test_a_flood_is_recorded_as_denied(tmp_path: Path) -> None:
    plan = replace(PLAN, user_limits=Limits(rpm=1))

    async def story(home: Inhouse) -> None:
        answers = [await home.caller().chat(stream=bool(i % 2)) for i in range(4)]
        assert [answer.status for answer in answers] == [200, 429, 429, 429]
        records = [each for each in home.audited() if each["kind"] == "quota.denied"]
        assert [(each["reason"], each["status"], each["nano_usd"]) for each in records] == [
            ("rate_requests", 429, 0)
        ] * 3

    lived(tmp_path, story, plan=plan)
