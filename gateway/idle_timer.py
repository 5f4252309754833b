"""When a connection that waits for its next request is closed: Hypercorn's `SingleTask`, as a timer.

Hypercorn's own is a task that sleeps, made anew and cancelled for every request.
Refuses to know: how a connection is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from hypercorn.typing import TaskGroup

Close = Callable[[], Coroutine[Any, Any, None]]


class IdleTimer:
    """`restart` hands over what closes the connection, to be run after `idle_s`; at once where `over` says
    that nothing more is to be served."""

    def __init__(self, idle_s: float, over: Callable[[], bool]) -> None:
        self._idle_s = idle_s
        self._over = over
        self._timer: asyncio.TimerHandle | None = None
        self._close: Close | None = None
        self._closing: asyncio.Task[None] | None = None

    async def restart(self, _: TaskGroup, action: Close) -> None:
        await self.stop()
        self._close = action
        delay_s = 0.0 if self._over() else self._idle_s
        self._timer = asyncio.get_running_loop().call_later(delay_s, self.end)

    async def stop(self) -> None:
        """What has begun to close goes on."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._close = None

    def end(self) -> None:
        """Wait no longer.  Nothing where a request is under way."""
        close, self._close = self._close, None
        if close is not None:
            self._closing = asyncio.get_running_loop().create_task(close())
