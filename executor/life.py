"""How an executor's time went before it served: read, recorded, warmed up; each its own account.

Refuses to know: models, what a stage does.  Time is an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

WARMING: Final = "warming up"
RECORDING: Final = "recording graphs"
"""Stages of loading that are accounts of their own; all others are `load`."""
_KINDS: Final = {WARMING: "warm_up", RECORDING: "capture"}


@dataclass(frozen=True, slots=True)
class Life:
    """One start of an executor, up to where it serves.  `start` names it and no other."""

    start: str
    began_ns: int
    devices: int = 1
    load_ns: int = 0
    capture_ns: int = 0
    warm_up_ns: int = 0


class Opening:
    """Begins when it is made; `told` of each stage."""

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self._began_ns = self._since_ns = clock_ns()
        self._kind = "load"
        self._spent_ns = dict.fromkeys(("load", *_KINDS.values()), 0)

    def told(self, stage: str) -> None:
        """What was done so far is that of the stage before."""
        now_ns = self._clock_ns()
        self._spent_ns[self._kind] += now_ns - self._since_ns
        self._since_ns = now_ns
        self._kind = _KINDS.get(stage, "load")

    def over(self, start: str) -> Life:
        """It serves from now on."""
        self.told("")
        spent = {f"{kind}_ns": ns for kind, ns in self._spent_ns.items()}
        return Life(start, self._began_ns, **spent)
