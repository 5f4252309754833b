"""What an executor's devices did since it began (a part of `contract`, which shows it).

Every nanosecond of `wall_ns` × `devices` is in one account: a request's, one kind of overhead, or idle.
Source: MONEY.md §1, invariant 8; §2 ("GPU rule").
"""

from __future__ import annotations

from typing import Final

import msgspec

RULE: Final = "shapley-fitted-1"
"""How a measured step is split over its requests (`cost.attribute`), by coefficients fitted as it goes
(`cost.StepTimes`).  Another rule has another name."""

OVERHEAD: Final = (
    "load",  # reading and placing the model
    "capture",  # recording what a GPU replays
    "warm_up",
    "recompute",  # work that a preemption threw away
    "wrong_guesses",
    "failed_steps",
    "empty_steps",  # all of whose rows were kept already: nothing was computed for anybody
)
"""The closed set of kinds; `DeviceTime` has `<kind>_ns` for each."""


class DeviceTime(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Cumulative, in nanoseconds, as of the last look at the clock before the report.  `start` names this
    start of the executor and no other; `attributed_ns` went to requests; `coefficients` (t0, a, b, r of
    `cost`) are those in use now, which move with every step."""

    start: str
    devices: int
    wall_ns: int
    attributed_ns: int
    load_ns: int = 0
    capture_ns: int = 0
    warm_up_ns: int = 0
    recompute_ns: int = 0
    wrong_guesses_ns: int = 0
    failed_steps_ns: int = 0
    empty_steps_ns: int = 0
    rule: str = RULE
    coefficients: tuple[float, ...] = ()

    @property
    def idle_ns(self) -> int:
        """What is left: nobody's step ran, also while the next was planned."""
        overhead_ns: int = sum(getattr(self, f"{kind}_ns") for kind in OVERHEAD)
        return self.wall_ns * self.devices - self.attributed_ns - overhead_ns
