"""One key, one answer: what a completion by an `Idempotency-Key` does once, and what is told again.
(MONEY.md §5, cases 25 and 26; invariant 14; API.md case 60; SECURITY.md A10.)"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import update

from executor.contract import Cause, Ended, Submit
from executor.echo import EchoExecutor
from gateway import runs as runs_module
from gateway.house import Timings
from gateway.housekeeping import renew
from policies.facts import Limits
from tenants import idempotency, schema
from tenants.asks import HoldAsk
from tests.gateway.inhouse import CHAT, PLAN, Inhouse, chat_body, inhouse
from tests.gateway.once_kit import (
    KEY,
    REPLAYED,
    ask,
    charged,
    keyed,
    reservations,
    rows,
    start,
    told,
    turns,
)
from tests.gateway.test_line import Hold, lived


def test_an_answer_is_told_again_and_paid_once(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice = home.caller()
        first = await ask(alice)
        paid = await charged(home)
        again = await ask(alice)
        assert (first.status, REPLAYED in first.headers) == (200, False)
        assert told(again) == told(first)
        assert again.headers[REPLAYED] == "true"
        assert again.headers["x-request-id"] != first.headers["x-request-id"]
        assert (await charged(home), len(await reservations(home))) == (paid, 1)
        replays = [each for each in home.audited() if each["kind"] == "request.replayed"]
        assert [(each["outcome"], each["target"]) for each in replays] == [
            ("replayed", first.headers["x-request-id"])
        ]

    lived(tmp_path, story)


def test_a_body_is_the_same_by_what_it_says(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice = keyed(home.caller())
        spaced = b'{"model": "echo", "messages": [{"role": "user", "content": "caf\\u00e9"}]}'
        turned = '{"messages":[{"content":"café","role":"user"}],"model":"echo"}'.encode()
        first = await alice.start("POST", CHAT, spaced).end()
        again = await alice.start("POST", CHAT, turned).end()
        assert told(again) == told(first)

    lived(tmp_path, story)


def test_25_another_body_by_the_same_key_is_422(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice = home.caller()
        assert (await ask(alice)).status == 200
        for content, more in (
            ("other", {}),
            ("hello", {"max_tokens": 3}),
            ("hello", {"stream": True}),
        ):
            other = await ask(alice, content, **more)
            assert (other.status, other.error["code"]) == (422, "idempotency_key_reuse")
            assert other.headers["x-should-retry"] == "false"
        assert len(await reservations(home)) == 1

    lived(tmp_path, story)


def test_another_body_at_the_same_moment_takes_nobodys_answer(tmp_path: Path) -> None:
    """Whoever comes first is no owner of the key, before its claim has said so."""

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        first = await ask(alice)
        asked = [
            ask(alice, content)
            for content in ("other", "hello", "third", "hello", "other", "hello")
        ]
        answers = await asyncio.gather(*asked)
        assert [each.status for each in answers] == [422, 200, 422, 200, 422, 200]
        assert [told(each) for each in answers if each.status == 200] == [told(first)] * 3
        assert len(await reservations(home)) == 1

    lived(tmp_path, story)


def test_another_body_is_422_while_the_first_runs(tmp_path: Path) -> None:
    gate = Hold(1)

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        running = start(alice)
        await gate.waiting.wait()
        assert (await ask(alice, "other")).status == 422
        gate.opened.set()
        assert (await running.end()).status == 200

    lived(tmp_path, story, echo=EchoExecutor(gate=gate))


def test_26_what_runs_here_and_is_no_stream_is_409_until_it_is_over(tmp_path: Path) -> None:
    gate = Hold(1)

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        running = start(alice)
        await gate.waiting.wait()
        for _ in range(3):
            second = await ask(alice)
            assert (second.status, second.error["code"]) == (409, "idempotency_in_flight")
            assert second.headers["retry-after"] == "2"
            assert "x-should-retry" not in second.headers
        gate.opened.set()
        first = await running.end()
        assert told(await ask(alice)) == told(first)
        assert len(await reservations(home)) == 1

    lived(tmp_path, story, echo=EchoExecutor(gate=gate))


def test_26_what_runs_at_another_gateway_is_409(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice = home.caller()
        await ask(alice)
        await _set(home, state="RUNNING", owner="another")
        second = await ask(alice)
        assert (second.status, second.error["code"]) == (409, "idempotency_in_flight")
        streamed = await ask(alice, key="s", stream=True)
        assert streamed.status == 200
        await _set(home, state="RUNNING", owner="another")
        assert (await ask(alice, key="s", stream=True)).status == 409, "its events are not here"

    lived(tmp_path, story)


async def _set(home: Inhouse, **values: object) -> None:
    await home.store.write(lambda conn: conn.execute(update(schema.idempotency).values(values)))


@pytest.mark.slow
def test_of_fifty_at_once_one_runs(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice = home.caller()
        answers = await asyncio.gather(*(ask(alice) for _ in range(50)))
        statuses = [answer.status for answer in answers]
        assert set(statuses) <= {200, 409}
        assert statuses.count(200) >= 1
        assert len({answer.body for answer in answers if answer.status == 200}) == 1
        (held,) = await reservations(home)
        assert held["state"] == "SETTLED"
        events = await asyncio.gather(*(ask(alice, key="s", stream=True) for _ in range(50)))
        assert {(answer.status, answer.body) for answer in events} == {(200, events[0].body)}
        assert len(await reservations(home)) == 2

    lived(tmp_path, story)


def test_it_is_told_again_after_a_restart(tmp_path: Path) -> None:
    async def run() -> None:
        async with inhouse(tmp_path) as home:
            first = await ask(home.caller())
            streamed = await ask(home.caller(), key="s", stream=True)
        async with inhouse(tmp_path) as home:
            assert told(await ask(home.caller())) == told(first)
            assert told(await ask(home.caller(), key="s", stream=True)) == told(streamed)
            assert len(await reservations(home)) == 2
            await home.at_rest()

    asyncio.run(run())


def test_an_equal_key_is_anothers_for_anybody_else(tmp_path: Path) -> None:
    """Tenant, user, route, listener and API key: each is another, and finds nothing, by the same steps."""

    async def story(home: Inhouse) -> None:
        asks = {"model": "echo", "prompt": "hello"}
        made = await home.operator("acme/admin").post(
            "/v1/admin/keys", {"tenant": "acme", "user": "alice"}
        )
        by_key = replace(home.caller(), credential=made.json()["secret"])
        ran = home.house.metrics.keyed
        for caller in (home.caller(), home.caller("acme/bob"), home.caller("globex/carol"), by_key):
            for again in (False, True):
                chat = await ask(caller)
                text = await keyed(caller).post("/v1/completions", asks)
                assert (chat.status, text.status) == (200, 200)
                assert (REPLAYED in chat.headers, REPLAYED in text.headers) == (again, again)
        assert len(await reservations(home)) == 8
        found = await rows(home)
        assert len({row["digest"] for row in found}) == 8
        assert len({row["body"] for row in found}) == 8, (
            "equal bodies cannot be told from the database"
        )
        counts = {each: ran.labels(each)._value.get() for each in ("run", "replay")}
        assert counts == {"run": 8, "replay": 8}

    lived(tmp_path, story)


def test_what_is_refused_before_anything_was_done_leaves_the_key_free(tmp_path: Path) -> None:
    plan = replace(PLAN, limits=replace(PLAN.limits, max_output_tokens=500))

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        assert (await ask(alice, temperature=9)).status == 400
        assert (await ask(alice, max_tokens=501)).status == 400
        missing = chat_body() | {"model": "none"}
        assert (await keyed(alice).post(CHAT, missing)).status == 404
        assert await rows(home) == []
        assert (await ask(alice)).status == 200
        assert len(await rows(home)) == 1

    lived(tmp_path, story, plan=plan)


def test_who_is_over_the_rate_makes_the_database_write_nothing(tmp_path: Path) -> None:
    plan = replace(PLAN, limits=Limits(rpm=2))

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        assert [(await ask(alice, key=str(n))).status for n in range(4)] == [200, 200, 429, 429]
        assert len(await rows(home)) == 2
        assert (await ask(alice, key="0")).status == 429, "looking for an answer is a request too"
        home.house.tempo._clock_ms = lambda: 10**12  # type: ignore[attr-defined]
        assert (await ask(alice, key="0")).headers[REPLAYED] == "true"
        assert (await ask(alice, key="2")).status == 200

    lived(tmp_path, story, plan=plan)


@pytest.mark.parametrize("cause", (Cause.BACKLOG, Cause.OVERLOADED, Cause.QUEUE_DEADLINE))
def test_who_is_turned_away_may_come_again(tmp_path: Path, cause: Cause) -> None:
    refusing = [True]

    def refuses(job: Submit) -> Ended | None:
        return Ended(request=0, cause=cause, retry_ms=1000) if refusing[0] else None

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        assert (await ask(alice)).status in {408, 429, 503}
        assert await rows(home) == []
        refusing.clear()
        refusing.append(False)
        assert (await ask(alice)).status == 200
        states = sorted(row["state"] for row in await reservations(home))
        assert states == ["SETTLED", "VOIDED"]

    lived(tmp_path, story, echo=EchoExecutor(refuses=refuses))


def test_a_fault_of_ours_is_billed_at_nothing_and_may_be_asked_again(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice = home.caller()
        home.echo._crash_at = 2
        assert (await ask(alice)).status == 503
        cut = await ask(alice, key="s", stream=True)
        assert cut.events()[-2]["error"]["code"] == "executor_lost"
        assert await rows(home) == []
        home.echo._crash_at = None
        assert (await ask(alice)).status == 200
        assert (await ask(alice, key="s", stream=True)).events()[-1] == "[DONE]"
        assert sum(row["charge"] > 0 for row in await reservations(home)) == 2

    lived(tmp_path, story)


def test_a_key_that_is_none_is_refused_and_one_that_stands_twice(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        for bad in ("two words", "x" * 256):
            answer = await ask(home.caller(), key=bad)
            assert (answer.status, answer.error["code"]) == (400, "invalid_idempotency_key")
        pair = (b"idempotency-key", KEY.encode())
        twice = replace(home.caller(), more=(pair, pair))
        answer = await twice.chat()
        assert (answer.status, answer.error["code"]) == (400, "duplicate_header")
        assert await rows(home) == []

    lived(tmp_path, story)


def test_a_key_is_forgotten_after_a_day_and_not_before(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice = home.caller()
        first = await ask(alice)
        home.time.ahead_ms = idempotency.TTL_S * 1000 - 60_000
        await home.house.runs.sweep()
        assert told(await ask(alice)) == told(first)
        home.time.ahead_ms += 60_000
        other = await ask(alice, "another")
        assert (other.status, REPLAYED in other.headers) == (200, False)
        assert len(await reservations(home)) == 2
        home.time.ahead_ms += idempotency.TTL_S * 1000
        await home.house.runs.sweep()
        assert await rows(home) == []

    lived(tmp_path, story)


def test_an_answer_too_large_to_keep_is_not_made_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs_module, "RESULT_BYTES_MAX", 600)

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        for key, fields in (("w", {}), ("s", {"stream": True})):
            long = await ask(alice, "word " * 400, key=key, **fields)
            assert long.status == 200
            assert len(long.body) > 1000
            again = await ask(alice, "word " * 400, key=key, **fields)
            assert (again.status, again.error["code"]) == (409, "idempotency_result_gone")
            assert "too large" in again.error["message"]
            assert long.headers["x-request-id"] in again.error["message"]
            assert again.headers["x-should-retry"] == "false"
        assert len(await reservations(home)) == 2

    lived(tmp_path, story)


def test_a_tenant_has_room_for_so_many_keys_and_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency, "KEYS_MAX", 2)
    monkeypatch.setattr(idempotency, "ANSWERS_BYTES_MAX", 700)

    async def story(home: Inhouse) -> None:
        alice, carol = home.caller(), home.caller("globex/carol")
        assert (await ask(alice, key="1")).status == 200
        assert (await ask(alice, key="2")).status == 200
        assert (await ask(alice, key="1")).status == 200
        unkept = await ask(alice, key="2")
        assert (unkept.status, "no room" in unkept.error["message"]) == (409, True)
        third = await ask(alice, key="3")
        assert (third.status, third.error["code"]) == (429, "idempotency_keys_full")
        assert (await ask(carol)).status == 200, "another tenant's room is its own"
        assert (await alice.chat()).status == 200, "without a key nothing is remembered"
        await home.house.runs.keys.counted()
        assert (await ask(alice, key="3")).status == 429

    lived(tmp_path, story)


def test_a_database_that_is_gone_does_nothing_by_a_key(tmp_path: Path) -> None:
    async def run() -> None:
        async with inhouse(tmp_path) as home:
            await asyncio.to_thread(home.store._writer.close)
            answer = await ask(home.caller())
            assert (answer.status, answer.error["code"]) == (503, "idempotency_down")
            assert (home.echo.gauges.running, len(home.house.runs)) == (0, 0)

    asyncio.run(run())


def test_who_leaves_finds_it_done(tmp_path: Path) -> None:
    gate = Hold(1)

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        first = start(alice)
        await gate.waiting.wait()
        first.leave()
        await first.end()
        assert (await ask(alice)).status == 409
        gate.opened.set()
        await turns(lambda: not len(home.house.runs))
        assert (await ask(alice)).headers[REPLAYED] == "true"
        assert len(await reservations(home)) == 1

    lived(tmp_path, story, echo=EchoExecutor(gate=gate))


def test_what_nobody_comes_back_for_is_ended_billed_and_not_run_again(tmp_path: Path) -> None:
    gate = Hold(3)

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        first = start(alice)
        await gate.waiting.wait()
        first.leave()
        await first.end()
        await turns(lambda: not len(home.house.runs))
        (held,) = await reservations(home)
        assert (held["state"], held["charge"] > 0) == ("SETTLED", True)
        again = await ask(alice)
        assert (again.status, again.error["code"]) == (409, "idempotency_result_gone")
        assert "cut short" in again.error["message"]
        assert len(await reservations(home)) == 1

    lived(tmp_path, story, echo=EchoExecutor(gate=gate), timings=Timings(linger_ms=200))


def test_what_had_cost_nothing_when_all_left_is_free(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        home.echo._seqs_max = 0  # nobody gets a place
        first = start(home.caller())
        await turns(lambda: home.echo.gauges.waiting == 1)
        first.leave()
        await first.end()
        await turns(lambda: not len(home.house.runs))
        assert await rows(home) == []
        home.echo._seqs_max = 4
        assert (await ask(home.caller())).status == 200

    lived(tmp_path, story, timings=Timings(linger_ms=200))


def test_a_gateway_that_was_away_too_long_holds_nothing(tmp_path: Path) -> None:
    """Between its claim and its hold another took the key over: the one that comes late runs nothing."""

    async def story(home: Inhouse) -> None:
        hold = home.house.book.hold

        async def late(asked: HoldAsk) -> object:
            await _set(home, request_id="req_another", owner="another")
            return await hold(asked)

        home.house.book.hold = late  # type: ignore[assignment, method-assign]
        answer = await ask(home.caller())
        assert (answer.status, answer.error["code"]) == (409, "idempotency_in_flight")
        assert await reservations(home) == []
        assert [row["request_id"] for row in await rows(home)] == ["req_another"]

    lived(tmp_path, story)


def test_a_key_is_durable_before_anything_is_held(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        hold, before = home.house.book.hold, list[object]()

        async def watched(asked: HoldAsk) -> object:
            before.extend((row["state"], row["request_id"]) for row in await rows(home))
            return await hold(asked)

        home.house.book.hold = watched  # type: ignore[assignment, method-assign]
        answer = await ask(home.caller())
        assert before == [("RUNNING", answer.headers["x-request-id"])]

    lived(tmp_path, story)


def test_a_lease_is_renewed_while_it_runs(tmp_path: Path) -> None:
    gate = Hold(1)

    async def story(home: Inhouse) -> None:
        running = start(home.caller())
        await gate.waiting.wait()
        home.time.ahead_ms = idempotency.LEASE_S * 1000 - 1
        await renew(home.house)
        (row,) = await rows(home)
        assert row["lease_until_ms"] > home.house.clock.wall_ms() + 50_000
        gate.opened.set()
        assert (await running.end()).status == 200

    lived(tmp_path, story, echo=EchoExecutor(gate=gate))
