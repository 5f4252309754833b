"""M: one tenant may not take all places of the house, nor all of those for bodies that are still coming."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

import pytest

from executor.echo import EchoExecutor
from gateway import guard
from gateway.api import chat
from gateway.api.doorway import PLACES, SENDING_MAX, Doorway
from gateway.api.generate import Generate
from gateway.api.once import Once
from gateway.errors import ApiError
from gateway.guard import FrontBounds
from tests.gateway.inhouse import CHAT, Caller, chat_body, inhouse
from tests.gateway.test_line import Hold


def test_its_places_are_the_fronts() -> None:
    assert FrontBounds().live_max == PLACES
    assert SENDING_MAX < PLACES


def filled(doorway: Doorway, tenant: str, stack: ExitStack) -> int:
    for count in range(doorway.places + 1):
        try:
            stack.enter_context(doorway.inside(tenant))
        except ApiError:
            return count
    raise AssertionError


def test_the_refusal_says_when_to_come_back() -> None:
    with pytest.raises(ApiError) as caught, Doorway(places=0).inside("a"):
        pass
    assert (caught.value.status, caught.value.code) == (429, "concurrency_exceeded")
    assert caught.value.headers["retry-after"] == "1"


def test_one_after_the_other_leaves_room_for_the_next() -> None:
    doorway = Doorway(places=1000)
    with ExitStack() as stack:
        assert [filled(doorway, name, stack) for name in "abcd"] == [750, 188, 47, 12]
        with doorway.inside(None):  # an operator
            pass
        with doorway.inside("e"):
            pass
    with ExitStack() as stack:
        assert filled(doorway, "b", stack) == 750


def test_a_place_is_given_back_whatever_happens() -> None:
    doorway = Doorway(places=4)
    for _ in range(20):
        with pytest.raises(ZeroDivisionError), doorway.inside("a"), doorway.held("a"):
            raise ZeroDivisionError
    assert not doorway._inside
    assert not doorway._sending


def test_a_tenant_whose_streams_fill_the_house_keeps_nobody_else_out(tmp_path: Path) -> None:
    async def run() -> None:
        hold = Hold()
        async with inhouse(tmp_path, echo=EchoExecutor(gate=hold)) as home:
            small = Once(home.house, Generate(home.house, chat.CHAT, lambda: 1), Doorway(places=8))
            ids = iter(range(1000))
            app = guard.front(
                small,
                hosts=["test"],
                origins=(),
                mint=lambda: f"req_{next(ids):024x}",
                report=lambda *_: None,
                stalled=lambda _: None,
            )
            alice = Caller(app, home.tokens["acme/alice"])
            held = [alice.start("POST", CHAT, chat_body(stream=True)) for _ in range(6)]
            async with asyncio.timeout(10):
                while len(home.house.live) < 6:
                    await asyncio.sleep(0.005)
            refused = await alice.chat()
            assert (refused.status, refused.error["code"]) == (429, "concurrency_exceeded")
            carol = Caller(app, home.tokens["globex/carol"]).start("POST", CHAT, chat_body())
            async with asyncio.timeout(10):
                while len(home.house.live) < 7:
                    await asyncio.sleep(0.005)
            hold.opened.set()
            assert (await carol.end()).status == 200
            assert {(await each.end()).status for each in held} == {200}
            assert (await alice.chat()).status == 200
            await home.at_rest()
            assert "concurrency_exceeded" in str(home.audited())

    asyncio.run(run())
