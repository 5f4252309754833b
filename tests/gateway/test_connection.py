"""A connection that is over leaves nothing to the cyclic collector.

What only the collector frees stays until a full collection, and a server with a large heap at rest
makes few of those: it would look like a leak for a quarter of an hour."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from gateway import listen
from gateway.connection import GuardedConnection
from tests.gateway.raw_http import RawHttp, Running, request, until
from tests.gateway.test_listen import Tiny, play


async def answered(client: RawHttp) -> None:
    await client.send(request("GET /v1/x"))
    assert (await client.answer()).status == 200


async def left_while_it_waits(client: RawHttp) -> None:
    await client.send(request("POST /v1/wait", body=b"x"))


async def refused(client: RawHttp) -> None:
    await client.send(b"GET / HTTP/1.1\nHost: localhost\n\n")
    await client.rest()


async def silent(_: RawHttp) -> None:
    await asyncio.sleep(0)


@pytest.mark.parametrize("what", (answered, left_while_it_waits, refused, silent))
def test_a_connection_that_is_over_is_freed_at_once(
    what: Callable[[RawHttp], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[GuardedConnection]] = []

    def watched(*args: Any, **kwargs: Any) -> GuardedConnection:
        connection = GuardedConnection(*args, **kwargs)
        made.append(weakref.ref(connection))
        return connection

    async def scene(running: Running, tiny: Tiny) -> None:
        for _ in range(3):
            async with running.client() as client:
                await what(client)
        await until(lambda: len(made) == 3 and all(each() is None for each in made))

    monkeypatch.setattr(listen, "GuardedConnection", watched)
    gc.disable()
    try:
        play(scene)
    finally:
        gc.enable()
