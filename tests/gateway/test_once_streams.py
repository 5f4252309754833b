"""A stream by an `Idempotency-Key`: read along, taken up again, ended, and told again as a stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from executor.echo import EchoExecutor
from gateway.house import Timings
from security.dev_issuer import ISSUER, open_dev_issuer
from tests.gateway.inhouse import PLAN, Exchange, Inhouse
from tests.gateway.once_kit import REPLAYED, ask, charged, reservations, rows, start, told, turns
from tests.gateway.registered_kit import register
from tests.gateway.test_line import Hold, lived
from tests.loop_time import pass_time


def heard(text: bytes) -> Callable[[Exchange], bool]:
    return lambda exchange: text in b"".join(exchange.parts)


def test_who_comes_second_reads_along_byte_for_byte(tmp_path: Path) -> None:
    gate = Hold(3)

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        first = start(alice, "abcdefghij", stream=True)
        await gate.waiting.wait()
        await first.until(heard(b'"content"'))
        second = start(alice, "abcdefghij", stream=True)
        await second.until(lambda it: b"".join(it.parts) == b"".join(first.parts))
        gate.opened.set()
        one, two = await first.end(), await second.end()
        assert told(one) == told(two)
        assert (REPLAYED in one.headers, two.headers[REPLAYED]) == (False, "true")
        assert one.headers["content-type"].startswith("text/event-stream")
        assert two.events()[-1] == "[DONE]"
        third = await ask(alice, "abcdefghij", stream=True)
        assert told(third) == told(one), "and it is told again when it is over"
        assert len(await reservations(home)) == 1
        kinds = [(each["kind"], each["outcome"]) for each in home.audited() if each["kind"] == "request.replayed"]  # fmt: skip
        assert kinds == [("request.replayed", "attached"), ("request.replayed", "replayed")]

    lived(tmp_path, story, echo=EchoExecutor(gate=gate))


def test_one_place_among_those_that_run_is_enough_to_read_along(tmp_path: Path) -> None:
    gate = Hold(1)
    plan = replace(PLAN, limits=replace(PLAN.limits, concurrent=1))

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        first = start(alice, stream=True)
        await gate.waiting.wait()
        second = start(alice, stream=True)
        await second.until(lambda it: it.status == 200)
        assert (await ask(alice, key="other")).status == 429
        gate.opened.set()
        assert told(await first.end()) == told(await second.end())

    lived(tmp_path, story, echo=EchoExecutor(gate=gate), plan=plan)


def test_who_was_first_leaves_and_who_came_second_hears_all(tmp_path: Path) -> None:
    gate = Hold(3)

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        first = start(alice, "abcdefghij", stream=True)
        await gate.waiting.wait()
        second = start(alice, "abcdefghij", stream=True)
        await second.until(lambda it: it.status == 200)
        first.leave()
        await first.end()
        gate.opened.set()
        answer = await second.end()
        content = "".join(
            each["choices"][0]["delta"].get("content", "") for each in answer.events()[:-1]
        )
        assert "abcdefghij" in content
        (held,) = await reservations(home)
        assert held["state"] == "SETTLED"

    lived(tmp_path, story, echo=EchoExecutor(gate=gate), timings=Timings(linger_ms=200))


def test_a_lost_connection_is_taken_up_where_the_work_still_runs(tmp_path: Path) -> None:
    gate = Hold(3)

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        first = start(alice, "abcdefghij", stream=True)
        await first.until(heard(b'"content"'))
        first.leave()
        cut = await first.end()
        second = start(alice, "abcdefghij", stream=True)
        await second.until(lambda it: it.status == 200)
        gate.opened.set()
        whole = await second.end()
        assert whole.body.startswith(cut.body)
        assert whole.events()[-1] == "[DONE]"
        assert len(await reservations(home)) == 1

    lived(tmp_path, story, echo=EchoExecutor(gate=gate))


def test_when_all_have_left_it_ends_and_is_billed_as_far_as_it_came(tmp_path: Path) -> None:
    gate = Hold(3)

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        readers = [start(alice, "abcdefghij", stream=True) for _ in range(3)]
        for each in readers:
            await each.until(lambda it: it.status == 200)
        for each in readers:
            each.leave()
            await each.end()
        await turns(lambda: not len(home.house.runs))
        paid = await charged(home)
        assert paid > 0
        again = await ask(alice, "abcdefghij", stream=True)
        assert (again.status, again.error["code"]) == (409, "idempotency_result_gone")
        assert await charged(home) == paid

    lived(tmp_path, story, echo=EchoExecutor(gate=gate), timings=Timings(linger_ms=200))


def test_who_asks_again_keeps_the_work_alive(tmp_path: Path) -> None:
    gate = Hold(1)

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        first = start(alice)
        await gate.waiting.wait()
        first.leave()
        await first.end()
        for _ in range(3):  # longer than it lingers
            await pass_time(40)
            assert (await ask(alice)).status == 409
        gate.opened.set()
        await turns(lambda: not len(home.house.runs))
        assert (await ask(alice)).headers[REPLAYED] == "true"

    lived(tmp_path, story, echo=EchoExecutor(gate=gate), timings=Timings(linger_ms=60_000))


def test_so_many_may_read_along(tmp_path: Path) -> None:
    gate = Hold(1)

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        readers = [start(alice, stream=True) for _ in range(64)]
        for each in readers:
            await each.until(lambda it: it.status == 200)
        over = await ask(alice, stream=True)
        assert (over.status, over.error["code"]) == (409, "idempotency_in_flight")
        gate.opened.set()
        bodies = {(await each.end()).body for each in readers}
        assert len(bodies) == 1

    lived(tmp_path, story, echo=EchoExecutor(gate=gate))


def token(home: Inhouse, jti: str, **facts: object) -> str:
    claims = {"tenant": "acme", "user": "alice", "jti": jti, "roles": (), **facts}
    now_s = home.house.clock.wall_ms() // 1000
    return open_dev_issuer(home.folder).mint(now_s=now_s, ttl_s=600, **claims)  # type: ignore[arg-type]


def test_the_end_of_a_readers_own_credential_ends_that_reader_alone(tmp_path: Path) -> None:
    gate = Hold(2)

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        first = start(alice, stream=True)
        await gate.waiting.wait()
        second = start(replace(alice, credential=token(home, "second")), stream=True)
        await second.until(lambda it: it.status == 200)
        revoked = {
            "token_id": "second",
            "issuer": ISSUER,
            "tenant": "acme",
        }
        assert (await home.operator().post("/v1/admin/tokens/revoke", revoked)).status == 200
        events = (await second.end()).events()
        assert events[-2]["error"]["code"] == "authorization_revoked"
        gate.opened.set()
        assert "error" not in str((await first.end()).events()[-2])
        assert (
            await start(replace(alice, credential=token(home, "second")), stream=True).end()
        ).status == 401

    lived(tmp_path, story, echo=EchoExecutor(gate=gate))


def test_the_end_of_the_firsts_credential_ends_the_work_for_all(tmp_path: Path) -> None:
    gate = Hold(2)

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        first = start(replace(alice, credential=token(home, "one")), stream=True)
        await gate.waiting.wait()
        second = start(alice, stream=True)
        await second.until(lambda it: it.status == 200)
        revoked = {
            "token_id": "one",
            "issuer": ISSUER,
            "tenant": "acme",
        }
        await home.operator().post("/v1/admin/tokens/revoke", revoked)
        bodies = {(await first.end()).body, (await second.end()).body}
        assert len(bodies) == 1
        assert b"authorization_revoked" in bodies.pop()
        await turns(lambda: not len(home.house.runs))
        (row,) = await rows(home)
        assert (row["state"], row["sealed"], row["why"]) == ("DONE", None, "cut")

    lived(tmp_path, story, echo=EchoExecutor(gate=gate))


def test_a_token_that_may_not_read_the_document_does_not_read_along(tmp_path: Path) -> None:
    """One person, two tokens: the list names a group that only the first token has."""
    gate = Hold(2)

    async def story(home: Inhouse) -> None:
        bob = home.caller("acme/bob")
        listed: dict[str, Any] = {"acl": {"groups": [{"name": "legal"}]}}
        id_ = await register(bob, **listed)
        held = replace(home.caller(), credential=token(home, "in", groups=("legal",)))
        lacks = replace(home.caller(), credential=token(home, "out"))
        parts: dict[str, Any] = {
            "messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": id_}}]}]
        }
        first = start(held, stream=True, **parts)
        await gate.waiting.wait()
        second = start(lacks, stream=True, **parts)
        await first.until(lambda it: it.status == 200)
        refused = await second.end()
        assert (refused.status, refused.error["code"]) == (404, "document_not_found")
        gate.opened.set()
        assert (await first.end()).status == 200
        again = await ask(lacks, stream=True, **parts)
        assert (again.status, again.error["code"]) == (404, "document_not_found")
        assert (await ask(held, stream=True, **parts)).headers[REPLAYED] == "true"

    lived(tmp_path, story, echo=EchoExecutor(gate=gate))


def test_a_house_that_shuts_down_ends_it_with_an_event(tmp_path: Path) -> None:
    gate = Hold(2)

    async def story(home: Inhouse) -> None:
        from gateway.errors import shutting_down

        first = start(home.caller(), stream=True)
        await gate.waiting.wait()
        home.house.live.interrupt_all(shutting_down)
        assert (await first.end()).events()[-2]["error"]["code"] == "draining"

    lived(tmp_path, story, echo=EchoExecutor(gate=gate))
