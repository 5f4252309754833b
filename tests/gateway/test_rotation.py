"""A tenant's secret is rotated, retired and shredded: nobody's request fails, and what is gone is gone."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from executor.contract import ExecutorLost
from gateway import housekeeping
from gateway.rotation import STRAGGLER_NS, sealed_by
from security.keyring_tenants import SecretGone
from tenants.store import StoreUnavailable
from tests.gateway.inhouse import Answered, Inhouse, inhouse
from tests.gateway.keeping import WHY, Keeping, Order, purge_records, read
from tests.gateway.registered_kit import DOCS, TMPLS, ask, do, register, said, sharing
from tests.gateway.test_admin import problem
from tests.gateway.test_line import lived

ACME = "/v1/admin/tenants/acme"
SECRET, ROTATE, RETIRE = f"{ACME}/secret", f"{ACME}/secret/rotate", f"{ACME}/secret/retire"
SHRED = f"{ACME}/shred"


async def rotated(home: Inhouse) -> dict[str, Any]:
    answer = await home.operator().post(ROTATE, WHY)
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json()
    return found


async def a_round(home: Inhouse) -> int:
    house = home.house
    return await house.rotations.round(house.registered, house.stored, house.clock.monotonic_ns())


async def retire(home: Inhouse, version: int = 1) -> Answered:
    return await home.operator().post(RETIRE, {"version": version, **WHY})


def later(home: Inhouse) -> None:
    """As far as the rotation goes; were the clock moved on, what is known of rights would be too old."""
    home.house.rotations.rotated_ns["acme"] -= STRAGGLER_NS


def test_texts_are_sealed_anew_and_read_as_before(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice = home.caller()
        ids = [await register(alice, f"The rent is {4200 + n}.", title="Rent") for n in range(3)]
        tmpl = (await home.caller("acme/admin").post(TMPLS, {"text": "BRIEF"})).json()["id"]
        before = (await home.operator().get(SECRET)).json()
        assert (before["current"], before["to_reseal"]) == (1, 0)
        found = await rotated(home)
        assert (found["current"], found["to_reseal"]) == (2, 4)
        assert [each["texts"] for each in found["versions"]] == [4, 0]
        assert "4201" in said(await ask(alice, ids[1]))
        assert await a_round(home) == 4
        assert await a_round(home) == 0
        found = (await home.operator().get(SECRET)).json()
        assert ([each["texts"] for each in found["versions"]], found["to_reseal"]) == ([0, 4], 0)
        for n, id_ in enumerate(ids):
            assert str(4200 + n) in said(await ask(alice, id_))
            assert (await alice.get(f"{DOCS}/{id_}")).json()["title"] == "Rent"
        assert (await home.caller("acme/bob").chat("hi", prompt={"id": tmpl})).status == 200
        assert home.house.secrets.current("acme").secret.hex() not in json.dumps(found)

    lived(tmp_path, story)


@pytest.mark.slow
def test_l7_rotations_under_load_fail_nobody(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice = home.caller()
        ids = [
            await register(alice, f"The rent is {4200 + n}.", **sharing("bob")) for n in range(4)
        ]
        on = True
        count = 0

        async def asking(name: str, at: int) -> None:
            nonlocal count
            while on:
                assert str(4200 + at) in said(await ask(home.caller(name), ids[at]))
                count += 1

        async def writing() -> None:
            while on:
                id_ = await register(alice, "More.")
                assert (await do(alice, "PATCH", f"{DOCS}/{id_}", {"text": "Less."})).status == 200
                assert (await do(alice, "DELETE", f"{DOCS}/{id_}")).status == 200

        tasks = [asyncio.create_task(writing())]
        for name in ("acme/alice", "acme/bob"):
            tasks += [asyncio.create_task(asking(name, at)) for at in range(4)]
        for version in (1, 2, 3):
            await rotated(home)
            while (await home.operator().get(SECRET)).json()["to_reseal"]:
                await a_round(home)
            later(home)
            assert (await retire(home, version)).status == 200
        on = False
        await asyncio.gather(*tasks)
        assert count > 8
        assert list(home.house.secrets.held("acme")) == [4]

    lived(tmp_path, story)


def test_it_stops_anywhere_and_goes_on_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids: list[str] = []

    async def first() -> None:
        async with inhouse(tmp_path) as home:
            ids.extend(
                [await register(home.caller(), f"The rent is {4200 + n}.") for n in range(3)]
            )
            await rotated(home)
            documents = home.house.registered.documents
            reseal, calls = documents.reseal, 0

            async def dies(*args: Any) -> bool:
                nonlocal calls
                calls += 1
                if calls > 1:
                    raise StoreUnavailable
                return await reseal(*args)

            monkeypatch.setattr(documents, "reseal", dies)
            with pytest.raises(StoreUnavailable):
                await a_round(home)

    async def second() -> None:
        async with inhouse(tmp_path) as home:
            assert (await home.operator().get(SECRET)).json()["to_reseal"] == 2
            assert (await retire(home)).status == 409
            sealing = asyncio.create_task(housekeeping.keep_sealed(home.house, every_s=0))
            async with asyncio.timeout(20):
                while (await home.operator().get(SECRET)).json()["to_reseal"]:
                    await asyncio.sleep(0)
            while home.house.rotations.pending:
                await asyncio.sleep(0)
            sealing.cancel()
            assert (await retire(home)).status == 200
            for n, id_ in enumerate(ids):
                assert str(4200 + n) in said(await ask(home.caller(), id_))

    asyncio.run(first())
    asyncio.run(second())


def test_what_is_written_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice = home.caller()
        changed, gone = [await register(alice) for _ in range(2)]
        await rotated(home)
        documents = home.house.registered.documents
        reseal = documents.reseal

        async def after_others(id_: str, *args: Any) -> bool:
            if id_ == changed:
                body = {"text": "The rent is 9999."}
                assert (await do(alice, "PATCH", f"{DOCS}/{id_}", body)).status == 200
            else:
                assert (await do(alice, "DELETE", f"{DOCS}/{id_}")).status == 200
            return await reseal(id_, *args)

        documents.reseal = after_others  # type: ignore[method-assign,assignment]
        assert await a_round(home) == 0
        assert "9999" in said(await ask(alice, changed))
        assert (await ask(alice, gone)).status == 404
        assert await sealed_by(documents, home.house.stored, "acme") == {2: 1}

    lived(tmp_path, story)


def test_a_damaged_text_stops_no_other_and_is_told_once(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        from sqlalchemy import update

        from tenants.schema import registration_text as table

        alice = home.caller()
        bad, good = [await register(alice) for _ in range(2)]
        store = home.house.registered.documents._store
        flipped = b"\x01" + (1).to_bytes(4) + bytes(60)
        await store.write(
            lambda conn: conn.execute(
                update(table).where(table.c.id == bad).values(sealed_text=flipped)
            )
        )
        await rotated(home)
        assert await a_round(home) == 1
        assert await a_round(home) == 0
        assert [each["event"] for each in home.logged].count("registered.broken") == 1
        assert "4200" in said(await ask(alice, good))
        later(home)
        told = problem(await retire(home), 409)
        assert told["type"] == "urn:lockgate:still_sealed"
        assert await a_round(home) == 0
        assert not home.house.rotations.pending
        assert (await do(alice, "DELETE", f"{DOCS}/{bad}")).status == 200
        assert (await retire(home)).status == 200

    lived(tmp_path, story)


def test_an_old_version_goes_when_nothing_needs_it_and_not_sooner(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        id_ = await register(home.caller())
        assert problem(await retire(home), 409)["type"] == "urn:lockgate:current"
        problem(await retire(home, 2), 404)
        await rotated(home)
        # Somebody may have taken the old secret to seal with just before.
        assert problem(await retire(home), 409)["type"] == "urn:lockgate:rotated_just_now"
        later(home)
        assert problem(await retire(home), 409)["type"] == "urn:lockgate:still_sealed"
        await a_round(home)
        answer = await retire(home)
        assert (answer.status, answer.json()["current"]) == (200, 2)
        assert [each["version"] for each in answer.json()["versions"]] == [2]
        problem(await retire(home), 404)
        with pytest.raises(SecretGone):
            home.house.secrets.at("acme", 1)
        assert "4200" in said(await ask(home.caller(), id_))
        for body in ({}, {"version": 1}, {"version": 0, **WHY}, {"version": True, **WHY}):
            problem(await home.operator().post(RETIRE, body), 400)

    lived(tmp_path, story)


def test_who_read_a_text_just_before_its_secret_went_reads_it_again(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        id_ = await register(home.caller())
        documents = home.house.registered.documents
        await rotated(home)
        later(home)
        texts = documents.texts

        async def slowly(wanted: Any) -> Any:
            found = await texts(wanted)
            documents.texts = texts  # type: ignore[method-assign]
            await a_round(home)
            assert (await retire(home)).status == 200
            return found

        documents.texts = slowly  # type: ignore[method-assign]
        assert "4200" in said(await ask(home.caller(), id_))

    lived(tmp_path, story)


def test_what_was_kept_under_the_old_secret_goes_and_its_readers_stay(tmp_path: Path) -> None:
    echo = Keeping()

    async def story(home: Inhouse) -> None:
        keys, whose = home.house.caches.keys, home.house.pseudonym("acme")
        await rotated(home)
        assert echo.purges == [Order(whose, (keys.of_secret("acme", 1),), True)]
        assert home.house.purges.count("acme") == 1
        echo.lost = True  # it ends with its age, then
        await rotated(home)
        assert set(echo.purges[-1].tags) == {keys.of_secret("acme", each) for each in (1, 2)}

    lived(tmp_path, story, echo=echo)


def test_each_change_is_recorded_and_its_reason_kept_in_the_database_alone(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        from sqlalchemy import select

        from tenants.schema import change

        await rotated(home)
        later(home)
        assert (await retire(home)).status == 200
        assert (await home.operator().post(SHRED, {"confirm": "acme", **WHY})).status == 200
        kinds = [(each["kind"], each["tenant"], each["target"]) for each in home.audited()[1:]]
        assert kinds == [
            ("secret.rotated", "acme", "2"),
            ("secret.retired", "acme", "1"),
            ("tenant.shredded", "acme", "acme"),
            ("cache.purged", "acme", "acme"),
        ]
        noted = await home.house.book._store.read(lambda conn: list(conn.execute(select(change))))
        assert [each.kind for each in noted] == [
            *("secret_rotated", "secret_retired", "tenant_shredded"),
        ]
        assert {each.reason for each in noted} == {WHY["reason"]}
        assert WHY["reason"] not in json.dumps(home.audited())

    lived(tmp_path, story)


# Shredding


def test_a_shredded_tenant_has_nothing_left_and_the_proof_says_so(tmp_path: Path) -> None:
    echo = Keeping(entries=5)

    async def story(home: Inhouse) -> None:
        id_ = await register(home.caller())
        await rotated(home)
        echo.purges.clear()
        answer = await home.operator().post(SHRED, {"confirm": "acme", **WHY})
        assert answer.status == 200, answer.body
        told = answer.json()
        assert (told["versions"], told["texts"], told["blocks"]) == (2, 1, 10)
        found = read(home, answer)
        assert (found.purged.reason.value, found.purged.key_destroyed) == ("secret_destroyed", True)
        assert found.purged.is_complete
        whose = home.house.pseudonym("acme")
        assert echo.purges == [Order(whose, (), False)] * 2  # before, to count it; and after
        assert (await ask(home.caller(), id_)).status == 404
        shown = (await home.operator().get(SECRET)).json()
        assert (shown["current"], shown["versions"]) == (None, [])
        assert (await home.caller().chat("hello")).status == 200  # served, and nothing is kept
        again = await home.operator().post(SHRED, {"confirm": "acme", **WHY})
        assert (again.status, again.json()["versions"]) == (200, 0)
        # Only a rotation begins anew, with a number that no other had.
        assert (await rotated(home))["current"] == 3
        assert (await home.caller().post(DOCS, {"text": "x"})).status == 200

    lived(tmp_path, story, echo=echo)


@pytest.mark.parametrize(
    "body", ({**WHY}, {"confirm": "acme"}, {"confirm": "globex", **WHY}, {"confirm": "", **WHY})
)
def test_nobody_is_shredded_by_accident(tmp_path: Path, body: dict[str, str]) -> None:
    async def story(home: Inhouse) -> None:
        problem(await home.operator().post(SHRED, body), 400)
        problem(await home.operator().post("/v1/admin/tenants/nobody/shred", body), 404)
        assert home.house.secrets.current("acme").version == 1

    lived(tmp_path, story)


def test_a_shredding_that_an_executor_did_not_acknowledge_is_no_success(tmp_path: Path) -> None:
    echo = Keeping()

    async def story(home: Inhouse) -> None:
        await register(home.caller())

        async def silent(*_: object) -> Any:
            raise ExecutorLost

        revoke = echo.revoke
        echo.revoke = silent  # type: ignore[method-assign,assignment]
        echo.lost = True
        told = problem(await home.operator().post(SHRED, {"confirm": "acme", **WHY}), 503)
        assert told["type"] == "urn:lockgate:purge_unacknowledged"
        (record,) = purge_records(home)
        assert (record["outcome"], record["unacknowledged"]) == ("incomplete", 1)
        assert record["key_destroyed"] is True
        with pytest.raises(SecretGone):
            home.house.secrets.current("acme")
        echo.revoke = revoke  # type: ignore[method-assign]
        echo.lost = False
        again = await home.operator().post(SHRED, {"confirm": "acme", **WHY})
        assert read(home, again).purged.is_complete

    lived(tmp_path, story, echo=echo)
