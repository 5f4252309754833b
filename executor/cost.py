"""What a step costs, learnt from the steps that were measured; who pays for it; how much fits.

    T̂ = t0 + r·rows + a·Σ new + b·Σ new·context          weight of a row: wᵢ = t0/n + xᵢ

wᵢ is the exact Shapley value of that fixed-plus-additive game (MONEY.md, "GPU rule").  The split of
a *measured* step is in whole nanoseconds by largest remainder and adds up to it exactly.

Refuses to know: sequences, requests, clocks.  Pure but for `StepTimes`, which remembers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Final, NamedTuple

_KEEP: Final = 0.95  # a step's say fades with a half-life of about 14 steps
_PULL: Final = 0.03
_FLOOR_NS: Final = 1_000.0
_LATE_PART: Final = 0.01
_LATE_MOVES: Final = 0.02
_LATE_MAX: Final = 1.25


@dataclass(frozen=True, slots=True)
class Rates:
    """The four coefficients, in nanoseconds.  Never negative.  `sequence_ns` is what a row costs
    whatever its length: sampling above all.  `late`: how many times what they say a step with prompts
    takes, but for one in a hundred.  At least 1."""

    step_ns: float
    token_ns: float
    token_context_ns: float
    sequence_ns: float = 0.0
    late: float = 1.0

    @property
    def coefficients(self) -> tuple[float, float, float, float]:
        """t0, a, b, r."""
        return self.step_ns, self.token_ns, self.token_context_ns, self.sequence_ns

    def tokens_ns(self, new: int, start: int) -> float:
        """What `new` more tokens after `start` computed ones add to a row."""
        return new * (self.token_ns + self.token_context_ns * (start + (new + 1) / 2))

    def said_ns(self, rows: int, new: int, context: float) -> float:
        """A step of `rows` with `new` tokens in all; `context`: Σ new·context."""
        rest_ns = self.token_ns * new + self.token_context_ns * context
        return self.step_ns + self.sequence_ns * rows + rest_ns

    def row_ns(self, new: int, start: int) -> float:
        """xᵢ: what a row of `new` tokens after `start` computed ones adds to a step."""
        return self.sequence_ns + self.tokens_ns(new, start)

    def decodes_ns(self, starts: Iterable[int]) -> list[float]:
        """`row_ns(1, start)` of each, to the last bit: a step has hundreds."""
        row, token, context = self.sequence_ns, self.token_ns, self.token_context_ns
        return [row + (token + context * (start + 1.0)) for start in starts]


PESSIMIST: Final = Rates(step_ns=5e6, token_ns=1e6, token_context_ns=100.0, sequence_ns=1e5)
"""Before anything was measured: a slow machine, so the first chunk is short rather than long."""


_TERMS: Final = 4
_SCALES: Final = astuple(PESSIMIST)[:_TERMS]
"""What makes the pull on each coefficient comparable; faster machines feel less of it."""


def split(total: int, weights: Sequence[int]) -> list[int]:
    """`total` in whole parts proportional to `weights` (≥ 0, one above 0); the largest remainders,
    first come first, get the odd units.  The parts add up to `total` exactly."""
    whole = sum(weights)
    assert total >= 0
    assert whole > 0
    parts, remainders = [], []
    for weight in weights:
        part, remainder = divmod(total * weight, whole)
        parts.append(part)
        remainders.append(remainder)
    odd = total - sum(parts)
    if odd:
        order = sorted(range(len(parts)), key=lambda i: -remainders[i])
        for i in order[:odd]:
            parts[i] += 1
    return parts


class Share(NamedTuple):
    """A row of a step: `new` tokens after `start`, of which the first `lost` had been computed
    before a preemption threw them away, and the last `missed` were guesses that did not hold."""

    new: int
    start: int
    lost: int = 0
    missed: int = 0


def attribute(total_ns: int, rows: Sequence[Share], rates: Rates) -> list[tuple[int, int]]:
    """Split a measured step over its rows: (the request's, lost to preemption and to wrong
    guesses) each, nanoseconds.  A row's part of what is fixed is the request's all the same.  All of them together add up to `total_ns` exactly."""
    fixed = rates.step_ns / len(rows)
    weights: list[int] = []
    for row in rows:
        meant = row.new - row.missed
        missed = int(rates.tokens_ns(row.missed, row.start + meant)) if row.missed else 0
        weight = 1 + int(fixed + rates.row_ns(meant, row.start))
        lost = weight * row.lost // meant
        weights += (weight - lost, lost + missed)
    parts = split(total_ns, weights)
    return list(zip(parts[::2], parts[1::2], strict=True))


def lost_parts(lost_ns: int, row: Share, rates: Rates) -> tuple[int, int]:
    """What `attribute` says was lost in a row: to a preemption, and to wrong guesses."""
    if not row.missed or not lost_ns:
        return lost_ns, 0
    meant = row.new - row.missed
    missed = 1 + int(rates.tokens_ns(row.missed, row.start + meant))
    recompute_ns, guesses_ns = split(
        lost_ns, (int(rates.row_ns(meant, row.start)) * row.lost // meant, missed)
    )
    return recompute_ns, guesses_ns


class StepTimes:
    """Fits `Rates` to measured steps: least squares of the relative error with exponential
    forgetting, pulled slightly towards the last answer.  That pull decides where recent steps say
    nothing (only decodes for a minute), so that what was learnt of prompts is not forgotten.

    `late` follows its percentile by small moves (Robbins and Monro): up by 99 of them when a step took
    longer, down by one when it did not, so it stands where one in a hundred does.  Bounded, for no caution
    helps against a machine that stops.  Steps without prompts do not count: nobody can make them shorter."""

    __slots__ = ("_moments", "_products", "rates")

    def __init__(self, rates: Rates = PESSIMIST) -> None:
        self.rates = rates
        self._products = [[0.0] * _TERMS for _ in range(_TERMS)]
        self._moments = [0.0] * _TERMS

    def observe(self, rows: Sequence[Share], measured_ns: int) -> None:
        scale = max(float(measured_ns), _FLOOR_NS)
        new = sum(row.new for row in rows)
        context = sum(row.new * (row.start + (row.new + 1) / 2) for row in rows)
        late = self.rates.late
        if new > len(rows):
            said_ns = self.rates.said_ns(len(rows), new, context)
            exceeded = measured_ns > late * said_ns
            late += _LATE_MOVES * ((1 - _LATE_PART) if exceeded else -_LATE_PART)
            late = max(1.0, min(_LATE_MAX, late))
        x = (1.0 / scale, new / scale, context / scale, len(rows) / scale)
        for i in range(_TERMS):
            self._moments[i] = _KEEP * self._moments[i] + x[i]
            line = self._products[i]
            for j in range(_TERMS):
                line[j] = _KEEP * line[j] + x[i] * x[j]
        self.rates = replace(self._solve(), late=late)

    def _solve(self) -> Rates:
        """Solve (S + εD)·θ = r + εD·θ_last, dropping a coefficient that came out negative."""
        last = astuple(self.rates)[:_TERMS]
        used = list(range(_TERMS))
        while used:
            matrix, right = [], []
            for i in used:
                pull = _PULL / _SCALES[i] ** 2
                line = [self._products[i][j] + (pull if i == j else 0.0) for j in used]
                matrix.append(line)
                right.append(self._moments[i] + pull * last[i])
            found = _gauss(matrix, right)
            low = min(range(len(used)), key=lambda k: found[k])
            if found[low] >= 0:
                theta = dict(zip(used, found, strict=True))
                return Rates(*(theta.get(i, 0.0) for i in range(_TERMS)))
            del used[low]
        return self.rates


class TimeBudget:
    """How many prompt tokens still fit in this step, by time; never less than `floor_tokens` of
    them in a step (else decodes could starve every prompt), never more than `tokens_max`."""

    __slots__ = ("_floor", "_left_ns", "_rates", "_tokens_left")

    def __init__(
        self,
        rates: Rates,
        left_ns: float,
        *,
        floor_tokens: int = 16,
        tokens_max: int = 2048,
    ) -> None:
        self._rates = rates
        self._left_ns = left_ns
        self._floor = floor_tokens
        self._tokens_left = tokens_max

    def take(self, start: int, wanted: int) -> int:
        """Grant up to `wanted` tokens of a chunk that begins at `start`, and spend them."""
        granted = self.would_take(start, wanted)
        if granted > 0:
            self._left_ns -= self._rates.row_ns(granted, start)
            self._tokens_left -= granted
            self._floor = max(0, self._floor - granted)
        return granted

    @property
    def spent(self) -> bool:
        """Whether nobody would be granted anything any more."""
        timeless = self._floor == 0 and self._left_ns <= self._rates.sequence_ns
        return timeless or self._tokens_left == 0

    def would_take(self, start: int, wanted: int) -> int:
        most = min(wanted, self._tokens_left)
        return max(min(most, self._affordable(start)), min(most, self._floor))

    def _affordable(self, start: int) -> int:
        """The largest n with r + n·(a + b·(start + (n+1)/2)) ≤ what is left."""
        left_ns = self._left_ns - self._rates.sequence_ns
        if left_ns <= 0:
            return 0
        square = self._rates.token_context_ns / 2
        linear = self._rates.token_ns + self._rates.token_context_ns * (start + 0.5)
        if linear <= 0:
            return self._tokens_left
        # the citardauq form: no cancellation where the square term is tiny
        root: float = (linear * linear + 4 * square * left_ns) ** 0.5
        return int(min(2 * left_ns / (linear + root), self._tokens_left))


def _gauss(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Solve a small symmetric positive definite system; a dead pivot leaves its unknown at 0."""
    size = len(right)
    for i in range(size):
        pivot = matrix[i][i]
        if pivot <= 0:
            continue
        for k in range(i + 1, size):
            factor = matrix[k][i] / pivot
            for j in range(i, size):
                matrix[k][j] -= factor * matrix[i][j]
            right[k] -= factor * right[i]
    answer = [0.0] * size
    for i in range(size - 1, -1, -1):
        rest = right[i] - sum(matrix[i][j] * answer[j] for j in range(i + 1, size))
        answer[i] = rest / matrix[i][i] if matrix[i][i] > 0 else 0.0
    return answer
