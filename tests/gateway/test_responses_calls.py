"""What is asked of a stored response by its query, and who comes to its events as they overflow.  API.md §1."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from executor.echo import EchoExecutor
from gateway.api.responses.making import record as at_once
from tests.gateway.inhouse import Inhouse
from tests.gateway.response_kit import RESPONSES, asked, events_of, followed
from tests.gateway.test_line import Hold, lived
from tests.gateway.test_responses_endings import has_heard, id_of
from tests.gateway.test_responses_stored import at, stored

UNREADABLE = (
    ("include=zz", "include"),
    ("include[]=zz", "include"),
    ("include[]=message.output_text.logprobs&include[]=zz", "include"),
    ("stream=maybe", "stream"),
    ("stream=", "stream"),
    ("stream=true&stream=true", None),
    ("%73tream=maybe", "stream"),
    ("starting_after=x", "starting_after"),
    ("starting_after=-2", "starting_after"),
    ("starting_after=1.5", "starting_after"),
    ("stream=true&starting_after=", "starting_after"),
    ("starting_after=1&starting_after=2", None),
    ("include_obfuscation=maybe", "include_obfuscation"),
    ("other=1", "other"),
)
LISTING = ("include=zz", "include[]=zz", "limit=1&limit=2", "stream=true", "other=1")


def test_a_query_that_cannot_be_read_is_a_400_with_its_name(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice = home.caller()
        id_ = (await stored(alice))["id"]
        for query, param in UNREADABLE:
            answer = await alice.get(at(id_), query)
            assert answer.status == 400, query
            assert param is None or answer.error["param"] == param
        for query in LISTING:
            assert (await alice.get(at(id_, "/input_items"), query)).status == 400, query
        for query in ("", "stream=false", "starting_after=3", "include_obfuscation=false"):
            assert (await alice.get(at(id_), query)).status == 200, query
        every = "include[]=message.output_text.logprobs&include[]=reasoning.encrypted_content"
        for more in ("", "/input_items"):
            assert (await alice.get(at(id_, more), every)).status == 200
        asked_so = await alice.get(at(id_), "%73tream=true")
        assert (asked_so.status, asked_so.error["param"]) == (400, "stream")

    lived(tmp_path, story)


def test_every_event_is_behind_the_one_before_the_first(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice = home.caller()
        made = await alice.post(RESPONSES, asked(background=True, stream=True))
        id_ = followed(events_of(made.body)).last["id"]
        await home.at_rest()
        for query in ("stream=true", "stream=true&starting_after=-1"):
            assert (await alice.get(at(id_), query)).body == made.body

    lived(tmp_path, story)


def test_who_comes_as_its_events_overflow_hears_them_from_the_first_or_is_not_let_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is let in, and before it listens more is told than is kept for anybody who comes later."""
    monkeypatch.setattr("gateway.api.responses.create.RESULT_BYTES_MAX", 4000)
    gate = Hold(2)

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        first = alice.start("POST", RESPONSES, asked("x" * 60, background=True, stream=True))
        await first.until(lambda it: has_heard(it, 2))
        id_ = id_of(first)
        held, go = asyncio.Event(), asyncio.Event()

        async def record(*args: Any) -> None:
            held.set()
            await go.wait()
            await at_once(*args)

        monkeypatch.setattr("gateway.api.responses.calls.record", record)
        second = alice.start("GET", at(id_), query="stream=true")
        await held.wait()
        gate.opened.set()
        work = home.house.stored.running[id_]
        async with asyncio.timeout(20):
            while work.tape.admits:
                await asyncio.sleep(0)
        monkeypatch.setattr("gateway.api.responses.calls.record", at_once)
        late = await alice.get(at(id_), "stream=true")
        assert (late.status, late.error["code"]) == (409, "response_in_progress")
        go.set()
        whole, heard = await first.end(), await second.end()
        assert heard.body == whole.body
        assert followed(events_of(heard.body)).status == "completed"

    lived(tmp_path, story, echo=EchoExecutor(gate=gate))
