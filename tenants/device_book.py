"""The accounts of device time as a gateway has them: an asynchronous face on `devices`.

Refuses to know: executors, who may read what is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import Connection

from tenants import devices
from tenants.devices import DeviceReport
from tenants.store import Store


class DeviceBook:
    """`owner` names this process, anew at each start; `clock_ms` is wall time, which decides where the
    database has no clock of its own."""

    def __init__(self, store: Store, *, owner: str, clock_ms: Callable[[], int]) -> None:
        self._store = store
        self._owner = owner
        self._now_ms = store.clock_ms(clock_ms)

    async def tell(self, heard: Sequence[tuple[DeviceReport, bool]]) -> None:
        """Each with whether its start is over.  StoreUnavailable: tell it again."""

        def op(conn: Connection) -> None:
            now_ms = self._now_ms(conn)
            devices.tell_all(conn, heard, owner=self._owner, now_ms=now_ms)

        await self._store.write(op)

    async def sweep(self, *, again: bool = False) -> int:
        """End what was left behind.  `again`: and see whether more was recorded for what ended this week."""

        def op(conn: Connection) -> int:
            now_ms = self._now_ms(conn)
            alone = not self._store.shared
            ended = devices.sweep(conn, owner=self._owner, now_ms=now_ms, alone=alone)
            if again:
                devices.again(conn, now_ms=now_ms)
            return ended

        return await self._store.write(op)
