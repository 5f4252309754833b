"""Responses that are made in the background: asked for, followed, ended, and what becomes of them when somebody dies.
API.md §1; DESIGN.md, settled 6 and 7; SECURITY.md P6, P8."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor.echo import EchoExecutor
from gateway.stored import Stored
from policies.facts import Limits
from tests.gateway.inhouse import PLAN, Answered, Caller, Inhouse, inhouse
from tests.gateway.registered_kit import DOCS, do, register, sharing
from tests.gateway.response_kit import (
    RESPONSES,
    asked,
    events_of,
    followed,
    is_response,
    read,
)
from tests.gateway.test_line import Hold, lived
from tests.gateway.test_responses import keyed, stopped
from tests.gateway.test_responses_stored import at, kept, remove, with_file


async def begin(caller: Caller, content: object = "hello", **fields: object) -> dict[str, Any]:
    body = read(await caller.post(RESPONSES, asked(content, background=True, **fields)))
    assert body["background"] is True
    assert body["store"] is True
    assert body["status"] in {"queued", "in_progress"}
    assert body["usage"] is None
    return body


async def cancel(caller: Caller, id_: str) -> Answered:
    return await caller.post(at(id_, "/cancel"), b"")


async def settled(caller: Caller, id_: str) -> dict[str, Any]:
    async with asyncio.timeout(20):
        while True:
            body = (await caller.get(at(id_))).json()
            is_response(body)
            if body["status"] not in {"queued", "in_progress"}:
                return dict(body)
            await asyncio.sleep(0)


async def spent(home: Inhouse) -> tuple[int, int]:
    """Requests, and tokens that were generated."""
    rows = (await home.operator().get("/v1/admin/usage", "by=tenant")).json()["rows"]
    return sum(row["requests"] for row in rows), sum(row["output_tokens"] for row in rows)


def outcomes(home: Inhouse) -> list[str]:
    told = [e["outcome"] for e in home.audited() if e.get("route") == RESPONSES]
    return [each for each in told if each != "refused"]


async def quiet(home: Inhouse) -> None:
    """What was ended has been kept."""
    await home.house.live.emptied()
    await home.at_rest()


@pytest.mark.slow
def test_it_is_answered_at_once_and_asked_for_later(tmp_path: Path) -> None:
    gate = Hold(3)

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        begun = await begin(alice, "hello 😀", instructions="Be kind.")
        await gate.waiting.wait()
        now = read(await alice.get(at(begun["id"])))
        assert now["status"] in {"queued", "in_progress"}
        assert now["instructions"] == "Be kind."
        answer = await alice.post(RESPONSES, asked(previous_response_id=begun["id"]))
        assert (answer.status, answer.error["code"]) == (409, "response_in_progress")
        gate.opened.set()
        over = await settled(alice, begun["id"])
        assert over["status"] == "completed"
        assert "hello 😀" in over["output"][0]["content"][0]["text"]
        assert over["created_at"] == begun["created_at"]
        assert over["usage"]["output_tokens"] > 0
        assert (await spent(home))[0] == 1
        assert outcomes(home) == ["completed"]
        on = read(await alice.post(RESPONSES, asked("x", previous_response_id=begun["id"])))
        assert "hello 😀" in on["output"][0]["content"][0]["text"]
        bare = (await alice.get(at(begun["id"], "/input_items"))).json()
        assert len(bare["data"]) == 1

    lived(tmp_path, story, echo=EchoExecutor(gate=gate))


def test_what_refuses_it_is_an_http_status_and_leaves_nothing(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice = home.caller()
        for fields, status in (
            ({"temperature": 9}, 400),
            ({"store": False}, 400),
            ({"model": "absent"}, 404),
            ({"input": "x" * 400}, 400),
        ):
            answer = await alice.post(RESPONSES, asked(**{"background": True, **fields}))
            assert answer.status == status, answer.body
        first = await begin(alice)
        answer = await alice.post(RESPONSES, asked(background=True))
        assert (answer.status, answer.error["code"]) == (429, "concurrency_exceeded")
        assert await kept(home) == 1
        assert (await cancel(alice, first["id"])).status == 200
        assert await kept(home) == 1

    limits = Limits(concurrent=1, max_prompt_tokens=100)
    lived(tmp_path, story, plan=replace(PLAN, limits=limits), echo=EchoExecutor(gate=Hold()))


@pytest.mark.parametrize("free", (0, 4))
def test_cancelling_ends_it_soon_bills_what_was_generated_and_is_the_same_again(
    tmp_path: Path, free: int
) -> None:
    gate = Hold(free)

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        begun = await begin(alice)
        await gate.waiting.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        started = time.monotonic()
        body = read(await cancel(alice, begun["id"]))
        assert time.monotonic() - started < 0.5
        assert body["status"] == "cancelled"
        assert body["error"] is None
        await home.at_rest()
        again = read(await cancel(alice, begun["id"]))
        assert again == body == read(await alice.get(at(begun["id"])))
        assert body["usage"]["output_tokens"] == (await spent(home))[1]
        if free:
            assert body["output"][0]["status"] == "incomplete"
            assert body["usage"]["output_tokens"] > 0
        assert (await spent(home))[0] <= 1
        assert outcomes(home) == ["cancelled"]
        kinds = [e["kind"] for e in home.audited()]
        assert kinds.count("response.cancelled") == 1

    lived(tmp_path, story, echo=EchoExecutor(gate=gate))


def test_nobody_else_cancels_it_and_nothing_else_is_cancelled(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice = home.caller()
        begun = await begin(alice)
        for name in ("acme/bob", "globex/carol", "acme/admin"):
            theirs = await cancel(home.caller(name), begun["id"])
            none = await cancel(home.caller(name), "resp_" + "0" * 24)
            assert (theirs.status, theirs.body) == (404, none.body)
        assert (await settled_after(home, begun["id"]))["status"] == "completed"
        plain = read(await alice.post(RESPONSES, asked(store=True)))
        assert (await cancel(alice, plain["id"])).status == 400

    lived(tmp_path, story, echo=EchoExecutor(gate=(gate := Hold())))
    assert gate.waiting.is_set()


async def settled_after(home: Inhouse, id_: str) -> dict[str, Any]:
    home.echo._gate.opened.set()  # type: ignore[union-attr]
    return await settled(home.caller(), id_)


def test_it_outlives_its_token_and_no_revocation(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice = home.caller()
        begun = await begin(alice)
        (live,) = home.house.live._requests.values()
        assert live.who.credential.expires_at_s is None
        assert live.who.user == "alice"
        revoked = {
            "tenant": "acme",
            "issuer": live.who.issuer,
            "subject": "alice",
            "reason": "gone",
        }
        answer = await home.operator().post("/v1/admin/tokens/revoke", revoked)
        assert answer.status == 200, answer.body
        await quiet(home)
        row = await home.house.stored.find(live.who, begun["id"])
        assert row is not None
        assert row.row.status == "failed"
        assert b"authorization_revoked" in row.content.response

    lived(tmp_path, story, echo=EchoExecutor(gate=Hold(3)))


@pytest.mark.slow
def test_revoking_a_document_ends_it_and_what_it_said(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice, bob = home.caller(), home.caller("acme/bob")
        doc = await register(alice, "The rent is 4200.", **sharing("bob"))
        begun = await begin(bob, with_file(doc))
        assert (await do(alice, "PUT", f"{DOCS}/{doc}/acl", {"users": []})).status == 200
        await quiet(home)
        answer = await bob.get(at(begun["id"]))
        assert (answer.status, answer.error["code"]) == (404, "document_not_found")
        assert (await remove(bob, begun["id"])).status == 200

    lived(tmp_path, story, echo=EchoExecutor(gate=Hold(3)))


@pytest.mark.slow
def test_its_events_are_followed_left_and_taken_up_again(tmp_path: Path) -> None:
    gate = Hold(6)

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        first = alice.start("POST", RESPONSES, asked(background=True, stream=True))
        await first.until(lambda e: b"output_text.delta" in b"".join(e.parts))
        first.leave()
        heard = await first.end()
        seen = [line for line in heard.body.decode().split("\n\n") if line.startswith("event")]
        id_ = _id_of(heard)
        second = alice.start("GET", at(id_), query=f"stream=true&starting_after={len(seen) - 1}")
        stranger = await home.caller("acme/bob").get(at(id_), "stream=true")
        assert (stranger.status, stranger.error["code"]) == (404, "response_not_found")
        await asyncio.sleep(0)
        gate.opened.set()
        rest = await second.end()
        whole = ("\n\n".join(seen) + "\n\n").encode() + rest.body
        found = followed(events_of(whole))
        assert found.status == "completed"
        assert found.begun[0] == "created"
        assert found.last == await settled(alice, id_)
        await home.at_rest()
        again = await alice.get(at(id_), "stream=true")
        assert followed(events_of(again.body)).last == found.last
        for after in (0, 3, len(events_of(again.body)) - 1, 10**6):
            part = await alice.get(at(id_), f"stream=true&starting_after={after}")
            numbers = [e["sequence_number"] for e in parts_of(part.body)]
            assert numbers == list(range(after + 1, len(events_of(again.body))))
        plain = await begin(alice)
        refused = await alice.get(at(plain["id"]), "stream=true")
        assert (refused.status, refused.error["param"]) == (400, "stream")
        for query in ("stream=maybe", "stream=true&starting_after=x", "stream=true&other=1"):
            assert (await alice.get(at(id_), query)).status == 400, query
        await settled(alice, plain["id"])

    lived(tmp_path, story, echo=EchoExecutor(gate=gate))


def _id_of(heard: Answered) -> str:
    text = heard.body.decode()
    return text[text.index("resp_") :][:29]


def parts_of(data: bytes) -> list[dict[str, Any]]:
    return [
        json.loads(block.split("\ndata: ")[1]) for block in data.decode().split("\n\n") if block
    ]


def test_a_server_that_ends_says_so(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice = home.caller()
        begun = await begin(alice)
        home.house.live.interrupt_all(stopped)
        over = await settled(alice, begun["id"])
        assert (over["status"], over["error"]["x_code"]) == ("failed", "draining")
        await quiet(home)
        home.switch["draining"] = True
        answer = await alice.post(RESPONSES, asked(background=True))
        assert (answer.status, answer.error["code"]) == (503, "draining")

    lived(tmp_path, story, echo=EchoExecutor(gate=Hold(3)))


@pytest.mark.slow
def test_a_house_that_closes_leaves_it_failed(tmp_path: Path) -> None:
    async def run() -> None:
        async with inhouse(tmp_path, echo=EchoExecutor(gate=Hold(3))) as home:
            closed = await begin(home.caller())
        async with inhouse(tmp_path) as home:
            alice = home.caller()
            over = read(await alice.get(at(closed["id"])))
            assert (over["status"], over["error"]["x_code"]) == ("failed", "draining")
            assert over["output"][0]["status"] == "incomplete"

    asyncio.run(run())


def test_whose_gateway_died_has_failed(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice = home.caller()
        begun = await begin(alice)

        def die(conn: Any) -> None:
            conn.exec_driver_sql("UPDATE response SET owner = 'dead', lease_until_ms = 0")

        await home.store.write(die)
        work = home.house.stored.running.pop(begun["id"])
        for _ in range(2):
            over = (await alice.get(at(begun["id"]))).json()
            is_response(over)
            assert (over["status"], over["error"]["x_code"]) == ("failed", "gateway_lost")
            await home.house.stored.sweep()
        assert (await remove(alice, begun["id"])).status == 200
        home.house.stored.running[begun["id"]] = work
        await work.cancel()

    lived(tmp_path, story, echo=EchoExecutor(gate=Hold(3)))


def test_what_is_removed_while_it_is_made_ends(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice = home.caller()
        begun = await begin(alice)
        assert (await remove(alice, begun["id"])).status == 200
        await home.at_rest()
        assert (await alice.get(at(begun["id"]))).status == 404
        assert (await cancel(alice, begun["id"])).status == 404
        assert await kept(home) == 0
        assert outcomes(home) == ["cancelled"]

    lived(tmp_path, story, echo=EchoExecutor(gate=Hold(3)))


def test_who_leaves_before_they_heard_of_it_leaves_nothing(tmp_path: Path) -> None:
    echo = EchoExecutor(gate=Hold())

    async def story(home: Inhouse) -> None:
        held = asyncio.Event()
        begin_row = home.house.stored.begin

        async def slow(*args: Any) -> None:
            await begin_row(*args)
            await held.wait()

        home.house.stored.begin = slow  # type: ignore[method-assign,assignment]
        exchange = home.caller().start("POST", RESPONSES, asked(background=True))
        while not await kept(home):
            await asyncio.sleep(0)
        exchange.leave()
        (work,) = home.house.stored.running.values()
        while not work.cancelling:  # its leaving has been heard
            await asyncio.sleep(0)
        for _ in range(8):  # and has come to where the row is being made
            await asyncio.sleep(0)
        held.set()
        await exchange.end()
        await home.at_rest()
        assert await kept(home) == 0

    lived(tmp_path, story, echo=echo)


def test_however_it_is_spelt_it_is_made_there(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice = home.caller()
        spelt = json.dumps(asked(background=True)).replace('"background"', '"b\\u0061ckground"')
        body = read(await alice.post(RESPONSES, spelt.encode()))
        assert body["status"] in {"queued", "in_progress"}
        await settled(alice, body["id"])

    lived(tmp_path, story)


def test_by_a_key_it_is_begun_once(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice = keyed(home.caller())
        first = await begin(alice)
        again = await alice.post(RESPONSES, asked(background=True))
        assert again.json() == first
        assert again.headers["idempotent-replayed"] == "true"
        assert await kept(home) == 1
        over = await settled(home.caller(), first["id"])
        assert over["status"] == "completed"
        assert (await spent(home))[0] == 1

    lived(tmp_path, story)


def test_another_gateway_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenants.responses.Responses.shared", True)
    monkeypatch.setattr("gateway.stored.LOOK_S", 0.01)

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        begun = await begin(alice)
        (live,) = home.house.live._requests.values()
        ours = home.house.stored
        other = Stored(ours.table, ours._seals, ours._secrets, ours._log)
        await other.cancel(live.who, begun["id"])
        over = read(await alice.get(at(begun["id"])))
        assert over["status"] == "cancelled"
        begun = await begin(alice)
        assert await other.remove(live.who, begun["id"])
        while ours.running:
            await asyncio.sleep(0.01)
        await home.at_rest()

    lived(tmp_path, story, echo=EchoExecutor(gate=Hold(3)))
