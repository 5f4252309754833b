"""Stopping one's own work by its `Idempotency-Key`, instead of only going away (API.md §2, case 57)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor.contract import Submit
from executor.echo import EchoExecutor
from gateway.app import GENERATING
from gateway.house import Timings
from policies.facts import Limits
from tests.gateway.inhouse import PLAN, Answered, Caller, Inhouse
from tests.gateway.once_kit import KEY, ask, keyed, reservations, start, turns
from tests.gateway.response_kit import RESPONSES, asked
from tests.gateway.test_line import Hold, lived

CANCEL = "/v1/requests/cancel"


async def cancel(caller: Caller, key: object = KEY) -> Answered:
    return await caller.post(CANCEL, {"idempotency_key": key})


@pytest.mark.parametrize("stream", (False, True))
def test_what_is_stopped_is_over_at_once_and_billed_once(tmp_path: Path, *, stream: bool) -> None:
    gate = Hold(3)

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        running = start(alice, "abcdefghij", stream=stream)
        await gate.waiting.wait()
        assert home.echo.gauges.running == 1
        stopped = await cancel(alice)
        assert (stopped.status, stopped.json()) == (200, {"cancelled": True})
        gauges = home.echo.gauges
        assert (gauges.running, gauges.waiting) == (0, 0), "the slot is free, nobody lingers"
        assert gauges.blocks_free == gauges.blocks_total
        running.leave()
        await asyncio.gather(running.task, return_exceptions=True)
        (row,) = await reservations(home)
        assert row["state"] == "SETTLED"
        usage = (await home.operator().get("/v1/admin/usage", "by=tenant")).json()["rows"]
        assert [each["output_tokens"] for each in usage] == [3]
        again = await ask(alice, "abcdefghij", stream=stream)
        assert (again.status, again.error["code"]) == (409, "idempotency_result_gone")
        assert (await cancel(alice)).json() == {"cancelled": False}

    lived(tmp_path, story, echo=EchoExecutor(gate=gate))


@pytest.mark.parametrize("stream", (False, True))
def test_who_heard_nothing_yet_hears_that_it_was_stopped(tmp_path: Path, *, stream: bool) -> None:
    """An answer like any other, and one that no client asks for again by itself."""
    gate = Hold()

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        running = start(alice, stream=stream)
        await gate.waiting.wait()
        assert (await cancel(alice)).json() == {"cancelled": True}
        told = await running.end()
        assert (told.status, told.error["code"]) == (409, "request_cancelled")
        assert told.headers["x-should-retry"] == "false"
        (row,) = await reservations(home)
        assert row["state"] == "SETTLED"

    lived(tmp_path, story, echo=EchoExecutor(gate=gate))


def test_who_waits_is_stopped_at_no_cost_and_its_key_is_free(tmp_path: Path) -> None:
    gate = Hold()

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        first = start(home.caller("acme/bob"), key="other")
        await gate.waiting.wait()
        waiting = start(alice, stream=True)
        await turns(lambda: home.echo.gauges.waiting == 1)
        assert (await cancel(alice)).json() == {"cancelled": True}
        assert home.echo.gauges.waiting == 0
        waiting.leave()
        await asyncio.gather(waiting.task, return_exceptions=True)
        gate.opened.set()
        assert (await ask(alice, stream=True)).events()[-1] == "[DONE]"
        assert (await first.end()).status == 200

    lived(tmp_path, story, echo=EchoExecutor(gate=gate, seqs_max=1))


def test_everybody_who_reads_it_is_cut_off(tmp_path: Path) -> None:
    gate = Hold(2)

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        readers = [start(alice, "abcdef", stream=True) for _ in range(3)]
        for each in readers:
            await each.until(lambda it: it.status == 200)
        assert (await cancel(alice)).json() == {"cancelled": True}
        await asyncio.gather(*(each.task for each in readers), return_exceptions=True)
        assert not any(each.complete for each in readers), "an end that is none of the answer's"

    lived(tmp_path, story, echo=EchoExecutor(gate=gate))


@pytest.mark.parametrize("other", ("acme/bob", "globex/carol", "acme/admin"))
def test_nobody_stops_anothers_nor_learns_of_it(tmp_path: Path, other: str) -> None:
    gate = Hold(1)

    async def story(home: Inhouse) -> None:
        running = start(home.caller(), stream=True)
        await gate.waiting.wait()
        theirs = await cancel(home.caller(other))
        absent = await cancel(home.caller(other), "none")
        assert (
            (theirs.status, theirs.body)
            == (absent.status, absent.body)
            == (200, b'{"cancelled":false}')
        )
        assert home.echo.gauges.running == 1
        gate.opened.set()
        assert (await running.end()).events()[-1] == "[DONE]"

    lived(tmp_path, story, echo=EchoExecutor(gate=gate))


BAD: tuple[Any, ...] = (None, [], {}, {"idempotency_key": 3}, {"idempotency_key": "a b"}, {"idempotency_key": ""}, {"idempotency_key": "ü" * 9}, {"idempotency_key": "a" * 256})  # fmt: skip


@pytest.mark.parametrize("body", BAD)
def test_what_names_no_key_is_a_400(tmp_path: Path, body: object) -> None:
    async def story(home: Inhouse) -> None:
        refused = await home.caller().post(CANCEL, body)
        assert refused.status == 400
        assert refused.error["code"] in {"invalid_request", "invalid_idempotency_key", "invalid_json"}  # fmt: skip
        assert (await Caller(home.public, None).post(CANCEL, body)).status == 401

    lived(tmp_path, story)


def test_who_has_used_up_their_rate_can_still_stop(tmp_path: Path) -> None:
    gate = Hold(1)
    plan = replace(PLAN, limits=Limits(rpm=1))

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        running = start(alice, stream=True)
        await gate.waiting.wait()
        assert (await alice.chat()).status == 429
        by_key = await cancel(keyed(alice, "stop"))
        assert by_key.json() == (await cancel(alice)).json() | {"cancelled": True}
        running.leave()
        await asyncio.gather(running.task, return_exceptions=True)

    lived(tmp_path, story, echo=EchoExecutor(gate=gate), plan=plan)


def test_the_work_of_every_endpoint_that_asks_a_model_can_be_stopped(tmp_path: Path) -> None:
    asked: dict[str, dict[str, object]] = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "abcdef"}]},
        "/v1/completions": {"prompt": "abcdef"},
        "/v1/responses": {"input": "abcdef"},
        "/v1/messages": {"messages": [{"role": "user", "content": "abcdef"}], "max_tokens": 64},
    }
    gate = Hold(1)

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        for family in GENERATING:
            body = {"model": "echo", "stream": True, **asked[family.route]}
            running = keyed(alice).start("POST", family.route, body)
            await turns(lambda: home.echo.gauges.running == 1)
            assert (await cancel(alice)).json() == {"cancelled": True}, family.route
            running.leave()
            await asyncio.gather(running.task, return_exceptions=True)

    lived(tmp_path, story, echo=EchoExecutor(gate=gate))


def test_one_that_is_stopped_before_it_has_begun_never_runs(tmp_path: Path) -> None:
    async def gate(job: Submit, token: int) -> None:
        await asyncio.Event().wait()

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        running = start(alice, stream=True)
        await turns(lambda: len(home.house.runs) == 1)
        assert (await cancel(alice)).json() == {"cancelled": True}
        assert home.echo.open_turns == 0
        running.leave()
        await asyncio.gather(running.task, return_exceptions=True)

    lived(tmp_path, story, echo=EchoExecutor(gate=gate))


@pytest.mark.parametrize("stream", (False, True))
def test_what_a_key_began_in_the_background_is_over_too(tmp_path: Path, *, stream: bool) -> None:
    gate = Hold(3)

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        body = asked("abcdefghij", background=True, stream=stream)
        first = keyed(alice).start("POST", RESPONSES, body)
        await gate.waiting.wait()
        if stream:
            await first.until(lambda e: b"output_text.delta" in b"".join(e.parts))
        else:
            assert (await first.end()).json()["status"] in {"queued", "in_progress"}
        assert (await cancel(home.caller("acme/bob"))).json() == {"cancelled": False}
        assert (await cancel(alice)).json() == {"cancelled": True}
        assert (home.echo.gauges.running, home.echo.gauges.waiting) == (0, 0)
        first.leave()
        await asyncio.gather(first.task, return_exceptions=True)
        again = await keyed(alice).post(RESPONSES, body)
        assert again.status == (409 if stream else 200), "closed or told again, and not begun again"
        (row,) = await reservations(home)
        assert row["state"] == "SETTLED"
        id_ = row["request_id"].removeprefix("req_")
        found = await alice.get(f"{RESPONSES}/resp_{id_}")
        assert found.json()["status"] == "cancelled"
        assert (await cancel(alice)).json() == {"cancelled": False}

    lived(tmp_path, story, echo=EchoExecutor(gate=gate))


def test_what_goes_on_in_the_background_is_not_begun_again_by_its_key(tmp_path: Path) -> None:
    gate = Hold(3)

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        body = asked("abcdefghij", background=True, stream=True)
        first = keyed(alice).start("POST", RESPONSES, body)
        await first.until(lambda e: b"output_text.delta" in b"".join(e.parts))
        first.leave()
        await asyncio.gather(first.task, return_exceptions=True)
        await turns(lambda: not len(home.house.runs))
        again = await keyed(alice).post(RESPONSES, body)
        assert (again.status, again.error["code"]) == (409, "idempotency_result_gone")
        gate.opened.set()
        await home.house.live.emptied()
        await home.at_rest()
        (row,) = await reservations(home)
        assert row["state"] == "SETTLED"

    lived(tmp_path, story, echo=EchoExecutor(gate=gate), timings=Timings(linger_ms=200))
