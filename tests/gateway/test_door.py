"""Turned away at the door: at once, with an answer that every client reads, and with nothing left in the way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from executor.echo import EchoExecutor
from gateway import listen
from gateway.connection import Bounds
from gateway.door import KNOWN_MAX, KNOWN_S, UNREAD_BYTES_MAX, Door
from gateway.gate import STRANGER, Caller, Gate
from gateway.middleware.live import Places
from policies.shedding import TERMS, Rank
from policies.verdict import Allow, Deny
from tenants.asks import Hold as Held
from tenants.asks import HoldAsk
from tests.gateway.inhouse import CHAT, chat_body, inhouse
from tests.gateway.raw_http import Answer, Running, fronted, hypercorn, request, uvicorn_server
from tests.gateway.test_line import Hold
from tests.gateway.test_listen import GET, Tiny

AWAY = (503, "overloaded")
ALICE = [(b"authorization", b"Bearer alice")]
ORIGIN = "https://app.example"


class Least(Gate):
    """Open to who has at least this rank; whoever is let in has a turn at once."""

    def __init__(self, least: int) -> None:
        super().__init__(lambda: 0.0)
        self.least = least
        self.waiting = 1

    def open_to(self, who: Caller) -> bool:
        return who.rank >= self.least

    async def enter(self, request_id: str, who: Caller) -> None:
        pass


def door(least: int = 9, **more: Any) -> Door:
    return Door(mint=lambda: "req_door", gate=Least(least), draw=lambda: 0.5, **more)


def play(
    scene: Callable[[Running, Tiny], Awaitable[None]],
    at: Door,
    *,
    bounds: Bounds | None = None,
) -> None:
    async def run() -> None:
        tiny = Tiny()
        app = fronted(tiny, origins=[ORIGIN], door=at)
        async with hypercorn(app, door=at, bounds=bounds) as running:
            await scene(running, tiny)

    with asyncio.Runner(loop_factory=listen.loop_factory()) as runner:
        runner.run(run())


def said(answer: Answer) -> tuple[int, str | None]:
    return answer.status, answer.code


def opened(at: Door) -> None:
    assert isinstance(at.gate, Least)
    at.gate.least = 0


def test_the_answer_is_a_503_that_says_when_to_come_back_and_costs_no_connection() -> None:
    at = door()

    async def scene(running: Running, tiny: Tiny) -> None:
        async with running.client() as client:
            for _ in range(3):
                await client.send(GET)
                answer = await client.answer()
                assert said(answer) == AWAY
                assert answer.headers["retry-after"] == "6"
                assert answer.headers["x-request-id"] == "req_door"
                assert answer.headers["content-type"] == "application/json"
                assert answer.headers["cache-control"] == "no-store"
                assert "connection" not in answer.headers
            assert not tiny.entered.is_set()
            opened(at)
            await client.send(GET)
            assert (await client.answer()).status == 200

    play(scene, at)
    assert at.turned == {Rank.STRANGER: 3}


INSIDE = request("GET /v1/inside")


@pytest.mark.parametrize(
    "data",
    (
        request("POST /v1/echo", body=INSIDE),
        request("POST /v1/echo", "Transfer-Encoding: chunked")
        + b"%x\r\n%b\r\n0\r\n\r\n" % (len(INSIDE), INSIDE),
        request("DELETE /v1/echo", body=b""),
    ),
)
@pytest.mark.parametrize("behind", (b"", GET))
def test_a_body_is_read_away_and_never_taken_for_a_request(data: bytes, behind: bytes) -> None:
    at = door()

    async def scene(running: Running, tiny: Tiny) -> None:
        async with running.client() as client:
            await client.send(data + behind)
            for _ in range(2 if behind else 1):
                assert said(await client.answer()) == AWAY
            opened(at)
            await client.send(request("GET /v1/last"))
            assert (await client.answer()).body == b"/v1/last"

    play(scene, at)


def test_a_body_that_comes_behind_its_answer_is_read_away_too() -> None:
    at = door()
    head, _, body = request("POST /v1/echo", body=INSIDE).partition(b"\r\n\r\n")

    async def scene(running: Running, tiny: Tiny) -> None:
        async with running.client() as client:
            await client.send(head + b"\r\n\r\n" + body[:3])
            assert said(await client.answer()) == AWAY
            opened(at)
            await client.send(body[3:] + GET)
            assert (await client.answer()).body == b"/v1/x"

    play(scene, at)


@pytest.mark.parametrize(
    "head",
    (
        request("POST /v1/echo", f"Content-Length: {UNREAD_BYTES_MAX + 1}"),
        request("POST /v1/echo", "Transfer-Encoding: chunked") + b"3\r\nabc\r\n",
        request("POST /v1/echo", "Content-Length: 5", "Expect: 100-continue"),
        request("POST /v1/echo", "Content-Length: 5", "eXpEcT:100-Continue"),
    ),
)
def test_where_nothing_can_come_behind_the_connection_is_closed(head: bytes) -> None:
    async def scene(running: Running, tiny: Tiny) -> None:
        async with running.client() as client:
            await client.send(head)
            answer = await client.answer()
            assert said(answer) == AWAY
            assert answer.headers["connection"] == "close"
            await client.send(b"x" * 4096)
            assert await client.rest() == b""
        assert not tiny.entered.is_set()

    play(scene, door())


def test_a_body_that_never_ends_is_cut_off() -> None:
    async def scene(running: Running, tiny: Tiny) -> None:
        async with running.client() as client:
            await client.send(request("POST /v1/echo", "Content-Length: 5") + b"x")
            assert said(await client.answer()) == AWAY
            assert await client.rest() == b""

    play(scene, door(), bounds=Bounds(head_s=0.05))


def test_head_has_no_body_behind_its_answer() -> None:
    async def scene(running: Running, tiny: Tiny) -> None:
        async with running.client() as client:
            await client.send(request("HEAD /v1/x"))
            assert (await client.head()).status == 503
            await client.send(GET)
            assert said(await client.answer()) == AWAY

    play(scene, door())


def test_who_is_turned_away_waits_for_the_answer_before() -> None:
    at = door(0)

    async def scene(running: Running, tiny: Tiny) -> None:
        async with running.client() as client:
            await client.send(request("POST /v1/wait", body=b"x"))
            await tiny.entered.wait()
            assert isinstance(at.gate, Least)
            at.gate.least = 9
            await client.send(GET)
            tiny.release.set()
            assert (await client.answer()).body == b"released"
            assert said(await client.answer()) == AWAY

    play(scene, at)


@pytest.mark.parametrize("path", ("/health", "/ready", "/health?x=1"))
def test_probes_are_never_turned_away(path: str) -> None:
    async def scene(running: Running, tiny: Tiny) -> None:
        assert (await running.ask(request(f"GET {path}"))).status == 200

    play(scene, door(places=Places(most=1, live=1)))


@pytest.mark.parametrize("path", ("/healthz", "/%68ealth", "//health", "/health/"))
def test_what_only_looks_like_a_probe_is_turned_away(path: str) -> None:
    async def scene(running: Running, tiny: Tiny) -> None:
        assert said(await running.ask(request(f"GET {path}"))) == AWAY

    play(scene, door())


@pytest.mark.parametrize(
    ("header", "status"),
    (
        ("Authorization: Bearer alice", 200),
        ("AUTHORIZATION:\tBearer alice  ", 200),
        ("Authorization: Bearer alic", 503),
        ("Authorization: Bearer alice2", 503),
        ("Authorization: bearer alice", 503),  # another spelling is known by itself
        ("X-Authorization: Bearer alice", 503),
        ("X: 1", 503),
    ),
)
def test_whose_credential_was_good_lately_goes_before_strangers(header: str, status: int) -> None:
    at = door(Rank.WEIGHTED)

    async def scene(running: Running, tiny: Tiny) -> None:
        at.met(ALICE, "acme", lambda: Rank.WEIGHTED)
        assert (await running.ask(request("GET /v1/x", header))).status == status

    play(scene, at)


def test_a_credential_in_the_body_is_none() -> None:
    at = door(Rank.WEIGHTED)

    async def scene(running: Running, tiny: Tiny) -> None:
        at.met(ALICE, "acme", lambda: Rank.WEIGHTED)
        data = request("POST /v1/echo", body=b"\r\nAuthorization: Bearer alice\r\n")
        assert said(await running.ask(data)) == AWAY

    play(scene, at)


@pytest.mark.parametrize(("live", "rank", "status"), ((80, 1, 200), (85, 1, 503), (99, 3, 200)))
def test_the_last_places_are_kept_for_the_higher_ranks(live: int, rank: int, status: int) -> None:
    at = door(0, places=Places(most=100, live=live))

    async def scene(running: Running, tiny: Tiny) -> None:
        at.met(ALICE, "acme", lambda: Rank(rank))
        answer = await running.ask(request("GET /v1/x", "Authorization: Bearer alice"))
        assert answer.status == status

    play(scene, at)


def test_a_browser_of_a_listed_origin_can_read_the_refusal_and_ask_first() -> None:
    async def scene(running: Running, tiny: Tiny) -> None:
        answer = await running.ask(request("GET /v1/x", f"Origin: {ORIGIN}"))
        assert said(answer) == AWAY
        assert answer.headers["access-control-allow-origin"] == ORIGIN
        assert "retry-after" in answer.headers["access-control-expose-headers"]
        assert answer.headers["vary"] == "Origin"
        answer = await running.ask(request("GET /v1/x", "Origin: https://other.example"))
        assert "access-control-allow-origin" not in answer.headers
        ask = request("OPTIONS /v1/x", f"Origin: {ORIGIN}", "Access-Control-Request-Method: POST")
        assert (await running.ask(ask)).status == 204
        assert said(await running.ask(request("OPTIONS /v1/x"))) == AWAY

    play(scene, door(origins=[ORIGIN]))


def test_anthropics_clients_read_it_as_theirs() -> None:
    async def scene(running: Running, tiny: Tiny) -> None:
        reads = "Anthropic-Version: 2023-06-01"
        for data in (request("POST /v1/messages", body=b"{}"), request("GET /v1/models", reads)):
            answer = await running.ask(data)
            told = msgspec.json.decode(answer.body)
            assert (told["type"], told["error"]["type"]) == ("error", "overloaded_error")
            assert answer.headers["request-id"] == told["request_id"] == "req_door"
            assert said(answer) == AWAY
        assert "request-id" not in (await running.ask(request("GET /v1/models"))).headers

    play(scene, door())


def test_behind_another_server_the_layer_turns_away() -> None:
    """Without the byte level: later, and with the same words."""
    at = door()

    async def run() -> None:
        tiny = Tiny()
        async with uvicorn_server(fronted(tiny, door=at)) as running:
            assert said(await running.ask(GET)) == AWAY
            assert (await running.ask(request("GET /health"))).status == 200

    asyncio.run(run())


# What is known of credentials


def test_what_is_known_is_bounded_and_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    at, asked = Door(), 0
    now = [0.0]
    monkeypatch.setattr("gateway.door.time.monotonic", lambda: now[0])

    def rank() -> Rank:
        nonlocal asked
        asked += 1
        return Rank.WEIGHTED if asked == 1 else Rank.BACKFILL

    for _ in range(3):
        at.met(ALICE, "acme", rank)
    assert asked == 1
    assert at.caller(ALICE) == Caller(Rank.WEIGHTED, "acme")
    now[0] += KNOWN_S + 1
    assert at.caller(ALICE).rank is Rank.WEIGHTED  # until it comes again
    at.met(ALICE, "acme", rank)
    assert at.caller(ALICE).rank is Rank.BACKFILL
    for n in range(KNOWN_MAX):
        at.met([(b"x-api-key", b"%d" % n)], "acme", lambda: Rank.WEIGHTED)
    assert len(at._known) == KNOWN_MAX
    assert at.caller(ALICE) == STRANGER
    assert b"alice" not in repr(at).encode()


def test_the_line_tells_the_door_whom_it_let_in_and_whom_no_longer(tmp_path: Path) -> None:
    async def run() -> None:
        async with inhouse(tmp_path) as home:
            at = home.house.door
            headers = [(b"authorization", b"Bearer " + home.tokens["acme/alice"].encode())]
            assert at.caller(headers) == STRANGER
            assert (await home.caller().chat()).status == 200
            assert at.caller(headers) == Caller(Rank.WEIGHTED, "acme")
            await home.house.directory.suspend("acme", actor="operator")
            assert (await home.caller().chat()).status == 403
            assert at.caller(headers) == STRANGER

    asyncio.run(run())


# Turns in the line


def test_who_waits_for_a_model_has_no_turn(tmp_path: Path) -> None:
    async def run() -> None:
        hold = Hold()
        async with inhouse(tmp_path, echo=EchoExecutor(gate=hold)) as home:
            exchanges = [home.caller().start("POST", CHAT, chat_body()) for _ in range(40)]
            async with asyncio.timeout(10):
                while len(home.house.live) < 40:
                    await asyncio.sleep(0.005)
            assert (home.house.door.gate.at_work, home.house.door.gate.waiting) == (0, 0)
            hold.opened.set()
            assert {(await each.end()).status for each in exchanges} == {200}
            await home.at_rest()

    asyncio.run(run())


def test_who_waits_for_the_book_has_no_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else no more than `at_work` would ever share a durable commit."""

    async def run() -> None:
        asked, answers = 0, asyncio.Event()
        async with inhouse(tmp_path) as home:
            held = home.house.book.hold

            async def late(ask: HoldAsk) -> Allow[Held] | Deny:
                nonlocal asked
                asked += 1
                await answers.wait()
                return await held(ask)

            monkeypatch.setattr(home.house.book, "hold", late)
            exchanges = [home.caller().start("POST", CHAT, chat_body()) for _ in range(40)]
            async with asyncio.timeout(10):
                while asked < 40:
                    await asyncio.sleep(0.005)
            answers.set()
            assert {(await each.end()).status for each in exchanges} == {200}
            await home.at_rest()

    asyncio.run(run())


def test_who_is_still_sending_has_no_turn() -> None:
    at = Door(
        gate=Gate(lambda: time.monotonic() * 1000, replace(TERMS, at_work=1, turn_ms=60_000.0))
    )

    async def scene(running: Running, tiny: Tiny) -> None:
        async with running.client() as client, running.client() as other, asyncio.timeout(5):
            await client.send(request("POST /v1/echo", "Content-Length: 3") + b"x")
            await tiny.entered.wait()
            await other.send(GET)
            assert (await other.answer()).status == 200
            await client.send(b"yz")
            assert (await client.answer()).body == b"3"
        assert (at.gate.at_work, at.gate.waiting) == (0, 0)

    play(scene, at)


def test_who_leaves_while_it_waits_for_its_turn_leaves_nothing() -> None:
    at = Door()

    async def scene(running: Running, tiny: Tiny) -> None:
        held = [f"held{n}" for n in range(16)]
        for name in held:
            await at.gate.enter(name, STRANGER)
        async with running.client() as client:
            await client.send(GET)
            async with asyncio.timeout(5):
                while not at.gate.waiting:
                    await asyncio.sleep(0.005)
        for name in held:
            at.gate.leave(name)
        async with asyncio.timeout(5):
            while at.gate.waiting or at.gate.at_work:
                await asyncio.sleep(0.005)

    play(scene, at)


def test_turning_away_is_told_once_when_it_begins_and_when_it_ends() -> None:
    told: list[str] = []
    at = Door(log=lambda event, **_: told.append(event))
    at.look(0)
    for _ in range(3):
        at.turned[Rank.BACKFILL] += 1
        at.look(0)
    at.look(0)
    at.look(0)
    assert told == ["shedding", "shedding.over"]
