"""What is done again and again while the house stands: leases and holds renewed, what was left resolved."""

from __future__ import annotations

import asyncio

from gateway.house import House
from security.audit import AuditEvent, RegisteredEvent

RENEW_S = 15.0
SWEEP_S = 5.0


async def keep_house(house: House, *, every_s: float = SWEEP_S) -> None:
    """Renew what runs, resolve what was left behind.  A round that fails is logged and tried again:
    without this task every lease would lapse under running requests."""
    since_renewal_s = 0.0
    while True:
        await asyncio.sleep(every_s)
        since_renewal_s += every_s
        try:
            if since_renewal_s >= RENEW_S:
                await renew(house)
                since_renewal_s = 0.0
            await expire(house)
            swept = await house.book.sweep()
            if swept.expired or swept.voided:
                house.log(
                    "book.swept", voided_count=len(swept.voided), expired_count=len(swept.expired)
                )
        except Exception as why:  # noqa: BLE001 — see above
            house.log("housekeeping.failed", error=why)


async def expire(house: House) -> None:
    """Registered texts whose time is over are removed, and that is recorded."""
    for gone in await house.registered.sweep():
        event = RegisteredEvent.DOCUMENT_EXPIRED
        await house.audit.append(
            AuditEvent(
                kind=event.value,
                tenant=gone.tenant,
                target=None if gone.tenant is None else house.names.document(gone.tenant, gone.id),
                outcome="done",
            )
        )


async def renew(house: House) -> None:
    """Keep the leases and holds of everything that runs now."""
    running = house.live.ids()
    await house.tempo.renew(running)
    await house.book.renew(running)
