"""Whether a newcomer's first token can come in time, by its own tenant's part of the machine and not by
the whole queue: so nobody else can make the answer wrong.

Its tenant is sure of some rows.  Each comes free when who holds it has said what is expected of it; those
ahead take them one after another, and the newcomer the next (Kiefer and Wolfowitz, 1955).  To that come
the prompts at their tenant's part of the time.  Steps are taken to last as long as those of a full house.
All of it times a factor learnt so that ninety-nine of a hundred such predictions are not too short.

Who would be late is told now, and when it would not be.  A prompt that takes longer than the promise on an
empty machine is promised nothing.
Refuses to know: who asks, how a refusal is worded.  Source: SCHEDULER.md §2, "Admission".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from math import exp, log
from typing import Final, NamedTuple

from executor.cost import Rates
from executor.scheduler.peak import Row

IN_TIME: Final = 0.99  # of those who are let in
RETRY_MS_MIN: Final = 50
RETRY_MS_MAX: Final = 600_000
JITTER: Final = 0.2  # either way, so that those who were refused together do not come back together
MARGIN: Final = 1.1  # rather a little too late than in vain
_NOTCHES: Final = (1.0, 1.25, 1.6, 2.0, 2.5, 3.2, 4.0, 5.0, 6.4, 8.0)
FACTOR_AT_FIRST: Final = 1.5
_FACTOR_MIN, _FACTOR_MAX = 0.5, 6.0
_PACE: Final = 0.1
_FADE_NS: Final = 20e9
_LAST_STEPS: Final = 2  # the one that is running, and the one that says the first token


@dataclass(frozen=True, slots=True)
class Refusal:
    """Too much of its own tenant's is here.  `retry_ms`: when it would be taken, as far as can be known."""

    retry_ms: int


class Ahead(NamedTuple):
    """One that goes before: tokens of its prompt to compute, tokens that it will probably say."""

    prompt_tokens: int
    answer_tokens: int


NOTHING: Final = Ahead(0, 0)


@dataclass(frozen=True, slots=True)
class Room:
    """What a tenant is sure of: its part of the time and of the memory, and so many rows as they come and go,
    parts of one counted.  `step_ns`: what a step of decodes takes."""

    share: float
    rows: float
    tokens: float
    step_ns: float

    def prompt_ns(self, tokens: int, rates: Rates) -> float:
        """Its own part of the time has to do for it."""
        return rates.row_ns(tokens, 0) / self.share if tokens else 0.0

    def steps(self, ahead: Ahead, rates: Rates) -> float:
        """For which it has one of the rows: while its prompt is computed all of them stand still."""
        stand_ns = self.prompt_ns(ahead.prompt_tokens, rates) * self.rows
        return ahead.answer_tokens + stand_ns / self.step_ns


class Own(NamedTuple):
    """Of a tenant alone.  `running`: what each has still to say, and knows; `waiting`: in order; `rest`: of
    those behind them in sum; `begun_tokens`: of prompts that are being computed."""

    running: Sequence[Row] = ()
    waiting: Sequence[Ahead] = ()
    begun_tokens: int = 0
    rest: Ahead = NOTHING


def first_token_ns(new: Ahead, own: Own, room: Room, rates: Rates) -> float:
    """From now, without the factor.  O(waiting · log rows)."""
    count = rows_now(new, own, room)
    faster = room.rows / count
    lefts = sorted(left for left, _ in own.running)
    free_in = [float(left) for left in lefts[-count:]]  # in steps
    free_in += [0.0] * (count - len(free_in))
    heapify(free_in)
    for each in own.waiting:
        steps = room.steps(each, rates)
        heapreplace(free_in, free_in[0] + steps / faster if free_in[0] else steps)
    steps = free_in[0] + room.steps(own.rest, rates) / room.rows + _LAST_STEPS
    prompts_ns = room.prompt_ns(own.begun_tokens + new.prompt_tokens, rates)
    return steps * room.step_ns + prompts_ns


def rows_now(new: Ahead, own: Own, room: Room) -> int:
    """Those that its part of the memory bears if each holds all of its own at once, on average."""
    held = [left + known for left, known in own.running]
    held += [each.prompt_tokens + each.answer_tokens for each in (*own.waiting, new)]
    return max(1, int(min(room.rows, room.tokens * len(held) / sum(held))))


class Experience:
    """How predictions for one tenant in one class came out: the factor by which `IN_TIME` of them are long
    enough.  A step up for each that was too short, a ninety-ninth of it down for each that was not (the
    gradient of the quantile's loss).  It fades: only those who are let in correct it, so what was learnt in
    a bad minute would keep everybody out for ever."""

    __slots__ = ("_at_ns", "_factor")

    def __init__(self) -> None:
        self._factor = FACTOR_AT_FIRST
        self._at_ns = 0

    def factor(self, now_ns: int) -> float:
        left = exp(-max(0, now_ns - self._at_ns) / _FADE_NS)
        return FACTOR_AT_FIRST * exp(log(self._factor / FACTOR_AT_FIRST) * left)

    def saw(self, predicted_ns: float, taken_ns: float, now_ns: int) -> None:
        """`predicted_ns` as it was without the factor."""
        factor = self.factor(now_ns)
        late = taken_ns > predicted_ns * factor
        factor *= exp(_PACE * (IN_TIME if late else IN_TIME - 1))
        self._factor = min(_FACTOR_MAX, max(_FACTOR_MIN, factor))
        self._at_ns = max(now_ns, self._at_ns)


def can_promise(prompt_tokens: int, promised_ms: int, rates: Rates) -> bool:
    """Whether it would be in time on an empty machine."""
    return rates.row_ns(prompt_tokens, 0) + rates.step_ns <= promised_ms * 1e6


def late_by_ns(predicted_ns: float, factor: float, promised_ns: float) -> float:
    """How much of the prediction, which runs down as time does, is too much now.  At most 0: none."""
    return predicted_ns - promised_ns / factor


def told_ms(wait_ns: float, seed: int) -> int:
    """A wait as somebody is told it: with `MARGIN`, up to `JITTER` more or less, by `seed`, then up to the
    next of few numbers (ten in a decade), so that it says little of the house."""
    spread = 2 * (_mixed(seed) / 2**64) - 1
    wait_ms = wait_ns / 1e6 * MARGIN * (1 + JITTER * spread)
    return min(RETRY_MS_MAX, coarse(max(RETRY_MS_MIN, min(RETRY_MS_MAX, wait_ms))))


def coarse(wait_ms: float) -> int:
    unit = 1.0
    while wait_ms > 10 * unit:
        unit *= 10
    return round(next((n * unit for n in _NOTCHES if n * unit >= wait_ms), 10 * unit))


def _mixed(seed: int) -> int:
    """SplitMix64's finaliser: neighbours land anywhere."""
    mask = 2**64 - 1
    mixed = (seed + 1) * 0x9E3779B97F4A7C15 & mask
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & mask
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & mask
    return mixed ^ mixed >> 31
