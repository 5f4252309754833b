"""A machine from steps that were measured: what each of its terms takes, by least squares.

    minimise Σ (took − T̂)² / T̂  over coefficients ≥ 0,  T̂ as `Machine.step_ns` has it

Divided by the fitted time, all steps together take in T̂ what they took: a replay is neither faster nor
slower as a whole.  (By its square, short steps would decide; by the measured time, the fit would lie
below what it is fitted to.)  Five terms have 31 subsets: each is solved, and the best in which nothing is
negative is the optimum itself.  A step that took `_STALL` times its fitted time was the host's doing, not
the model's: set aside, and counted.

A plan takes a machine to loads that nobody measured, so what could not carry that is refused: too few steps
once stalls are set aside, or all of one size (a row and a step cannot be told apart), steps that the fit
does not explain, a machine that takes no time or for ever.

Refuses to know: files, engines, who measured.  Source: SCHEDULER.md §4, validation (3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import sqrt
from statistics import median
from typing import Final, NamedTuple

from executor.cost import Share
from executor.simulation.machine import TERM_NS_MAX, Machine

STEPS_MIN: Final = 50
SIZES_MIN: Final = 4  # different numbers of rows, and different prompts
STALLS_PART_MAX: Final = 0.2
EXPLAINED_MIN: Final = 0.5
"""Of the variance, where the steps lie far from the fit.  Steps that all take about as long have none to
explain."""
SPREAD_MAX: Final = 0.25
_TERMS: Final = 5
_ROUNDS: Final = 8
_STALL: Final = 4.0
_FLAT: Final = 1e-9  # a pivot (the largest is 1) of a term that others explain altogether

Terms = tuple[float, ...]


class Step(NamedTuple):
    """`took_ns`: until the next could begin, so with all that an engine does between two."""

    rows: Sequence[Share]
    took_ns: int


@dataclass(frozen=True, slots=True)
class Fitted:
    """`spread`: half of the steps lie within this part of their fitted time.  `explained`: the part of the
    variance (R²).  `set_aside`: stalls; neither counts them."""

    machine: Machine
    steps: int
    set_aside: int
    spread: float
    explained: float


class FitError(ValueError):
    """Steps that make no machine: what was wrong, what was expected, what to do."""


def fit(
    steps: Sequence[Step], *, name: str, seqs: int, block_tokens: int, kv_blocks: int
) -> Fitted:
    """FitError."""
    if any(step.took_ns < 0 for step in steps):
        raise FitError(
            "a step took less than no time; expected a clock that goes on: measure with a monotonic one"
        )
    terms = [_terms(step.rows) for step in steps]
    took = [float(max(1, step.took_ns)) for step in steps]
    about, kept = took, list(range(len(steps)))
    found: Terms = ()
    _enough(steps, len(steps), seqs)
    for _ in range(_ROUNDS):
        found = _least(
            [tuple(each / sqrt(about[i]) for each in terms[i]) for i in kept],
            [took[i] / sqrt(about[i]) for i in kept],
        )
        about = [max(1.0, _dot(found, each)) for each in terms]
        kept = [i for i in range(len(steps)) if took[i] < _STALL * about[i]]
        _enough([steps[i] for i in kept], len(steps), seqs)
    off = median(abs(took[i] / about[i] - 1) for i in kept)
    explained = _explained([took[i] for i in kept], [about[i] for i in kept])
    if explained < EXPLAINED_MIN and off > SPREAD_MAX:
        raise FitError(
            f"the steps do not follow from what was in them: the fit explains {max(0.0, explained):.0%} of "
            f"their variance, and half of them lie more than {off:.0%} from it; expected {EXPLAINED_MIN:.0%}, "
            f"or half of them within {SPREAD_MAX:.0%}: measure on a machine that does nothing else"
        )
    names = ("fixed_ns", "sequence_ns", "kv_token_ns", "token_ns", "pair_ns")
    by_name = dict(zip(names, found, strict=True))
    _sane(by_name)
    machine = Machine(
        name=name, seqs=seqs, block_tokens=block_tokens, kv_blocks=kv_blocks, **by_name
    )
    return Fitted(machine, len(steps), len(steps) - len(kept), off, explained)


def _enough(kept: Sequence[Step], measured: int, seqs: int) -> None:
    """FitError if what is left says too little of a machine of `seqs` rows."""
    stalls = measured - len(kept)
    aside = f" and {stalls} of them set aside as stalls, which leaves" if stalls else ","
    prompts = sum(any(row.new > 1 for row in step.rows) for step in kept)
    decodes = sum(any(row.new == 1 for row in step.rows) for step in kept)
    if len(kept) < STEPS_MIN or 2 * min(prompts, decodes) < STEPS_MIN:
        raise FitError(
            f"{measured} steps were measured{aside} {prompts} with a prompt, {decodes} with a decode; expected "
            f"{STEPS_MIN} or more, half as many of each kind: measure for longer, and both together"
        )
    if stalls > STALLS_PART_MAX * measured:
        raise FitError(
            f"{stalls} of {measured} steps took {_STALL:g} times as long as the others say; expected at most "
            f"{STALLS_PART_MAX:.0%} of them: something else runs on this machine; measure without it"
        )
    batches = len({len(step.rows) for step in kept})
    lengths = len({row.new for step in kept for row in step.rows if row.new > 1})
    for count, least, what, how in (
        (
            batches,
            min(SIZES_MIN, seqs),
            "numbers of rows",
            "at loads from little to a full house",
        ),
        (lengths, SIZES_MIN, "lengths of prompts", "with prompts of many lengths"),
    ):
        if count < least:
            raise FitError(
                f"the steps have {count} different {what}; expected {least} or more, so that what each costs "
                f"can be told from what a step costs: measure {how}"
            )


def _explained(took: Sequence[float], about: Sequence[float]) -> float:
    mean = sum(took) / len(took)
    whole = sum((each - mean) ** 2 for each in took)
    left = sum((a - b) ** 2 for a, b in zip(took, about, strict=True))
    return 1 - left / whole if whole else 1.0


def _sane(found: Mapping[str, float]) -> None:
    """No term is negative: of the subsets, none in which one would be was taken."""
    if not all(0 <= each <= TERM_NS_MAX for each in found.values()):  # and no NaN
        worst = max(found, key=found.__getitem__)
        raise FitError(
            f"`{worst}` would be {found[worst]:.3g}; expected 0 to {TERM_NS_MAX:.0e} ns: the times are in "
            "nanoseconds; look how they were taken"
        )
    if found["fixed_ns"] + found["sequence_ns"] <= 0:
        raise FitError(
            "a step of few tokens would take no time (`fixed_ns`, `sequence_ns`); expected some: measure small "
            "steps too, one request alone"
        )


def _terms(rows: Sequence[Share]) -> Terms:
    """What `Machine.step_ns` multiplies its coefficients with."""
    context = prompt = pairs = 0
    for new, start, _, _ in rows:
        context += start + new
        if new > 1:
            prompt += new
            pairs += new * (2 * start + new + 1)
    return 1.0, float(len(rows)), float(context), float(prompt), pairs / 2


def _least(rows: Sequence[Terms], aims: Sequence[float]) -> Terms:
    """θ ≥ 0 of the least Σ (aim − θ·row)²."""
    lengths = [sqrt(sum(row[i] ** 2 for row in rows)) for i in range(_TERMS)]
    unit = [[row[i] / (lengths[i] or 1.0) for i in range(_TERMS)] for row in rows]
    products = [[sum(u[i] * u[j] for u in unit) for j in range(_TERMS)] for i in range(_TERMS)]
    moments = [sum(u[i] * aim for u, aim in zip(unit, aims, strict=True)) for i in range(_TERMS)]
    best: dict[int, float] = {}
    gained = 0.0
    for count in range(1, _TERMS + 1):
        for used in combinations(range(_TERMS), count):
            theta = _solve(
                [[products[i][j] for j in used] for i in used], [moments[i] for i in used]
            )
            if theta is None or min(theta) < 0:
                continue
            gain = sum(moments[i] * each for i, each in zip(used, theta, strict=True))
            if gain > gained:
                gained, best = gain, dict(zip(used, theta, strict=True))
    return tuple(best.get(i, 0.0) / (lengths[i] or 1.0) for i in range(_TERMS))


def _solve(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """A symmetric positive definite system with ones on its diagonal; None if it is none."""
    size = len(right)
    for i in range(size):
        if matrix[i][i] <= _FLAT:
            return None
        for k in range(i + 1, size):
            factor = matrix[k][i] / matrix[i][i]
            for j in range(i, size):
                matrix[k][j] -= factor * matrix[i][j]
            right[k] -= factor * right[i]
    for i in reversed(range(size)):
        rest = sum(matrix[i][j] * right[j] for j in range(i + 1, size))
        right[i] = (right[i] - rest) / matrix[i][i]
    return right


def _dot(theta: Terms, terms: Terms) -> float:
    return sum(a * b for a, b in zip(theta, terms, strict=True))
