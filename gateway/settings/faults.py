"""A fault in a configuration, and the exception that carries all of them.  Knows no rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.quoting import fit

PATH_CHARS_MAX = 200
SENTENCE_CHARS_MAX = 600


@dataclass(frozen=True, slots=True)
class Fault:
    """`path` as in the file (`plans.pro.models[0]`); the rest are the three things to say."""

    path: str
    wrong: str
    expected: str
    fix: str

    def __str__(self) -> str:
        return f"{self.path}: {self.wrong}. Expected: {self.expected}. {self.fix}"


def not_yet(path: str, wrong: str, neutral: str, why: str) -> Fault:
    return Fault(path, f"{wrong} is not supported yet", neutral, why)


def fitted(fault: Fault) -> Fault:
    """A value or a key of the file may be of any length, and of any characters."""
    wrong, expected, fix = (
        fit(each, SENTENCE_CHARS_MAX) for each in (fault.wrong, fault.expected, fault.fix)
    )
    return Fault(fit(fault.path, PATH_CHARS_MAX), wrong, expected, fix)


class SettingsError(Exception):
    """Every fault of one configuration, in the order of the file's tables."""

    def __init__(self, source: str, faults: Sequence[Fault]) -> None:
        assert faults
        self.source = source
        self.faults = tuple(map(fitted, faults))
        count = "one fault" if len(faults) == 1 else f"{len(faults)} faults"
        lines = "\n".join(f"  {fault}" for fault in self.faults)
        super().__init__(f"{source} has {count}; nothing was started.\n{lines}")
