"""Timers of the running event loop, moved on by hand: a test that waits for one is not in a race with the machine."""

from __future__ import annotations

import asyncio


async def pass_time(seconds: float) -> None:
    """The loop's clock goes on by so much, and what is due then is done."""
    loop = asyncio.get_running_loop()
    before = loop.time
    loop.time = lambda: before() + seconds  # type: ignore[method-assign]
    for _ in range(4):  # a timer's call, who waited for it, and who waits for that
        await asyncio.sleep(0)
