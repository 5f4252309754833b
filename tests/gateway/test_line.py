"""The line as a caller meets it: answers, streams, refusals, and what is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from executor.contract import Submit
from executor.echo import EchoExecutor
from gateway.house import Timings
from gateway.telling import Voice
from policies.facts import Budget, Limits
from tests.gateway.inhouse import CHAT, PLAN, PRICE, Inhouse, chat_body, inhouse


def lived(folder: Path, story: Callable[[Inhouse], Awaitable[None]], **options: object) -> None:
    """Run `story` in a house of its own, and find nothing left of it."""

    async def run() -> None:
        async with inhouse(folder, **options) as home:  # type: ignore[arg-type]
            before = len(asyncio.all_tasks())
            await story(home)
            await home.at_rest()
            assert len(asyncio.all_tasks()) == before
            assert [entry for entry in home.logged if entry["event"] == "failed"] == []

    asyncio.run(run())


class Hold:
    """A gate that lets `free` tokens of each job through, then waits until it is opened."""

    def __init__(self, free: int = 0) -> None:
        self.free = free
        self.opened = asyncio.Event()
        self.waiting = asyncio.Event()

    async def __call__(self, job: Submit, token: int) -> None:
        if token >= self.free:
            self.waiting.set()
            await self.opened.wait()


def test_an_answer_has_text_usage_and_a_price(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        answer = await home.caller().chat("hello", max_tokens=64)
        assert answer.status == 200
        told = answer.json()
        assert "hello" in told["choices"][0]["message"]["content"]
        assert told["choices"][0]["finish_reason"] == "stop"
        usage = told["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        explained = await home.caller().get("/v1/requests/" + answer.headers["x-request-id"])
        view = explained.json()
        assert [stage["name"] for stage in view["stages"]] == [
            "admitted",
            "queued",
            "prefill",
            "decode",
        ]
        cents = usage["prompt_tokens"] * 200 + usage["completion_tokens"] * 600
        assert view["price_usd"] == f"{cents / 1e9:.9f}"
        assert "cost_ms" not in view

    lived(tmp_path, story)


def test_a_stream_says_the_same_as_a_whole_answer(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        whole = (await home.caller().chat("one two three")).json()
        streamed = await home.caller().chat(
            "one two three", stream=True, stream_options={"include_usage": True}
        )
        *chunks, done = streamed.events()
        assert done == "[DONE]"
        assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        text = "".join(
            chunk["choices"][0]["delta"].get("content", "") for chunk in chunks if chunk["choices"]
        )
        assert text == whole["choices"][0]["message"]["content"]
        assert chunks[-1]["usage"] == whole["usage"]
        assert chunks[-1]["choices"] == []
        assert all(chunk["usage"] is None for chunk in chunks[:-1])
        assert chunks[-2]["choices"][0] == {
            "index": 0,
            "delta": {},
            "logprobs": None,
            "finish_reason": "stop",
        }
        assert {chunk["id"] for chunk in chunks} == {chunks[0]["id"]}

    lived(tmp_path, story)


@pytest.mark.parametrize("stream", (False, True))
def test_choices_of_several_prompts_are_told_apart(tmp_path: Path, *, stream: bool) -> None:
    async def story(home: Inhouse) -> None:
        answer = await home.caller().post(
            "/v1/completions",
            {"model": "echo", "prompt": ["aaa", "bbb"], "n": 2, "max_tokens": 8, "stream": stream},
        )
        assert answer.status == 200, answer.body
        if stream:
            texts = ["", "", "", ""]
            for chunk in answer.events()[:-1]:
                for choice in chunk["choices"]:
                    texts[choice["index"]] += choice["text"]
        else:
            texts = [choice["text"] for choice in answer.json()["choices"]]
            assert answer.json()["usage"]["prompt_tokens"] == 6
        assert [text[:3] for text in texts] == ["aaa", "aaa", "bbb", "bbb"]

    lived(tmp_path, story)


def test_a_stop_string_ends_one_choice_exactly(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        body = {"model": "echo", "prompt": "abcdef", "max_tokens": 50, "stop": ["cd"]}
        answer = (await home.caller().post("/v1/completions", body)).json()
        assert answer["choices"][0]["text"] == "ab"
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert answer["usage"]["completion_tokens"] == 4  # a, b, c, d: no more is billed
        streamed = await home.caller().post(
            "/v1/completions", body | {"stream": True, "stream_options": {"include_usage": True}}
        )
        assert streamed.events()[-2]["usage"] == answer["usage"]

    lived(tmp_path, story)


@pytest.mark.parametrize("stream", (False, True))
@pytest.mark.parametrize("free", (0, 2))
def test_leaving_cancels_and_bills_what_was_generated(
    tmp_path: Path, *, stream: bool, free: int
) -> None:
    async def run() -> None:
        hold = Hold(free)
        async with inhouse(tmp_path, echo=EchoExecutor(gate=hold)) as home:
            exchange = home.caller().start("POST", CHAT, chat_body("hello", stream=stream))
            await hold.waiting.wait()
            exchange.leave()
            await exchange.end()
            await home.at_rest()
            (record,) = [each for each in home.audited() if each["kind"].startswith("request.")]
            assert record["kind"] == "request.cancelled"
            assert record["output_tokens"] == free
            assert record["nano_usd"] == 200 * record["input_tokens"] + 600 * free

    asyncio.run(run())


def test_leaving_the_queue_costs_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        hold = Hold()
        async with inhouse(tmp_path, echo=EchoExecutor(gate=hold, seqs_max=1)) as home:
            first = home.caller().start("POST", CHAT, chat_body("first"))
            await hold.waiting.wait()
            second = home.caller("globex/carol").start("POST", CHAT, chat_body("second"))
            async with asyncio.timeout(10):
                while home.echo.gauges.waiting == 0:
                    await asyncio.sleep(0.001)
            second.leave()
            await second.end()
            hold.opened.set()
            assert (await first.end()).status == 200
            await home.at_rest()
            cancelled = [each for each in home.audited() if each["kind"] == "request.cancelled"]
            assert [(each["tenant"], each["nano_usd"]) for each in cancelled] == [("globex", 0)]

    asyncio.run(run())


def test_a_budget_that_fits_exactly_37_admits_exactly_37(tmp_path: Path) -> None:
    """Nobody ends before all have asked, so what decides is what is held."""

    async def run() -> None:
        hold = Hold()
        prompt, most = 5, 10
        each_nano_usd = prompt * 200 + most * 600
        plan = replace(PLAN, budget=Budget(37 * each_nano_usd + each_nano_usd - 1))
        async with inhouse(tmp_path, plan=plan, echo=EchoExecutor(gate=hold, seqs_max=500)) as home:
            body = {"model": "echo", "prompt": "x" * prompt, "max_tokens": most, "ignore_eos": True}
            asked = [home.caller().start("POST", "/v1/completions", body) for _ in range(200)]
            async with asyncio.timeout(20):
                while sum(exchange.task.done() for exchange in asked) < 163:
                    await asyncio.sleep(0.005)
            hold.opened.set()
            answers = [await exchange.end() for exchange in asked]
            statuses = [answer.status for answer in answers]
            assert (statuses.count(200), statuses.count(429)) == (37, 163)
            for answer in answers:
                if answer.status == 429:
                    assert answer.error["code"] == "insufficient_quota"
                    assert answer.headers["x-should-retry"] == "false"
                    assert "retry-after" not in answer.headers
            await home.at_rest()
            (row,) = (await home.operator().get("/v1/admin/usage", "by=tenant")).json()["rows"]
            assert row["nano_usd"] == 37 * each_nano_usd
            assert row["output_tokens"] == 37 * most

    asyncio.run(run())


def test_what_the_budget_refuses_the_rate_gets_back(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        refused = await home.caller().chat("hello", max_tokens=100)
        assert refused.status == 429
        headroom = (await home.caller().get("/v1/me")).json()["left"]
        assert headroom["requests"]["remaining"] == 10
        assert headroom["tokens"]["remaining"] == 1000

    plan = replace(PLAN, limits=Limits(rpm=10, output_tpm=1000), budget=Budget(1000))
    lived(tmp_path, story, plan=plan)


def test_an_open_ended_answer_is_cut_to_what_the_budget_affords(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        body = {"model": "echo", "prompt": "xxxxx", "ignore_eos": True}
        answer = await home.caller().post("/v1/completions", body)
        told = answer.json()
        assert told["usage"]["completion_tokens"] == 20
        assert told["choices"][0]["finish_reason"] == "length"
        assert told["x_limit"] == {"reason": "token_budget"}
        again = await home.caller().post("/v1/completions", body)
        assert again.error["code"] == "insufficient_quota"

    plan = replace(PLAN, budget=Budget(5 * 200 + 20 * 600))
    lived(tmp_path, story, plan=plan)


def test_a_spent_rate_says_when_to_come_back(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        first = await home.caller().chat()
        assert first.headers["x-ratelimit-limit-requests"] == "1"
        assert first.headers["x-ratelimit-remaining-requests"] == "0"
        second = await home.caller().chat()
        assert second.status == 429
        assert second.error["code"] == "rate_limit_exceeded"
        assert 1 <= int(second.headers["retry-after"]) <= 60
        assert second.headers["x-ratelimit-remaining-requests"] == "0"
        assert (await home.caller("acme/bob").chat()).status == 200

    plan = replace(PLAN, user_limits=Limits(rpm=1))
    lived(tmp_path, story, plan=plan)


def test_a_dead_executor_is_an_error_that_can_be_retried(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        whole = await home.caller().chat("hello there")
        assert whole.status == 503
        assert whole.error["code"] == "executor_lost"
        streamed = await home.caller().chat("hello there", stream=True)
        assert streamed.status == 200
        *_, fault, done = streamed.events()
        assert fault["error"]["code"] == "executor_lost"
        assert done == "[DONE]"
        rows = (await home.operator().get("/v1/admin/usage", "by=tenant")).json()["rows"]
        assert sum(row["nano_usd"] for row in rows) == 0  # our fault is priced zero

    lived(tmp_path, story, echo=EchoExecutor(crash_at=3))


def test_a_fault_before_the_first_token_is_an_http_status(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        home.echo.fail()
        answer = await home.caller().chat(stream=True)
        assert answer.status == 503
        assert answer.error["type"] == "overloaded_error"
        home.echo.recover()
        assert (await home.caller().chat()).status == 200

    lived(tmp_path, story)


def test_a_silent_queue_keeps_the_stream_alive(tmp_path: Path) -> None:
    async def run() -> None:
        hold = Hold()
        timings = Timings(keepalive_ms=20)
        async with inhouse(tmp_path, echo=EchoExecutor(gate=hold), timings=timings) as home:
            exchange = home.caller().start("POST", CHAT, chat_body(stream=True))
            await exchange.until(lambda each: len(each.parts) >= 2)
            hold.opened.set()
            answer = await exchange.end()
            assert answer.comments()
            assert answer.events()[-1] == "[DONE]"

    asyncio.run(run())


def test_revocation_ends_a_running_stream(tmp_path: Path) -> None:
    async def run() -> None:
        hold = Hold(2)
        async with inhouse(tmp_path, echo=EchoExecutor(gate=hold)) as home:
            mine = home.caller().start("POST", CHAT, chat_body(stream=True))
            other = home.caller("globex/carol").start("POST", CHAT, chat_body(stream=True))
            await mine.until(lambda each: bool(each.parts))
            await other.until(lambda each: bool(each.parts))
            done = await home.operator().post(
                "/v1/admin/tenants/acme/suspend", {"reason": "unpaid"}
            )
            assert done.status == 200
            *_, fault, last = (await mine.end()).events()
            assert fault["error"]["code"] == "authorization_revoked"
            assert last == "[DONE]"
            refused = await home.caller().chat()
            assert refused.error["code"] == "tenant_suspended"
            hold.opened.set()
            assert (await other.end()).events()[-2]["choices"][0]["finish_reason"] == "stop"
            await home.operator().post("/v1/admin/tenants/acme/resume", {"reason": "paid"})
            assert (await home.caller().chat()).status == 200
            await home.at_rest()

    asyncio.run(run())


@pytest.mark.slow
def test_a_token_that_expires_in_mid_stream_ends_it_after_the_grace(tmp_path: Path) -> None:
    async def run() -> None:
        hold = Hold(1)
        timings = Timings(expiry_grace_ms=0)
        async with inhouse(tmp_path, echo=EchoExecutor(gate=hold), timings=timings) as home:
            home.time.ahead_ms = 7 * 86_400_000 - 1100
            exchange = home.caller().start("POST", CHAT, chat_body(stream=True))
            await exchange.until(lambda each: bool(each.parts))
            *_, fault, _ = (await exchange.end()).events()
            assert fault["error"]["code"] == "auth_expired"
            await home.at_rest()

    asyncio.run(run())


def test_a_draining_server_takes_nothing_new(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        assert (await home.caller().get("/ready")).status == 200
        home.switch["draining"] = True
        assert (await home.caller().get("/ready")).status == 503
        assert (await home.caller().chat()).error["code"] == "draining"
        assert (await home.caller().get("/health")).status == 200

    lived(tmp_path, story)


@pytest.mark.parametrize(
    ("fields", "code"),
    (
        ({"model": "nope"}, "model_not_found"),
        ({"max_tokens": 10**9}, None),
        ({"n": 9}, "too_many_choices"),
        ({"messages": [{"role": "user", "content": "x" * 5000}]}, "context_length_exceeded"),
    ),
)
def test_what_can_never_be_is_refused_before_it_costs(
    tmp_path: Path, fields: dict[str, object], code: str | None
) -> None:
    async def story(home: Inhouse) -> None:
        answer = await home.caller().post(CHAT, chat_body() | fields)
        if code is None:
            assert answer.status == 200  # clamped to the context
        else:
            assert answer.error["code"] == code
            assert answer.error["param"]
            usage = (await home.operator().get("/v1/admin/usage", "by=tenant")).json()
            assert usage["rows"] == []

    lived(tmp_path, story)


def test_a_stalled_audit_log_stops_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with inhouse(tmp_path) as home:
            monkeypatch.setattr(home.house.audit, "_stalled", True)
            answer = await home.caller().chat()
            assert (answer.status, answer.error["code"]) == (503, "audit_unavailable")
            assert (await home.caller().get("/ready")).status == 503
            assert (await home.caller().get("/health")).status == 200

    asyncio.run(run())


def test_nobody_reads_another_ones_request(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        made = await home.caller().chat()
        path = "/v1/requests/" + made.headers["x-request-id"]
        absent = await home.caller("acme/bob").get("/v1/requests/req_absent")
        for other in ("acme/bob", "globex/carol", "globex/admin", "acme/finance"):
            answer = await home.caller(other).get(path)
            assert (answer.status, answer.body) == (absent.status, absent.body)
        assert (await home.caller("acme/admin").get(path)).status == 200
        seen = await home.operator().get("/v1/admin/requests/" + made.headers["x-request-id"])
        assert "cost_ms" in seen.json()

    lived(tmp_path, story)


def test_nothing_a_customer_said_is_written_anywhere(tmp_path: Path) -> None:
    canary = "CANARY-7f3a"

    async def story(home: Inhouse) -> None:
        await home.caller().chat(canary, stream=True)
        await home.caller().chat(canary, temperature=99)
        await home.caller().post(CHAT, chat_body(canary) | {"model": canary})
        await home.caller().post(CHAT, canary.encode())
        await home.caller(None).chat(canary)
        exposition = (await home.operator().get("/metrics")).body
        assert b"lockgate_request_success_total" in exposition
        assert b"vllm:num_requests_running" in exposition
        assert canary.encode() not in exposition
        assert canary not in str(home.logged)
        token = home.tokens["acme/alice"]
        for path in home.folder.rglob("*"):
            if path.is_file() and path.name != "dev.json":
                data = path.read_bytes()
                assert canary.encode() not in data, path
                assert token.encode() not in data, path

    lived(tmp_path, story)


def test_a_refused_credential_is_recorded_by_route_and_not_by_what_was_sent(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        assert (await home.caller(None).get("/v1/requests/CANARY-in-a-path")).status == 401
        (denied,) = [each for each in home.audited() if each["kind"] == "auth.denied"]
        assert denied["route"] == "/v1/requests/{id}"
        assert denied["reason"] == "missing"

    lived(tmp_path, story)


def test_a_fault_of_our_own_is_priced_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with inhouse(tmp_path) as home:

            def broken(self: object, emitted: object) -> None:
                raise RuntimeError("CANARY")

            monkeypatch.setattr(Voice, "hear", broken)
            answer = await home.caller().chat()
            assert (answer.status, answer.error["code"]) == (500, "internal_error")
            assert "CANARY" not in str(answer.body)
            (row,) = (await home.operator().get("/v1/admin/usage", "by=tenant")).json()["rows"]
            assert (row["nano_usd"], row["output_tokens"]) == (0, 0)
            await home.at_rest()

    asyncio.run(run())


def test_when_one_prompt_of_two_is_never_started_neither_is_billed(tmp_path: Path) -> None:
    async def run() -> None:
        hold = Hold()
        timings = Timings(queue_ms_max=30)
        echo = EchoExecutor(gate=hold, seqs_max=1)
        async with inhouse(tmp_path, echo=echo, timings=timings) as home:
            body = {"model": "echo", "prompt": ["aaa", "bbb"], "max_tokens": 4}
            answer = await home.caller().post("/v1/completions", body)
            assert (answer.status, answer.error["code"]) == (408, "queue_deadline")
            rows = (await home.operator().get("/v1/admin/usage", "by=tenant")).json()["rows"]
            assert sum(row["nano_usd"] for row in rows) == 0
            await home.at_rest()

    asyncio.run(run())


def test_the_batch_class_pays_its_own_price(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        made = await home.operator().post(
            "/v1/admin/keys", {"tenant": "acme", "user": "nightly", "service_class": "batch"}
        )
        caller = replace(home.caller(), credential=made.json()["secret"])
        body = {"model": "echo", "prompt": "xxxxx", "max_tokens": 10, "ignore_eos": True}
        answer = await caller.post("/v1/completions", body)
        assert answer.status == 200
        view = (await caller.get("/v1/requests/" + answer.headers["x-request-id"])).json()
        assert view["service_class"] == "batch"
        assert view["price_usd"] == f"{(5 * 200 + 10 * 600) / 2 / 1e9:.9f}"

    lived(tmp_path, story, prices=(replace(PRICE, batch_factor=0.5),))
