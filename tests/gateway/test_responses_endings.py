"""However a response's stream ends, each pair of events that was begun is closed, and its last event has the response
as it became.  API.md §1, §2 (72), §3."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor.echo import EchoExecutor
from policies.facts import Budget
from tests.gateway.inhouse import PLAN, Answered, Exchange, Inhouse, inhouse
from tests.gateway.once_kit import KEY, keyed, rows, turns
from tests.gateway.response_kit import RESPONSES, Followed, asked, events_of, followed, read
from tests.gateway.test_line import Hold, lived
from tests.gateway.test_responses import stopped
from tests.gateway.test_responses_stored import at, kept

BACKGROUND: dict[str, object] = {"background": True}
STORED: dict[str, object] = {"store": True}
_DELTA = re.compile(rb'"delta":"([^"]*)"')


def id_of(reading: Exchange) -> str:
    text = b"".join(reading.parts).decode()
    return text[text.index("resp_") :][:29]


def has_heard(reading: Exchange, letters: int) -> bool:
    """The beginning, and so much of the answer's text."""
    heard = b"".join(reading.parts)
    return b"in_progress" in heard and sum(map(len, _DELTA.findall(heard))) == letters


async def by_id(home: Inhouse, id_: str) -> None:
    assert read(await home.caller().post(at(id_, "/cancel"), b""))["status"] == "cancelled"


async def by_key(home: Inhouse, id_: str) -> None:
    body = {"idempotency_key": KEY}
    answer = await home.caller().post("/v1/requests/cancel", body)
    assert answer.json() == {"cancelled": True}


async def revoked(home: Inhouse, id_: str) -> None:
    live = next(iter(home.house.live._requests.values()))
    named = {"tenant": "acme", "issuer": live.who.issuer, "subject": "alice", "reason": "gone"}
    assert (await home.operator().post("/v1/admin/tokens/revoke", named)).status == 200


async def lost(home: Inhouse, id_: str) -> None:
    home.echo.fail()


async def drained(home: Inhouse, id_: str) -> None:
    home.house.live.close(stopped)


async def closed(home: Inhouse, id_: str) -> None:
    await home.house.stored.aclose()


End = Callable[[Inhouse, str], Awaitable[None]]
ENDS: tuple[tuple[End, dict[str, object], str], ...] = (
    *((by_key, fields, "cancelled") for fields in ({}, STORED, BACKGROUND)),
    (by_id, BACKGROUND, "cancelled"),
    *((end, fields, "failed") for end in (revoked, lost, drained) for fields in ({}, BACKGROUND)),
    (closed, BACKGROUND, "failed"),
)
FREE = range(4)
"""Tokens that come before the end does."""


@pytest.mark.slow
@pytest.mark.parametrize("free", FREE)
@pytest.mark.parametrize(
    ("end", "fields", "became"),
    ENDS,
    ids=lambda it: it.__name__ if callable(it) else "+".join(it) if isinstance(it, dict) else it,
)
def test_it_ends_in_closed_pairs_and_as_what_it_became(
    tmp_path: Path, end: End, fields: dict[str, object], became: str, free: int
) -> None:
    gate = Hold(free)

    async def story(home: Inhouse) -> None:
        alice = keyed(home.caller())
        body = asked(stream=True, stream_options={"x_status": True}, **fields)
        reading, along = (alice.start("POST", RESPONSES, body) for _ in range(2))
        await gate.waiting.wait()
        for each in (reading, along):  # who reads along reads the same tape
            await each.until(lambda it: has_heard(it, free))
        id_ = id_of(reading)
        await end(home, id_)
        heard, also = await reading.end(), await along.end()
        assert reading.complete
        assert along.complete
        if end is not revoked:  # who reads along may hear no more of it then, not even its end
            assert also.body == heard.body
        found = followed(events_of(heard.body))
        assert found.status == became
        assert len(found.output) == bool(free)
        if became == "cancelled":
            assert found.last["usage"]["output_tokens"] == free
        await home.at_rest()
        if fields and end is not revoked:
            assert (await home.caller().get(at(id_))).json() == found.last
        if "background" in fields and end is not revoked:
            again = await home.caller().get(at(id_), "stream=true")
            assert again.body == heard.body
        if not fields:
            assert await kept(home) == 0

    lived(tmp_path, story, echo=EchoExecutor(gate=gate))


@pytest.mark.parametrize("fields", ({}, BACKGROUND), ids=("plain", "background"))
def test_a_spent_budget_closes_what_is_open(tmp_path: Path, fields: dict[str, object]) -> None:
    async def story(home: Inhouse) -> None:
        heard = await home.caller().post(RESPONSES, asked("x" * 60, stream=True, **fields))
        found = followed(events_of(heard.body))
        assert (found.status, found.last["x_limit"]) == ("incomplete", {"reason": "token_budget"})
        assert found.last["output"][0]["status"] == "incomplete"
        await home.house.live.emptied()

    prompt = 60 + len("user\nassistant\n") + 5
    plan = replace(PLAN, budget=Budget(prompt * 200 + 20 * 600))
    lived(tmp_path, story, plan=plan)


def test_what_is_cancelled_as_it_is_being_kept_still_says_what_it_became(tmp_path: Path) -> None:
    """It had ended by itself; only its last words were to come."""
    held, go = asyncio.Event(), asyncio.Event()

    async def story(home: Inhouse) -> None:
        keep = home.house.stored.keep

        async def slow(*args: Any) -> bool:
            held.set()
            await go.wait()
            return await keep(*args)

        home.house.stored.keep = slow  # type: ignore[method-assign,assignment]
        reading = home.caller().start("POST", RESPONSES, asked(stream=True, **BACKGROUND))
        await held.wait()
        id_ = id_of(reading)
        cancel = home.caller().start("POST", at(id_, "/cancel"), b"")
        await turns(lambda: home.house.stored.running[id_].cancelling)
        go.set()
        assert read(await cancel.end())["status"] == "completed"
        heard = await reading.end()
        assert reading.complete
        assert followed(events_of(heard.body)).status == "completed"

    lived(tmp_path, story)


def test_what_crashed_in_the_background_says_so_and_not_that_the_server_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Hold(2)

    async def run() -> Followed:
        async with inhouse(tmp_path, echo=EchoExecutor(gate=gate)) as home:
            reading = home.caller().start("POST", RESPONSES, asked(stream=True, **BACKGROUND))
            await reading.until(lambda it: has_heard(it, 2))

            def broken(*_: object) -> bytes:
                raise ZeroDivisionError

            monkeypatch.setattr("gateway.api.responses.stream.ResponseStream.delta", broken)
            gate.opened.set()
            heard = await reading.end()
            assert reading.complete
            return followed(events_of(heard.body))

    found = asyncio.run(run())
    assert found.status == "failed"
    assert found.last["error"]["x_code"] == "internal_error"


def test_a_key_whose_stream_was_stopped_is_closed_or_free(tmp_path: Path) -> None:
    """As by who left: closed where something was billed, however it was said."""
    gate = Hold(2)

    async def story(home: Inhouse) -> None:
        for fields in ({}, BACKGROUND):
            reading = keyed(home.caller()).start("POST", RESPONSES, asked(stream=True, **fields))
            await reading.until(lambda e: b"output_text.delta" in b"".join(e.parts))
            await by_key(home, "")
            heard: Answered = await reading.end()
            assert followed(events_of(heard.body)).status == "cancelled"
            again = await keyed(home.caller()).post(RESPONSES, asked(stream=True, **fields))
            assert (again.status, again.error["code"]) == (409, "idempotency_result_gone")
            (row,) = await rows(home)
            assert row["why"] == "cut"

            def forget(conn: Any) -> None:
                conn.exec_driver_sql("DELETE FROM idempotency")

            await home.store.write(forget)

    lived(tmp_path, story, echo=EchoExecutor(gate=gate))
