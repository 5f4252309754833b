"""A machine from steps that were measured: what each of its terms takes, by least squares.

    minimise Σ (took − T̂)² / T̂  over coefficients ≥ 0,  T̂ as `Machine.step_ns` has it

Divided by the fitted time, all steps together take in T̂ what they took: a replay is neither faster nor
slower as a whole.  (By its square, short steps would decide; by the measured time, the fit would lie
below what it is fitted to.)  Five terms have 31 subsets: each is solved, and the best in which nothing is
negative is the optimum itself.  A step that took `_STALL` times its fitted time was the host's doing, not
the model's: set aside, and counted.

Refuses to know: files, engines, who measured.  Source: SCHEDULER.md §4, validation (3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import sqrt
from statistics import median
from typing import Final, NamedTuple

from executor.cost import Share
from executor.simulation.machine import Machine

STEPS_MIN: Final = 50
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
    """`spread`: half of the steps lie within this part of their fitted time.  `set_aside`: stalls."""

    machine: Machine
    steps: int
    set_aside: int
    spread: float


def fit(
    steps: Sequence[Step], *, name: str, seqs: int, block_tokens: int, kv_blocks: int
) -> Fitted:
    """ValueError where there are too few steps, or too few with a prompt, or with a decode."""
    prompts = sum(any(row.new > 1 for row in step.rows) for step in steps)
    decodes = sum(any(row.new == 1 for row in step.rows) for step in steps)
    if len(steps) < STEPS_MIN or 2 * min(prompts, decodes) < STEPS_MIN:
        raise ValueError(
            f"{len(steps)} steps were measured, {prompts} with a prompt, {decodes} with a decode; expected "
            f"{STEPS_MIN} or more, half as many of each kind: measure for longer, and both together"
        )
    terms = [_terms(step.rows) for step in steps]
    took = [float(max(1, step.took_ns)) for step in steps]
    about, kept = took, list(range(len(steps)))
    found: Terms = ()
    for _ in range(_ROUNDS):
        found = _least(
            [tuple(each / sqrt(about[i]) for each in terms[i]) for i in kept],
            [took[i] / sqrt(about[i]) for i in kept],
        )
        about = [max(1.0, _dot(found, each)) for each in terms]
        kept = [i for i in range(len(steps)) if took[i] < _STALL * about[i]]
    off = [abs(took[i] / about[i] - 1) for i in kept]
    names = ("fixed_ns", "sequence_ns", "kv_token_ns", "token_ns", "pair_ns")
    machine = Machine(
        name=name,
        seqs=seqs,
        block_tokens=block_tokens,
        kv_blocks=kv_blocks,
        **dict(zip(names, found, strict=True)),
    )
    return Fitted(machine, len(steps), len(steps) - len(kept), median(off))


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
