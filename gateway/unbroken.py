"""Finish what has begun, then be cancelled.

The unwinding of a request consists of effects that must not be left half done: freeing its turns,
settling, giving back, the audit record.  A caller may leave, a deadline strike and the server stop
in any of their awaits, and more than one of them.  Each effect bounds its own duration.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


async def unbroken(work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns or raises.  If cancelled meanwhile, it is awaited all the same and the
    cancellation is raised after it, since whoever cancelled is who waits."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        over: asyncio.Future[None] = (
            loop.create_future()
        )  # `asyncio.wait` of one costs twice as much
        task.add_done_callback(partial(_tell, over))
        try:
            await over
        except asyncio.CancelledError as why:
            cancelled = why
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # taken note of
        raise cancelled
    return task.result()


def _tell(over: asyncio.Future[None], _: object) -> None:
    if not over.done():
        over.set_result(None)
