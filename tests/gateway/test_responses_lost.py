"""What becomes of a response over which its gateway died: known at the next start, ended by who asks for that, and with
what was billed for it.  API.md §1; MONEY.md §1 ("Crash recovery")."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from executor.echo import EchoExecutor
from policies.facts import Meters
from tests.gateway.inhouse import Answered, Inhouse, inhouse
from tests.gateway.response_kit import (
    RESPONSES,
    asked,
    events_of,
    followed,
    is_response,
    read,
)
from tests.gateway.test_line import Hold, lived
from tests.gateway.test_responses_background import begin, cancel, parts_of
from tests.gateway.test_responses_stored import at, kept, remove

DATABASE = "lockgate.db"


def killed(
    folder: Path, story: Callable[[Inhouse, str], Awaitable[None]], **fields: object
) -> None:
    """What a house that is killed in the midst of a response leaves, and the story of the next."""

    async def run() -> None:
        gate = Hold(3)
        async with inhouse(folder / "first", echo=EchoExecutor(gate=gate)) as home:
            if fields.get("stream"):
                home.caller().start("POST", RESPONSES, asked(background=True, **fields))
            else:
                await begin(home.caller(), **fields)
            await gate.waiting.wait()
            (id_,) = home.house.stored.running
            shutil.copytree(
                folder / "first", folder / "next", ignore=shutil.ignore_patterns(DATABASE + "*")
            )
            with (
                closing(sqlite3.connect(folder / "first" / DATABASE)) as there,
                closing(sqlite3.connect(folder / "next" / DATABASE)) as copy,
            ):
                there.backup(copy)
        async with inhouse(folder / "next") as home:
            await story(home, id_)

    asyncio.run(run())


def as_lost(answer: Answered) -> dict[str, Any]:
    body: dict[str, Any] = read(answer)
    assert (body["status"], body["error"]["x_code"]) == ("failed", "gateway_lost")
    return body


@pytest.mark.slow
def test_a_start_that_writes_alone_knows_at_once_that_it_is_over(tmp_path: Path) -> None:
    async def story(home: Inhouse, id_: str) -> None:
        alice = home.caller()
        as_lost(await alice.get(at(id_)))
        as_lost(await cancel(alice, id_))
        assert "response.cancelled" not in [each["kind"] for each in home.audited()]
        on = await alice.post(RESPONSES, asked("and?", previous_response_id=id_))
        assert on.status == 200
        await home.house.stored.sweep()
        as_lost(await alice.get(at(id_)))
        assert await kept(home) == 1
        assert (await remove(alice, id_)).status == 200

    killed(tmp_path, story)


@pytest.mark.slow
def test_it_shows_what_was_billed_for_it_and_whether_that_is_an_estimate(tmp_path: Path) -> None:
    async def story(home: Inhouse, id_: str) -> None:
        alice, request_id = home.caller(), "req_" + id_.removeprefix("resp_")
        usage = as_lost(await alice.get(at(id_)))["usage"]
        held = await home.house.book.explain(request_id)
        assert held is not None
        assert (usage["input_tokens"], usage["output_tokens"]) == held.reserved_tokens
        assert usage["x_estimated"] is True
        prompt = held.reserved_tokens[0]
        await home.house.book.settle(request_id, Meters(input=prompt - 2, cached_input=2, output=3))
        usage = as_lost(await alice.get(at(id_)))["usage"]
        assert usage == {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
            "output_tokens": 3,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + 3,
        }

    killed(tmp_path, story, max_output_tokens=20)


@pytest.mark.slow
def test_its_stream_ends_in_what_became_of_it(tmp_path: Path) -> None:
    """Whole for who comes anew, and for who has heard its beginning right behind that."""

    async def story(home: Inhouse, id_: str) -> None:
        alice = home.caller()
        became = as_lost(await alice.get(at(id_)))
        answer = await alice.get(at(id_), "stream=true")
        assert answer.status == 200, answer.body
        events = events_of(answer.body)
        found = followed(events)
        assert (found.begun, found.status, found.last) == (["created"], "failed", became)
        assert found.error is not None
        assert found.error["code"] == "gateway_lost"
        assert events[0]["response"]["status"] == "queued"
        for after in (0, 7):
            part = await alice.get(at(id_), f"stream=true&starting_after={after}")
            *_, error, last = parts = parts_of(part.body)
            assert [each["sequence_number"] for each in parts] == [after + 1, after + 2]
            assert (error["type"], last["type"]) == ("error", "response.failed")
            assert last["response"] == became
        bob = await home.caller("acme/bob").get(at(id_), "stream=true")
        assert (bob.status, bob.error["code"]) == (404, "response_not_found")
        await home.house.stored.sweep()
        assert (await alice.get(at(id_), "stream=true")).body == answer.body

    killed(tmp_path, story, stream=True)


@pytest.mark.slow
def test_what_was_no_stream_is_none_when_it_is_lost(tmp_path: Path) -> None:
    async def story(home: Inhouse, id_: str) -> None:
        answer = await home.caller().get(at(id_), "stream=true")
        assert (answer.status, answer.error["param"]) == (400, "stream")

    killed(tmp_path, story)


def test_the_stream_of_one_that_nobody_answered_for_ends_as_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.stored.LOOK_S", 0.001)
    gate = Hold(3)

    async def story(home: Inhouse) -> None:
        alice, stored = home.caller(), home.house.stored
        alice.start("POST", RESPONSES, asked(background=True, stream=True))
        await gate.waiting.wait()
        ((id_, work),) = stored.running.items()
        stored.running.clear()  # at another gateway, for all that is known here
        elsewhere = await alice.get(at(id_), "stream=true")
        assert (elsewhere.status, elsewhere.error["param"]) == (400, "stream")
        assert "by the gateway that makes it" in elsewhere.error["message"]
        body = read(await cancel(alice, id_))
        found = followed(events_of((await alice.get(at(id_), "stream=true")).body))
        assert (found.status, found.error, found.last) == ("cancelled", None, body)
        stored.running[id_] = work
        await work.cancel()

    lived(tmp_path, story, echo=EchoExecutor(gate=gate))


@pytest.mark.slow
def test_what_was_never_billed_has_used_nothing(tmp_path: Path) -> None:
    async def story(home: Inhouse, id_: str) -> None:
        await home.house.book.settle("req_" + id_.removeprefix("resp_"), Meters())
        usage = as_lost(await home.caller().get(at(id_)))["usage"]
        assert usage["total_tokens"] == 0
        assert "x_estimated" not in usage

    killed(tmp_path, story)


def test_where_nobody_answers_for_it_cancelling_ends_it_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its gateway may be dead or deaf: who asked for its end is told of one, and it is never anything else."""
    monkeypatch.setattr("gateway.stored.LOOK_S", 0.001)
    gate = Hold(3)

    async def story(home: Inhouse) -> None:
        alice, stored = home.caller(), home.house.stored
        begun = await begin(alice)
        await gate.waiting.wait()
        work = stored.running.pop(begun["id"])  # at another gateway, for all that is known here
        for _ in range(2):
            body = read(await cancel(alice, begun["id"]))
            assert (body["status"], body["error"], body["usage"]) == ("cancelled", None, None)
        assert read(await alice.get(at(begun["id"]))) == body
        assert [each["kind"] for each in home.audited()].count("response.cancelled") == 1
        stored.running[begun["id"]] = work
        gate.opened.set()  # it was deaf: what it says now is not kept
        await home.house.live.emptied()
        await home.at_rest()
        body = read(await alice.get(at(begun["id"])))
        assert (body["status"], body["output"]) == ("cancelled", [])
        assert body["usage"]["output_tokens"] > 0  # and billed, as the book says

    lived(tmp_path, story, echo=EchoExecutor(gate=gate))


def test_one_that_may_still_be_made_elsewhere_is_in_progress(tmp_path: Path) -> None:
    gate = Hold(3)

    async def story(home: Inhouse) -> None:
        alice, stored = home.caller(), home.house.stored
        begun = await begin(alice)
        await gate.waiting.wait()
        work = stored.running.pop(begun["id"])
        body = (await alice.get(at(begun["id"]))).json()
        is_response(body)
        assert body["status"] in {"queued", "in_progress"}
        assert body["usage"] is None
        stored.running[begun["id"]] = work
        await work.cancel()

    lived(tmp_path, story, echo=EchoExecutor(gate=gate))
