"""The classes of a plan: their terms as words of a command, and which of them a request is of.

A request is of the class that its row says.  Those that say none are drawn, each at the parts that were
asked for and always the same ones; what these leave is of the first class that takes turns (a weight,
nothing reserved).

Refuses to know: configurations, how a class is scheduled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf, isfinite
from random import Random
from typing import Annotated, Final

import msgspec

from executor.contract import Workload
from executor.simulation.metrics_requests import Target
from executor.simulation.quoting import misfit, quoted
from executor.simulation.traces_rows import Arrival

CLASSES_MAX: Final = 64
_SEED: Final = 4
_SLACK: Final = 1e-9

_Part = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Ms = Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]


class ClassError(ValueError):
    """Classes that cannot be planned for: what was wrong, what was expected."""


class _Terms(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}\Z")]
    weight: Annotated[float, msgspec.Meta(gt=0, le=1e6)] | None = 1.0
    reserved: _Part = 0.0
    floor: _Part = 0.0
    ttft_ms: _Ms | None = None
    itl_ms: _Ms | None = None


_DECODER: Final = msgspec.json.Decoder(
    Annotated[list[_Terms], msgspec.Meta(min_length=1, max_length=CLASSES_MAX)]
)


def terms_of(text: str) -> tuple[Workload, ...]:
    """Of a JSON list with a class's terms in each object.  ClassError."""
    try:
        found = _DECODER.decode(text)
    except (msgspec.DecodeError, RecursionError) as broken:
        why = misfit(broken, "JSON list")
        raise ClassError(f"the classes cannot be read: {why}; {_EXPECTED}") from None
    if len({each.name for each in found}) < len(found):
        raise ClassError(f"a class stands twice; {_EXPECTED}")
    if sum(each.reserved for each in found) > 1 + _SLACK:
        raise ClassError("the reserved parts come to more than 1; expected to leave something")
    return tuple(Workload(**msgspec.structs.asdict(each)) for each in found)


_EXPECTED: Final = (
    'expected a JSON list like [{"name": "interactive", "weight": 1.0, "ttft_ms": 2000}], each class once, '
    "with name, weight, reserved, floor, ttft_ms, itl_ms"
)


def targets(workloads: Sequence[Workload]) -> dict[str, Target]:
    """Of the classes that are promised something; between tokens it is their mean, as it is judged live."""
    return {
        each.name: Target(
            inf if each.ttft_ms is None else each.ttft_ms / 1000,
            inf if each.itl_ms is None else each.itl_ms / 1000,
        )
        for each in workloads
        if each.ttft_ms is not None or each.itl_ms is not None
    }


@dataclass(frozen=True, slots=True)
class Rule:
    """Of requests that say no class: the part of each that was asked for, and who has the rest; None if
    nobody takes it."""

    parts: Mapping[str, float]
    rest: str | None


def rule_of(words: Sequence[str], workloads: Sequence[Workload]) -> Rule:
    """`words`: NAME=PART.  ClassError."""
    names = [each.name for each in workloads]
    parts: dict[str, float] = {}
    for word in words:
        name, equals, text = word.rpartition("=")
        try:
            value = float(text)
        except ValueError:
            value = inf
        if not equals or not 0 < value <= 1:
            raise ClassError(
                f"{quoted(word)} is no part of a class; expected NAME=PART, 0 < PART ≤ 1"
            )
        if name not in names or name in parts:
            why = "is given twice" if name in parts else "is no class of the configuration"
            raise ClassError(
                f"{quoted(name)} {why}; expected some of {', '.join(names)}, each once"
            )
        parts[name] = value
    whole = sum(parts.values())
    assert isfinite(whole)
    if whole > 1 + _SLACK:
        raise ClassError(f"the classes' parts come to {whole:g}; expected at most 1")
    if whole >= 1 - _SLACK:
        return Rule(parts, list(parts)[-1])
    turns = [each.name for each in workloads if each.weight is not None and not each.reserved]
    free = [name for name in turns if name not in parts] or turns
    return Rule(parts, free[0] if free else None)


def classed(
    arrivals: Sequence[Arrival], workloads: Sequence[Workload], rule: Rule
) -> list[Arrival]:
    """Each with its class.  ClassError if it says one that is unknown, or can be given none."""
    names = {each.name for each in workloads}
    unknown = sum(bool(each.workload) and each.workload not in names for each in arrivals)
    if unknown:
        raise ClassError(
            f"{unknown:,} of {len(arrivals):,} requests say a class that the configuration does not have; "
            f"expected one of {', '.join(sorted(names))}"
        )
    rng = Random(_SEED)  # noqa: S311  # a simulation, not a secret
    steps = list(zip(rule.parts, accumulate(rule.parts.values()), strict=True))

    def drawn() -> str:
        at = rng.random()
        name = next((name for name, upto in steps if at < upto), rule.rest)
        if name is None:
            raise ClassError(
                "some requests say no class and none takes what is left: every class is reserved or takes "
                "what others leave; expected parts that come to 1 (--class NAME=PART)"
            )
        return name

    return [each if each.workload else replace(each, workload=drawn()) for each in arrivals]
