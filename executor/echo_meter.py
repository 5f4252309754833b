"""The device that an echo has not: time between two changes goes in even parts to those who speak, and is
idle while nobody does.

Refuses to know: the echo, tokens.  Time is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from secrets import token_hex
from typing import Protocol

from executor.contract import DeviceTime
from executor.cost import split


class Metered(Protocol):
    device_ns: int


class Meter:
    """Of one start."""

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self.start = token_hex(8)
        self._clock_ns = clock_ns
        self._began_ns = self._since_ns = clock_ns()
        self.busy_ns = 0

    def charge(self, speaking: Sequence[Metered]) -> None:
        """What went by since the last time; before whoever speaks changes."""
        now_ns = self._clock_ns()
        took_ns, self._since_ns = now_ns - self._since_ns, now_ns
        if speaking and took_ns > 0:
            self.busy_ns += took_ns
            for each, part in zip(speaking, split(took_ns, [1] * len(speaking)), strict=True):
                each.device_ns += part

    def device(self) -> DeviceTime:
        return DeviceTime(
            start=self.start,
            devices=1,
            wall_ns=self._since_ns - self._began_ns,
            attributed_ns=self.busy_ns,
            rule="even-1",
        )
