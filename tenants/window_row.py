"""One row of a budget window in memory, and what a turn adds to it.

Refuses to know: which rows a request is counted in (windows).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from policies.till import Float
from tenants.counting import Sums
from tenants.places import Place

NO_FLOAT: Final = Float()


class Row:
    """One row, and what the turn adds to it."""

    __slots__ = (
        "end_s",
        "floated",
        "guarded",
        "hard",
        "limit",
        "noticed",
        "notify",
        "place",
        "read",
        "read_floated",
        "refused",
        "start_s",
        "sums",
        "told",
        "window_id",
    )

    def __init__(self, row: Mapping[Any, Any]) -> None:
        self.place = Place(row["scope"], row["account"])
        self.window_id: str = row["window_id"]
        self.start_s: int = row["start_s"]
        self.end_s: int | None = row["end_s"]
        self.limit: int = row["limit_nano_usd"]
        self.hard: bool = row["hard"]
        self.sums = self.read = sums_of(row)
        self.notify: str = row["notify"]
        self.noticed: int = row["noticed"]
        self.told = (self.notify, self.noticed)
        self.floated = self.read_floated = float_of(row)
        self.guarded = False  # a hard budget of this one row has let something through
        self.refused = False

    def holds(self, at_s: int) -> bool:
        return self.start_s <= at_s and (self.end_s is None or at_s < self.end_s)

    @property
    def changed(self) -> bool:
        return (
            self.guarded
            or self.read != self.sums
            or self.told != (self.notify, self.noticed)
            or self.read_floated != self.floated
        )

    @property
    def over(self) -> bool:
        """More is set aside than is left: an overrun, or a limit that was lowered."""
        spent, held, topped_up = self.sums
        return spent + held + self.floated.nano_usd > self.limit + topped_up


def sums_of(row: Mapping[Any, Any]) -> Sums:
    return Sums(row["spent"], row["held"], row["topped_up"])


def float_of(row: Mapping[Any, Any]) -> Float:
    return Float(row["epoch"], row["floated"], row["issued"]) if row["epoch"] else NO_FLOAT
