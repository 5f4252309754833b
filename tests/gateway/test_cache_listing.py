"""Listing what is kept: by whom, and in what words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gateway.warming import Warming
from tests.gateway.inhouse import Inhouse
from tests.gateway.keeping import CACHE, PURGE, WHY, Keeping, row
from tests.gateway.registered_kit import TMPLS, ask, register
from tests.gateway.test_admin import problem
from tests.gateway.test_line import lived


def test_each_sees_its_own_and_operators_all(tmp_path: Path) -> None:
    echo = Keeping()

    async def story(home: Inhouse) -> None:
        acme, globex = (home.house.pseudonym(name) for name in ("acme", "globex"))
        echo.rows = (row(acme), row(acme, "documents", pinned=4), row(globex), row("left"))
        listed = {
            name: (await home.operator(name).get(CACHE)).json()["kept"]
            for name in ("operator", "operator/security", "acme/admin", "globex/admin")
        }
        whose = {name: [each["tenant"] for each in rows] for name, rows in listed.items()}
        assert whose["operator"] == whose["operator/security"] == ["acme", "acme", "globex", "?"]
        assert whose["acme/admin"] == ["acme", "acme"]
        assert whose["globex/admin"] == ["globex"]
        card = echo.card
        assert card is not None
        assert listed["acme/admin"][1] == {
            "tenant": "acme",
            "model": "echo",
            "kind": "documents",
            "labels": 1,
            "blocks": 4,
            "bytes": 4 * (card.kv_bytes // card.kv_blocks),
            "pinned_blocks": 4,
            "oldest_s": 61,
        }
        one = (await home.operator().get(CACHE, "tenant=globex")).json()["kept"]
        assert [each["tenant"] for each in one] == ["globex"]
        problem(await home.operator("acme/admin").get(CACHE, "tenant=globex"), 403)
        problem(await home.operator().get(CACHE, "tenant=nobody"), 404)
        problem(await home.operator().get(CACHE, "by=text"), 400)
        problem(await home.operator().get(CACHE, "label=x"), 400)

    lived(tmp_path, story, echo=echo)


def test_a_label_is_shown_by_a_name_that_no_executor_knows(tmp_path: Path) -> None:
    label = bytes(range(32))
    echo = Keeping()

    async def story(home: Inhouse) -> None:
        echo.rows = (row(home.house.pseudonym("acme"), label=label),)
        (shown,) = (await home.operator("acme/admin").get(CACHE, "by=label")).json()["kept"]
        assert "labels" not in shown
        assert len(shown["label"]) == 32
        assert label.hex()[:8] not in json.dumps(shown)

    lived(tmp_path, story, echo=echo)


def test_an_executor_that_is_silent_is_named(tmp_path: Path) -> None:
    echo = Keeping()
    echo.lost = True

    async def story(home: Inhouse) -> None:
        found = (await home.operator().get(CACHE)).json()
        assert (found["kept"], found["silent"]) == ([], ["echo"])

    lived(tmp_path, story, echo=echo)


def test_whoever_lists_or_is_refused_is_recorded(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        assert (await home.operator("acme/admin").get(CACHE)).status == 200
        for name in ("acme/alice", "acme/finance", "operator/finance"):
            problem(await home.operator(name).get(CACHE), 403)
            problem(await home.operator(name).post(PURGE, {"tenant": "acme", **WHY}), 403)
        records = home.audited()[1:]
        assert [each["kind"] for each in records] == ["cache.listed", *["authz.denied"] * 6]
        assert records[0]["tenant"] == "acme"
        assert len({each["subject"] for each in records}) == 4
        assert {each["route"] for each in records[1:]} == {CACHE, PURGE}

    lived(tmp_path, story, echo=Keeping())


def test_every_kind_of_label_has_its_name_in_the_list(tmp_path: Path) -> None:
    """As requests bring them to an executor."""
    echo = Keeping()
    asked: list[tuple[str, ...]] = []

    async def story(home: Inhouse) -> None:
        id_ = await register(home.caller())
        tmpl = (await home.caller("acme/admin").post(TMPLS, {"text": "BRIEF"})).json()["id"]
        assert await Warming(iter(("req_w1", "req_w2")).__next__).round(home.house) == 2
        turn = echo.turn

        def turned(job: Any) -> Any:
            asked.append(tuple(each.kind for each in job.caching.scopes))
            return turn(job)

        echo.turn = turned  # type: ignore[method-assign]
        assert (await home.caller().chat("hello")).status == 200
        assert (await ask(home.caller(), id_)).status == 200
        assert (await home.caller().chat("hello", prompt={"id": tmpl})).status == 200
        assert asked == [("user",), ("documents", "user"), ("tenant", "user")]

    lived(tmp_path, story, echo=echo)
