"""What budgets have come to is told: a log line, and a webhook where one is configured.

Delivery is at least once, with the row's id as `webhook-id`, so a receiver can tell a repeat.  What is
sent says whose budget it is and how much of it is spent; nothing of a request.
Source: Standard Webhooks; MONEY.md §3 ("Webhooks").
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from gateway.house import House
from gateway.views import when
from policies.price import in_usd
from policies.retry import retry_after_ms
from security.outbound import Outbound, Undelivered
from security.webhook_signing import signature
from tenants.outbox import PARTS, THRESHOLD, Reached, Told

EVERY_S = 5.0
GONE = 410


@dataclass(slots=True)
class Webhooks:
    """Where events are sent.  `disabled`: the receiver said that it wants none (410), until this process
    starts anew."""

    outbound: Outbound
    secrets: tuple[bytes, ...]
    draw: Callable[[], float] = random.random
    disabled: bool = False


async def keep_told(house: House, webhooks: Webhooks | None, *, every_s: float = EVERY_S) -> None:
    """For as long as the house stands.  A round that fails is logged, and its rows come again."""
    while True:
        await asyncio.sleep(every_s)
        try:
            await tell(house, webhooks)
        except Exception as why:  # noqa: BLE001 — the next round goes on
            house.log("housekeeping.failed", error=why)


async def tell(house: House, webhooks: Webhooks | None) -> int:
    """One round; returns how many were due."""
    due = await house.book.claim_told()
    for told in due:
        if told.attempt == 1:
            _log(house, told)
        await _deliver(house, webhooks, told)
    return len(due)


async def _deliver(house: House, webhooks: Webhooks | None, told: Told) -> None:
    if webhooks is None or webhooks.disabled:
        await house.book.told(told, outcome="logged")
        return
    body = msgspec.json.encode(event_view(house, told))
    now_s = house.clock.wall_ms() // 1000
    headers = {
        "content-type": "application/json",
        "user-agent": "lockgate",
        "webhook-id": told.id,
        "webhook-timestamp": str(now_s),
        "webhook-signature": signature(webhooks.secrets, told.id, now_s, body),
    }
    try:
        status: int | str = await webhooks.outbound.post(body, headers)
    except Undelivered as why:
        status = str(why)
    if isinstance(status, int) and 200 <= status < 300:
        await house.book.told(told, outcome="delivered")
        return
    wait_ms = retry_after_ms(told.attempt, webhooks.draw())
    if status == GONE:
        webhooks.disabled, wait_ms = True, None
        house.log("webhook.disabled", event_id=told.id)
    house.log(
        "webhook.failed",
        event_id=told.id,
        attempt=told.attempt,
        reason=str(status),
        again_in_ms=wait_ms,
    )
    if wait_ms is None:
        await house.book.told(told, outcome="gone" if status == GONE else "given_up")
    else:
        await house.book.told(told, again_after_ms=wait_ms)


def event_view(house: House, told: Told) -> dict[str, object]:
    """The body of a webhook."""
    what = told.what
    return {
        "type": THRESHOLD,
        "timestamp": when(told.at_ms),
        "data": {
            **_whose(house, what),
            "window": what.window_id,
            "threshold": what.threshold / PARTS,
            "limit_usd": in_usd(what.limit_nano_usd),
            "spent_usd": in_usd(what.spent_nano_usd),
            "held_usd": in_usd(what.held_nano_usd),
            "refused": what.refused,
            "resets_at": None if what.resets_at_s is None else when(what.resets_at_s * 1000),
        },
    }


def _whose(house: House, what: Reached) -> dict[str, object]:
    if what.scope == "tenant":
        return {"scope": what.scope, "tenant": what.account}
    if what.scope == "key":
        key = house.directory.key(what.account)
        return {"scope": what.scope, "tenant": key.tenant if key else None, "key": what.account}
    tenant, *name = msgspec.json.decode(what.account, type=list[str])
    fields = {"project": ("project",), "user": ("issuer", "user"), "tag": ("tag", "value")}
    return {
        "scope": what.scope,
        "tenant": tenant,
        **dict(zip(fields[what.scope], name, strict=True)),
    }


def _log(house: House, told: Told) -> None:
    """People by pseudonym, as everywhere in the log."""
    whose = _whose(house, told.what)
    if "user" in whose:
        tenant, issuer, user = (str(whose.pop(name)) for name in ("tenant", "issuer", "user"))
        whose |= {"tenant": tenant, "user": house.names.person(tenant, issuer, user)}
    house.log(
        THRESHOLD,
        event_id=told.id,
        **whose,
        window=told.what.window_id,
        threshold=told.what.threshold / PARTS,
        spent_usd=in_usd(told.what.spent_nano_usd),
        limit_usd=in_usd(told.what.limit_nano_usd),
        refused=told.what.refused,
    )
