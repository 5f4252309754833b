"""A fault in a configuration, and the exception that carries all of them.  Knows no rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """`path` as in the file (`plans.pro.models[0]`); the rest are the three things to say."""

    path: str
    wrong: str
    expected: str
    fix: str

    def __str__(self) -> str:
        return f"{self.path}: {self.wrong}. Expected: {self.expected}. {self.fix}"


class SettingsError(Exception):
    """Every fault of one configuration, in the order of the file's tables."""

    def __init__(self, source: str, faults: Sequence[Fault]) -> None:
        assert faults
        self.source = source
        self.faults = tuple(faults)
        count = "one fault" if len(faults) == 1 else f"{len(faults)} faults"
        lines = "\n".join(f"  {fault}" for fault in faults)
        super().__init__(f"{source} has {count}; nothing was started.\n{lines}")
