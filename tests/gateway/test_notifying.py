"""A budget that comes to a threshold is in the log and at a real receiver: signed, once, and again
until it arrives."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import select

from gateway.notifying import Webhooks, tell
from gateway.refused_start import REFUSED
from gateway.settings import Mode, development
from gateway.settings.shape import Webhooks as Wanted
from gateway.webhooks_start import open_webhooks
from policies.facts import Budget
from policies.retry import SCHEDULE_S
from security.outbound import Outbound
from security.webhook_signing import signature
from tenants import schema
from tests.gateway.inhouse import PLAN, Inhouse
from tests.gateway.test_line import lived
from tests.security.test_outbound import Receiver, receiver

SECRET = b"s" * 32
WATCHED = replace(PLAN, budget=Budget(0, notify_at=(0.5, 1.0)))
"""Nothing fits, so the first request is refused and told of."""


def hooks(there: Receiver) -> Webhooks:
    to = Outbound(f"http://127.0.0.1:{there.port}/hook", loopback=True)
    return Webhooks(to, (SECRET,), draw=lambda: 0.0)


async def outcomes(home: Inhouse) -> list[tuple[int, str | None]]:
    table = schema.outbox
    query = select(table.c.attempts, table.c.outcome).order_by(table.c.threshold)
    rows = await home.house.book._store.read(lambda conn: conn.execute(query).all())
    return [(row[0], row[1]) for row in rows]


def parsed(heard: bytes) -> tuple[dict[str, str], bytes]:
    head, _, body = heard.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")[1:]
    return {
        name.lower(): value for name, _, value in (line.partition(": ") for line in lines)
    }, body


def test_what_is_sent_is_signed_and_says_whose_and_how_much(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        async with receiver() as there:
            prompt = "SECRET-PROMPT"
            for _ in range(2):
                assert (await home.caller().chat(prompt)).status == 429
            webhooks = hooks(there)
            assert await tell(home.house, webhooks) == 1
            assert await tell(home.house, webhooks) == 0
            (heard,) = there.heard
            headers, body = parsed(heard)
            stamp = int(headers["webhook-timestamp"])
            signed = signature((SECRET,), headers["webhook-id"], stamp, body)
            assert headers["webhook-signature"] == signed
            told = json.loads(body)
            assert (told["type"], told["data"]["tenant"]) == ("budget.threshold_reached", "acme")
            assert (told["data"]["threshold"], told["data"]["refused"]) == (1.0, True)
            assert told["data"]["limit_usd"] == "0.000000000"
            assert prompt.encode() not in heard
            assert home.tokens["acme/alice"].encode() not in heard
            assert await outcomes(home) == [(1, "delivered")]

    lived(tmp_path, story, plan=WATCHED)


def test_it_is_tried_again_under_the_same_id_until_it_arrives(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        async with receiver(b"500 Oops", b"302 Found\r\nlocation: /") as there:
            assert (await home.caller().chat()).status == 429
            webhooks = hooks(there)
            for wait_s in (0, *SCHEDULE_S[:2]):
                home.time.ahead_ms += wait_s * 1000
                assert await tell(home.house, webhooks) == 1
            ids = {parsed(each)[0]["webhook-id"] for each in there.heard}
            assert (len(there.heard), len(ids)) == (3, 1)
            assert await outcomes(home) == [(3, "delivered")]

    lived(tmp_path, story, plan=WATCHED)


def test_it_is_given_up_after_the_last(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        async with receiver(*[b"503 No"] * 20) as there:
            assert (await home.caller().chat()).status == 429
            webhooks = hooks(there)
            await tell(home.house, webhooks)
            for wait_s in SCHEDULE_S:
                home.time.ahead_ms += wait_s * 1000
                assert await tell(home.house, webhooks) == 1
            home.time.ahead_ms += 10**9
            assert await tell(home.house, webhooks) == 0
            assert await outcomes(home) == [(len(SCHEDULE_S) + 1, "given_up")]

    lived(tmp_path, story, plan=WATCHED)


def test_a_receiver_that_wants_none_gets_none(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        async with receiver(b"410 Gone") as there:
            webhooks = hooks(there)
            assert (await home.caller().chat()).status == 429
            await tell(home.house, webhooks)
            assert (await home.caller("globex/carol").chat()).status == 429
            await tell(home.house, webhooks)
            assert len(there.heard) == 1
            assert sorted(str(each[1]) for each in await outcomes(home)) == ["gone", "logged"]

    lived(tmp_path, story, plan=WATCHED)


def test_without_a_receiver_it_is_in_the_log_once(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        lines: list[dict[str, Any]] = []
        house = replace(home.house, log=lambda event, **of: lines.append({"event": event, **of}))
        user: dict[str, object] = {
            "tenant": "acme", "usd": "0", "scope": "user", "id": "alice", "notify_at": [1.0],
        }  # fmt: skip
        assert (await home.operator().post("/v1/admin/budgets", user)).status == 200
        assert (await home.caller().chat()).status == 429
        await tell(house, None)
        await tell(house, None)
        (line,) = [each for each in lines if each["event"] == "budget.threshold_reached"]
        assert (line["scope"], line["tenant"], line["threshold"]) == ("user", "acme", 1.0)
        assert "alice" not in str(line)
        assert await outcomes(home) == [(1, "logged")]

    lived(tmp_path, story)


def test_a_shadow_budget_counts_what_it_would_have_refused(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        for mode, said in (("shadow", 1.0), ("soft", 1.0)):
            ask: dict[str, object] = {"tenant": "acme", "usd": "0", "mode": mode}
            assert (await home.operator().post("/v1/admin/budgets", ask)).status == 200
            assert (await home.caller().chat()).status == 200
            (mine,) = (await home.caller().get("/v1/me")).json()["budgets"]
            assert (mine["mode"], mine["hard"], mine["remaining_usd"]) == (
                mode,
                False,
                "0.000000000",
            )
            text = home.house.metrics.exposition().decode()
            assert f'lockgate_budget_shadow_refusals_total{{scope="tenant"}} {said}' in text

    lived(tmp_path, story)


def test_webhooks_as_configured(tmp_path: Path) -> None:
    settings = development(tmp_path, env={})
    assert open_webhooks(settings) is None
    file = tmp_path / "webhook.secret"
    wanted = msgspec.structs.replace(
        settings,
        mode=Mode.PRODUCTION,
        webhooks=Wanted(url="https://h/", secret_file=file, allow_private=True),
    )
    with pytest.raises(REFUSED, match=r"webhook\.secret"):
        open_webhooks(wanted)
    file.write_text("whsec_" + base64.b64encode(SECRET).decode())
    made = open_webhooks(wanted)
    assert made is not None
    assert (made.secrets, made.outbound.private, made.outbound.loopback) == ((SECRET,), True, False)
