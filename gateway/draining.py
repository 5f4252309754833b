"""How a server ends: first it says so, then nothing new is taken in, then what runs ends or is ended.

    SIGTERM or SIGINT → `/ready` answers 503 and so does whoever comes → what runs has `drain_s` to end by
    itself → it is ended, each with an event that says so → listeners close, idle connections too
    → what is still being told has its last words → what has no answer by then is told the same → the process ends

A second signal does not wait for what runs.  Refuses to know: signals, listeners.
Source: API.md §0 (2) and case 63.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from gateway.errors import shutting_down
from gateway.house import House


@dataclass(slots=True)
class Switch:
    """How a server ends.  `draining`: from the first signal on nothing new is taken in, and `/ready`
    says so; `shutdown`: the listeners close.  A second signal does not wait."""

    draining: asyncio.Event = field(default_factory=asyncio.Event)
    shutdown: asyncio.Event = field(default_factory=asyncio.Event)

    def turn(self) -> None:
        if self.draining.is_set():
            self.shutdown.set()
        self.draining.set()


async def drain(house: House, switch: Switch, drain_s: float) -> None:
    """After the first signal: let what runs end by itself for `drain_s`, or until the second, then end it with an
    event that says so, then close.  Whoever has sent its body only by then is told the same."""
    await switch.draining.wait()
    house.log("draining", count=len(house.live))
    waits = [asyncio.ensure_future(each) for each in (house.live.emptied(), switch.shutdown.wait())]
    try:
        await asyncio.wait(waits, timeout=drain_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waits:
            each.cancel()
    if count := house.live.close(shutting_down):
        house.log("draining.over", count=count)
    switch.shutdown.set()
