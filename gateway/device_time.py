"""Asks the executors what their devices did, and keeps it in the book.

An idle executor says nothing by itself, so it is asked every few seconds, beside whatever it does.  What could
not be written waits here: counters are cumulative, so the newest of each start is all there is to keep.

Refuses to know: how accounts add up (`tenants.devices`), who pays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from executor.contract import OVERHEAD, DeviceTime, Executor, ExecutorLost
from tenants.device_book import DeviceBook
from tenants.devices import DeviceReport
from tenants.store import StoreUnavailable

EVERY_S: Final = 5.0
UNWRITTEN_MOST: Final = 4096
"""Starts that may wait for the database; of more the oldest are forgotten, and told of."""
AGAIN_EVERY: Final = 720
"""In rounds, once an hour: whether records came for starts that are over."""


class DeviceAccounts:
    """One for a gateway, of the executors that it started."""

    def __init__(self, book: DeviceBook, log: Callable[..., None]) -> None:
        self._book = book
        self._log = log
        self._executors: dict[str, Executor] = {}
        self._heard: dict[str, tuple[DeviceReport, bool]] = {}
        self._rounds = 0

    def follow(self, executors: Iterable[tuple[str, Executor]]) -> None:
        """By the name of the model that each serves."""
        self._executors = dict(executors)

    async def keep(self, *, every_s: float = EVERY_S) -> None:
        """Round after round.  One that fails is made up for by the next."""
        while True:
            await asyncio.sleep(every_s)
            try:
                await self.round(again=self._rounds % AGAIN_EVERY == 0)
                self._rounds += 1
            except StoreUnavailable:
                pass  # told by whoever keeps the house
            except Exception as why:  # noqa: BLE001 — the next round goes on
                self._log("housekeeping.failed", error=why)

    async def round(self, *, again: bool = False) -> None:
        """Hear all, and write it.  `again`: look once more at all starts of the last days.  StoreUnavailable:
        it is kept, and written with the next."""
        await asyncio.gather(*(_asked(each) for each in self._executors.values()))
        await self.write()
        await self._book.sweep(again=again)

    async def write(self) -> None:
        """What was heard so far, without asking.  StoreUnavailable."""
        self._hear()
        told = dict(self._heard)
        if told:
            await self._book.tell(tuple(told.values()))
        for start, what in told.items():
            if self._heard.get(start) == what:
                del self._heard[start]

    async def last_words(self) -> None:
        """Once the executors have ended."""
        with suppress(StoreUnavailable):
            await self.write()

    def _hear(self) -> None:
        for model, executor in self._executors.items():
            for past in executor.take_past():
                self._heard[past.start] = (report_of(model, past), True)
            if (device := executor.gauges.device) is not None:
                self._heard[device.start] = (report_of(model, device), False)
        while len(self._heard) > UNWRITTEN_MOST:
            start = next(iter(self._heard))
            del self._heard[start]
            self._log("device_time.forgotten", start=start)


async def _asked(executor: Executor) -> None:
    """One that does not answer is accounted for by what it said last."""
    with suppress(ExecutorLost):
        await executor.measure()


def report_of(model: str, device: DeviceTime) -> DeviceReport:
    return DeviceReport(
        start=device.start,
        model=model,
        devices=device.devices,
        rule=device.rule,
        coefficients=",".join(f"{each:.6g}" for each in device.coefficients),
        wall_ns=device.wall_ns,
        attributed_ns=device.attributed_ns,
        **{f"{kind}_ns": getattr(device, f"{kind}_ns") for kind in OVERHEAD},
    )
