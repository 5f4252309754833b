"""Webhooks as configured."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from gateway.house import House
from gateway.notifying import Webhooks, keep_told
from gateway.settings import Settings
from gateway.settings.shape import Mode
from security.outbound import Outbound
from security.webhook_signing import read_secrets


def open_webhooks(settings: Settings) -> Webhooks | None:
    """None where none are wanted.  Raises BadSecret.  Development may send to this machine."""
    wanted = settings.webhooks
    if not wanted.url or wanted.secret_file is None:
        return None
    outbound = Outbound(
        wanted.url,
        private=wanted.allow_private,
        loopback=settings.mode is Mode.DEVELOPMENT,
    )
    return Webhooks(outbound, read_secrets(wanted.secret_file))


@asynccontextmanager
async def telling(house: House, settings: Settings) -> AsyncIterator[None]:
    """What is due is told for as long as this is open."""
    task = asyncio.create_task(keep_told(house, open_webhooks(settings)))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
