"""What is done again and again while the house stands: leases and holds renewed, what was left resolved."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gateway.house import House
from gateway.left_behind import book_left
from gateway.registered_records import confirmed, event_of, require_log, write
from security.audit import RegisteredEvent

RENEW_S = 15.0
TIDY_S = 60.0
SWEEP_S = 5.0
SKEW_MS = 2_000
"""Further apart than this, and an operator should look at the clocks (MONEY.md §1)."""


async def keep_house(house: House, run: Path, *, every_s: float = SWEEP_S) -> None:
    """Renew what runs, resolve what was left behind, also below `run`.  A step that fails is logged and tried again:
    without this task every lease would lapse under running requests."""
    since_renewal_s = 0.0
    since_tidied_s = 0.0
    away = skewed = False
    while True:
        await asyncio.sleep(every_s)
        since_tidied_s += every_s
        since_renewal_s += every_s
        if since_renewal_s >= RENEW_S and await _done(renew(house), house):
            since_renewal_s = 0.0
        for step in (expire, settle, catch_up, sweep_book, sweep_keys, sweep_stored):
            await _done(step(house), house)
        if since_tidied_s >= TIDY_S:
            since_tidied_s = 0.0
            await _done(tidy(house), house)
        await _done(book_left(house, run), house)
        if house.book.away is not away:  # once, however often it is asked
            away = house.book.away
            house.log("book.away" if away else "book.back")
        skew_ms = house.book.clock_skew_ms
        if (abs(skew_ms) > SKEW_MS) is not skewed:
            skewed = not skewed
            house.log("clock.skewed" if skewed else "clock.agrees", ahead_ms=skew_ms)


async def _done(step: Coroutine[Any, Any, None], house: House) -> bool:
    try:
        await step
    except Exception as why:  # noqa: BLE001 — see above
        house.log("housekeeping.failed", error=why)
        return False
    return True


async def keep_sealed(house: House, *, every_s: float = SWEEP_S) -> None:
    """Whatever a rotation left under an old secret, also one before this process."""
    house.rotations.pending.update(
        tenant for tenant in house.directory.tenants() if house.secrets.newest(tenant) > 1
    )
    while True:
        await asyncio.sleep(every_s)
        try:
            now_ns = house.clock.monotonic_ns()
            if count := await house.rotations.round(house.registered, house.stored, now_ns):
                house.log("registered.resealed", count=count)
        except Exception as why:  # noqa: BLE001 — the next round goes on
            house.log("housekeeping.failed", error=why)


async def expire(house: House) -> None:
    """Registered texts whose time is over are removed, and that is recorded."""
    require_log(house)
    gone = await house.registered.expire()
    expired = [event_of(house, RegisteredEvent.DOCUMENT_EXPIRED, each) for each in gone]
    await write(house, [replace(each, outcome="pending") for each in expired])


async def settle(house: House) -> None:
    """What was taken away and is not confirmed is asked for again, and that it is over is recorded."""
    await write(house, confirmed(house, await house.registered.sweep()))


async def catch_up(house: House) -> None:
    """What was used while the store was away; before the sweep, else its leases would lapse as if nobody
    knew.  Apart from it, so that an end that cannot be booked keeps no other's hold."""
    while booked := await house.book.book_journal():
        house.log("book.caught_up", count=booked)


async def sweep_book(house: House) -> None:
    swept = await house.book.sweep()
    if swept.expired or swept.voided:
        house.log("book.swept", voided_count=len(swept.voided), expired_count=len(swept.expired))


async def sweep_keys(house: House) -> None:
    """A slice of the idempotency keys whose day is over; what is kept is counted anew."""
    await house.runs.sweep()


async def sweep_stored(house: House) -> None:
    """A slice of the stored responses whose time is over, or over which somebody died."""
    await house.stored.sweep()


async def tidy(house: House) -> None:
    """A slice of what is kept no longer: people's names, how a request went."""
    done = await house.retention.sweep()
    if done.renamed or done.purged:
        house.log("retention.kept", renamed_count=done.renamed, purged_count=done.purged)


async def renew(house: House) -> None:
    """Keep the leases and holds of everything that runs now."""
    running = house.live.ids()
    await house.tempo.renew(running)
    await house.book.renew(running)
    await house.runs.renew()
    await house.stored.renew()
