"""Stored responses in a whole house: told again, gone on from, removed, and whose they are.
DESIGN.md, settled 6 and 7; SECURITY.md P8, P10, P12."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from executor.echo import EchoExecutor
from tenants.store import StoreUnavailable
from tests.gateway.inhouse import Answered, Caller, Inhouse
from tests.gateway.keeping import WHY
from tests.gateway.registered_kit import BOB, DOCS, do, on_disk, register, sharing
from tests.gateway.response_kit import RESPONSES, asked, events_of, followed, is_response, read
from tests.gateway.test_admin import problem
from tests.gateway.test_line import Hold, lived
from tests.gateway.test_responses import keyed, stopped
from tests.gateway.test_rotation import SHRED, a_round, later, retire, rotated


async def stored(caller: Caller, content: object = "hello", **fields: object) -> dict[str, Any]:
    body = read(await caller.post(RESPONSES, asked(content, store=True, **fields)))
    assert body["store"] is True
    return body


def at(id_: str, more: str = "") -> str:
    return f"{RESPONSES}/{id_}{more}"


async def remove(caller: Caller, id_: str) -> Answered:
    return await do(caller, "DELETE", at(id_))


async def kept(home: Inhouse) -> int:
    await home.house.stored.table.counted()
    tally = home.house.stored.table._tally
    return sum(tally.of(tenant)[0] for tenant in tally.names())


def text(body: dict[str, Any]) -> str:
    return str(body["output"][0]["content"][0]["text"])


def test_what_is_stored_is_told_again_until_it_is_removed(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice = home.caller()
        made = await stored(alice, "hello 😀", instructions="Be kind.", metadata={"k": "v"})
        assert read(await alice.get(at(made["id"]))) == made
        again = await alice.get(at(made["id"]), "include[]=message.output_text.logprobs")
        assert read(again) == made
        gone = await remove(alice, made["id"])
        assert gone.json() == {"id": made["id"], "object": "response", "deleted": True}
        for answer in (
            await remove(alice, made["id"]),
            await alice.get(at(made["id"])),
            await alice.get(at(made["id"], "/input_items")),
        ):
            assert (answer.status, answer.error["code"]) == (404, "response_not_found")
        assert await kept(home) == 0
        kinds = [e["kind"] for e in home.audited() if e["kind"].startswith("response.")]
        assert kinds == ["response.read", "response.read", "response.deleted"]

    lived(tmp_path, story)


def test_nothing_is_stored_that_was_not_asked_for(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice = home.caller()
        for fields in ({}, {"store": False}, {"store": None}):
            body = read(await alice.post(RESPONSES, asked(**fields)))
            assert body["store"] is False
            assert (await alice.get(at(body["id"]))).status == 404
        assert await kept(home) == 0

    lived(tmp_path, story)


@pytest.mark.slow
def test_what_is_anothers_is_as_if_it_were_not_there(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        made = await stored(home.caller(), "a secret plan")
        item = made["output"][0]["id"]
        absent = "resp_" + "0" * 24
        elsewhere = item.replace(made["id"][5:], "0" * 24)
        for name in ("acme/bob", "globex/carol", "acme/admin", "globex/admin"):
            other = home.caller(name)
            pairs = [
                (await other.get(at(made["id"], more)), await other.get(at(absent, more)))
                for more in ("", "/input_items")
            ]
            pairs.append((await remove(other, made["id"]), await remove(other, absent)))
            pairs.append(
                (
                    await other.post(RESPONSES, asked(previous_response_id=made["id"])),
                    await other.post(RESPONSES, asked(previous_response_id=absent)),
                )
            )
            pairs.append(
                (
                    await other.post(RESPONSES, asked([{"type": "item_reference", "id": item}])),
                    await other.post(
                        RESPONSES, asked([{"type": "item_reference", "id": elsewhere}])
                    ),
                )
            )
            for theirs, none in pairs:
                assert (theirs.status, theirs.body) == (none.status, none.body)
                assert theirs.status == 404
                assert set(theirs.headers) == set(none.headers)
        operator = await home.caller("operator").get(at(made["id"]))
        assert (operator.status, operator.error["code"]) == (403, "no_tenant")
        assert read(await home.caller().get(at(made["id"]))) == made

    lived(tmp_path, story)


def test_a_conversation_goes_on_from_what_was_stored(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice = home.caller()
        first = await stored(alice, "one", instructions="Be kind.")
        second = await stored(
            alice, "two", previous_response_id=first["id"], instructions="Be brief."
        )
        third = read(await alice.post(RESPONSES, asked("three", previous_response_id=second["id"])))
        assert third["previous_response_id"] == second["id"]
        whole = text(third)
        assert "kind" not in whole.replace(text(first), "").replace(text(second), "")
        said = ["user\none", text(first), "user\ntwo", text(second), "user\nthree"]
        places = [whole.index(each) for each in said]
        assert places == sorted(places)
        read_of = [e["target"] for e in home.audited() if e["kind"] == "response.read"]
        assert read_of == [first["id"], second["id"]]
        assert (await remove(alice, first["id"])).status == 200
        answer = await alice.post(RESPONSES, asked("three", previous_response_id=second["id"]))
        assert (answer.status, answer.error["param"]) == (404, "previous_response_id")
        assert read(await alice.get(at(second["id"]))) == second

    lived(tmp_path, story)


def test_what_it_was_asked_is_listed(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice = home.caller()
        first = await stored(alice, "one")
        items = [
            {"role": "system", "content": "s"},
            {"role": "assistant", "content": "a"},
            {"role": "user", "content": [{"type": "input_text", "text": "two"}]},
        ]
        second = await stored(alice, items, previous_response_id=first["id"])
        path = at(second["id"], "/input_items")
        listed = (await alice.get(path, "order=asc")).json()
        assert [each["role"] for each in listed["data"]] == [
            *("user", "assistant", "system", "assistant", "user")
        ]
        assert listed["data"][1] == first["output"][0]
        assert listed["data"][4]["content"] == [{"type": "input_text", "text": "two"}]
        ids = [each["id"] for each in listed["data"]]
        assert len(set(ids)) == 5
        assert (listed["first_id"], listed["last_id"]) == (ids[0], ids[-1])
        page = (await alice.get(path, "limit=2")).json()
        assert [each["id"] for each in page["data"]] == ids[:2:-1]
        assert page["has_more"]
        rest = (await alice.get(path, f"after={page['last_id']}")).json()
        assert [each["id"] for each in rest["data"]] == ids[2::-1]
        assert not rest["has_more"]
        for query in (
            "limit=0",
            "limit=101",
            "limit=x",
            "order=up",
            "after=x",
            "before=x",
            "other=1",
        ):
            assert (await alice.get(path, query)).status == 400, query
        await remove(alice, first["id"])
        left = (await alice.get(path, "order=asc")).json()
        assert [each["id"] for each in left["data"]] == ids[2:]

    lived(tmp_path, story)


def test_an_item_is_named_instead_of_sent(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice = home.caller()
        made = await stored(alice, "one")
        listed = (await alice.get(at(made["id"], "/input_items"))).json()
        named = [
            {"type": "item_reference", "id": listed["data"][0]["id"]},
            {"type": "item_reference", "id": made["output"][0]["id"]},
            {"role": "user", "content": "two"},
        ]
        body = read(await alice.post(RESPONSES, asked(named)))
        assert text(body).startswith("user\none\nassistant\n" + text(made))
        for id_ in ("", "msg_1", made["output"][0]["id"][:-1] + "9"):
            answer = await alice.post(RESPONSES, asked([{"type": "item_reference", "id": id_}]))
            assert (answer.status, answer.error["param"]) == (404, "input[0].id")

    lived(tmp_path, story)


def with_file(id_: str) -> list[dict[str, Any]]:
    parts = [{"type": "input_file", "file_id": id_}, {"type": "input_text", "text": "hi"}]
    return [{"role": "user", "content": parts}]


@pytest.mark.slow
def test_what_was_answered_from_a_document_is_told_by_the_rights_of_now(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice, bob = home.caller(), home.caller("acme/bob")
        doc = await register(alice, "The rent is 4200.", **sharing("bob"))
        made = await stored(bob, with_file(doc))
        assert "4200" in text(made)
        on = read(
            await bob.post(RESPONSES, asked("so?", previous_response_id=made["id"], store=True))
        )
        assert "4200" in text(on)

        async def answers() -> list[Answered]:
            return [
                await bob.get(at(made["id"])),
                await bob.get(
                    at(on["id"])
                ),  # it read no document itself, and was told what one says
                await bob.get(at(made["id"], "/input_items")),
                await bob.post(RESPONSES, asked("x", previous_response_id=made["id"])),
                await bob.post(
                    RESPONSES, asked([{"type": "item_reference", "id": on["output"][0]["id"]}])
                ),
            ]

        assert [
            (each.status, each.body[:90]) for each in await answers() if each.status != 200
        ] == []
        assert (await do(alice, "PUT", f"{DOCS}/{doc}/acl", {"users": []})).status == 200
        assert {(a.status, a.error["code"]) for a in await answers()} == {
            (404, "document_not_found")
        }
        assert (await do(alice, "PUT", f"{DOCS}/{doc}/acl", BOB)).status == 200
        assert [
            (each.status, each.body[:90]) for each in await answers() if each.status != 200
        ] == []
        assert (await do(alice, "PATCH", f"{DOCS}/{doc}", {"text": "It is 9."})).status == 200
        assert {(a.status, a.error["code"]) for a in await answers()} == {
            (409, "response_outdated")
        }
        assert (await remove(bob, made["id"])).status == 200

    lived(tmp_path, story)


@pytest.mark.parametrize("whole", (True, False))
def test_revoking_a_document_ends_who_goes_on_from_its_answer(tmp_path: Path, whole: bool) -> None:
    """From the conversation with the document in it, or from what was said of it alone."""
    gate = Hold(10**9)

    async def story(home: Inhouse) -> None:
        alice, bob = home.caller(), home.caller("acme/bob")
        doc = await register(alice, "The rent is 4200.", **sharing("bob"))
        made = await stored(bob, with_file(doc))
        named = [{"type": "item_reference", "id": made["output"][0]["id"]}]
        more = {"previous_response_id": made["id"]} if whole else {}
        on = await stored(bob, "so?" if whole else named, **more)
        gate.free = 2
        asking = asked("so?" if whole else named, stream=True, **more)
        running = bob.start("POST", RESPONSES, asking)
        await running.until(lambda e: b"output_text.delta" in b"".join(e.parts))
        assert (await do(alice, "PUT", f"{DOCS}/{doc}/acl", {"users": []})).status == 200
        found = followed(events_of((await running.end()).body))
        assert found.error is not None
        assert found.error["code"] == "authorization_revoked"
        assert (await bob.get(at(on["id"]))).error["code"] == "document_not_found"

    lived(tmp_path, story, echo=EchoExecutor(gate=gate))


@pytest.mark.slow
def test_who_has_no_room_is_refused_before_anything_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenants.responses.KEPT_MAX", 4)

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        made = await stored(alice)
        for _ in range(2):  # up to three times what is left
            await stored(alice)
        done = home.echo.gauges.prompt_tokens
        for stream in (False, True):
            answer = await alice.post(RESPONSES, asked(store=True, stream=stream))
            assert (answer.status, answer.error["code"]) == (403, "responses_full")
            assert answer.error["param"] == "store"
        assert home.echo.gauges.prompt_tokens == done
        assert (await alice.post(RESPONSES, asked())).status == 200
        assert (await home.caller("acme/bob").post(RESPONSES, asked(store=True))).status == 200
        assert (await home.caller("globex/carol").post(RESPONSES, asked(store=True))).status == 200
        await remove(alice, made["id"])
        await stored(alice)

    lived(tmp_path, story)


def test_a_stream_is_kept_before_its_last_words(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice = home.caller()
        exchange = alice.start("POST", RESPONSES, asked(stream=True, store=True))
        seen: list[int] = []
        while b"response.completed" not in b"".join(exchange.parts):
            exchange.changed.clear()
            await exchange.changed.wait()
        seen.append(await kept(home))
        found = followed(events_of((await exchange.end()).body))
        assert found.last["store"] is True
        assert read(await alice.get(at(found.last["id"]))) == found.last
        assert seen == [1]

    lived(tmp_path, story)


@pytest.mark.parametrize("stream", (False, True))
def test_an_answer_that_could_not_be_kept_says_so(tmp_path: Path, stream: bool) -> None:
    async def story(home: Inhouse) -> None:
        async def keep(*_: object) -> bool:
            raise StoreUnavailable

        home.house.stored.table.keep = keep  # type: ignore[method-assign,assignment]
        answer = await home.caller().post(RESPONSES, asked(store=True, stream=stream))
        body = followed(events_of(answer.body)).last if stream else read(answer)
        assert body["status"] == "completed"
        assert body["store"] is False
        if not stream:
            assert int(answer.headers["content-length"]) == len(answer.body)
        assert (await home.caller().get(at(body["id"]))).status == 404
        assert await kept(home) == 0

    lived(tmp_path, story)


def test_nothing_is_left_of_what_its_caller_left(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        for stream in (False, True):
            exchange = home.caller().start("POST", RESPONSES, asked(stream=stream, store=True))
            while not len(home.house.live):
                await asyncio.sleep(0)
            assert await kept(home) == 1
            exchange.leave()
            await exchange.end()
            assert await kept(home) == 0
        refused = await home.caller().post(RESPONSES, asked(store=True, max_output_tokens=0))
        assert refused.status == 400
        assert await kept(home) == 0

    lived(tmp_path, story, echo=EchoExecutor(gate=Hold(3)))


@pytest.mark.slow
def test_a_stream_that_failed_is_kept_as_what_it_was(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        exchange = home.caller().start("POST", RESPONSES, asked(stream=True, store=True))
        await exchange.until(lambda e: b"output_text.delta" in b"".join(e.parts))
        home.house.live.interrupt_all(stopped)
        found = followed(events_of((await exchange.end()).body))
        assert found.status == "failed"
        told = (await home.caller().get(at(found.last["id"]))).json()
        is_response(told)
        assert told == found.last
        assert told["error"]["x_code"] == "draining"

    lived(tmp_path, story, echo=EchoExecutor(gate=Hold(4)))


def test_by_a_key_one_is_stored_and_one_removed(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice = keyed(home.caller())
        first = await stored(alice)
        again = await alice.post(RESPONSES, asked(store=True))
        assert again.json() == first
        assert again.headers["idempotent-replayed"] == "true"
        assert await kept(home) == 1
        gone = await remove(alice, first["id"])
        twice = await remove(alice, first["id"])
        assert twice.json() == gone.json()
        assert twice.headers["idempotent-replayed"] == "true"

    lived(tmp_path, story)


@pytest.mark.slow
def test_a_rotation_seals_them_anew_and_shredding_ends_them(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice = home.caller()
        made = await stored(alice, "one")
        other = await stored(home.caller("globex/carol"), "other")
        found = await rotated(home)
        assert found["to_reseal"] == 1
        assert read(await alice.get(at(made["id"]))) == made
        later(home)
        refused = await retire(home)
        assert problem(refused, 409)["type"] == "urn:lockgate:still_sealed"
        assert await a_round(home) == 1
        assert (await retire(home)).status == 200
        assert read(await alice.get(at(made["id"]))) == made
        assert (await home.operator().post(SHRED, {**WHY, "confirm": "acme"})).status == 200
        assert (await alice.get(at(made["id"]))).status == 404
        answer = await alice.post(RESPONSES, asked(store=True))
        assert (answer.status, answer.error["code"]) == (403, "tenant_shredded")
        assert (await alice.post(RESPONSES, asked())).status == 200
        assert read(await home.caller("globex/carol").get(at(other["id"]))) == other
        assert await kept(home) == 1

    lived(tmp_path, story)


@pytest.mark.slow
def test_who_is_forgotten_takes_them_along(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        made = await stored(home.caller(), "one")
        bobs = await stored(home.caller("acme/bob"), "one")
        body = {"tenant": "acme", "user": "alice", "reason": "asked"}
        answer = await home.operator().post("/v1/admin/users/pseudonymise", body)
        assert answer.status == 200, answer.body
        assert (await home.caller().get(at(made["id"]))).status == 404
        assert read(await home.caller("acme/bob").get(at(bobs["id"]))) == bobs

    lived(tmp_path, story)


def test_nothing_of_it_is_readable_where_it_is_kept(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        made = await stored(
            home.caller(), "CANARY-IN-1", instructions="CANARY-IN-2", metadata={"m": "fine"}
        )
        assert "CANARY-IN-1" in json.dumps(made)
        assert b"CANARY" not in on_disk(home.folder)
        assert "CANARY" not in str(home.logged)

    lived(tmp_path, story)


def test_a_record_in_anothers_row_opens_nowhere(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice = home.caller()
        first, second = await stored(alice, "one"), await stored(alice, "two")

        def swap(conn: Any) -> None:
            conn.exec_driver_sql(
                "UPDATE response SET sealed = (SELECT sealed FROM response WHERE id = ?) WHERE id = ?",
                (first["id"], second["id"]),
            )

        await home.store.write(swap)
        assert (await alice.get(at(second["id"]))).status == 404
        assert [each for each in home.logged if each["event"] == "responses.broken"]
        assert read(await alice.get(at(first["id"]))) == first

    lived(tmp_path, story)
