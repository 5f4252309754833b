"""Whether a newcomer's first token can come in time, by its own tenant's share and not by the whole
queue: so nobody else can make the answer wrong.

Its tenant is sure of some rows.  Each comes free when who holds it has said what is expected of it; those
ahead take them one after another, and the newcomer the next (Kiefer and Wolfowitz, 1955).  To that come
the prompts at their tenant's part of the time.  All of it times a factor learnt so that ninety-nine of a
hundred such predictions are not too short.

Who would be late is told now, and when it would not be.  A prompt that takes longer than the promise on an
empty machine is promised nothing.
Refuses to know: who asks, how a refusal is worded.  Source: SCHEDULER.md §2, "Admission".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from math import exp, log
from typing import Final, NamedTuple

from executor.cost import Rates

IN_TIME: Final = 0.99  # of those who are let in
RETRY_MS_MIN: Final = 50
RETRY_MS_MAX: Final = 600_000
_FACTOR_AT_FIRST, _FACTOR_MIN, _FACTOR_MAX = 1.5, 0.5, 6.0
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


@dataclass(frozen=True, slots=True)
class Room:
    """What a tenant is sure of: its part of the time, and rows.  `step_ns`: what a step takes now."""

    share: float
    rows: int
    step_ns: float

    def prompt_ns(self, tokens: int, rates: Rates) -> float:
        return rates.row_ns(tokens, 0) / self.share if tokens else 0.0


def first_token_ns(
    prompt_tokens: int,
    running: Iterable[int],
    waiting: Iterable[Ahead],
    begun_tokens: int,
    room: Room,
    rates: Rates,
) -> float:
    """From now, without the factor.  Of its tenant alone: `running`, tokens that each has still to say;
    `waiting`, in order; `begun_tokens`, of prompts that are being computed.  O(waiting · log rows)."""
    assert room.rows >= 1
    step_ns = max(room.step_ns, rates.step_ns, 1.0)
    free_in = [float(tokens) for tokens in sorted(running)][-room.rows :]  # in steps
    free_in += [0.0] * (room.rows - len(free_in))
    heapify(free_in)
    for each in waiting:
        prompt_steps = room.prompt_ns(each.prompt_tokens, rates) / step_ns
        heapreplace(free_in, free_in[0] + prompt_steps + each.answer_tokens)
    prompts_ns = room.prompt_ns(begun_tokens, rates) + room.prompt_ns(prompt_tokens, rates)
    return (free_in[0] + _LAST_STEPS) * step_ns + prompts_ns


class Experience:
    """How predictions of one class came out: the factor by which `IN_TIME` of them are long enough.
    A step up for each that was too short, a ninety-ninth of it down for each that was not (the gradient
    of the quantile's loss).  It fades: only those who are let in correct it, so what was learnt in a bad
    minute would keep everybody out for ever."""

    __slots__ = ("_at_ns", "_factor")

    def __init__(self) -> None:
        self._factor = _FACTOR_AT_FIRST
        self._at_ns = 0

    def factor(self, now_ns: int) -> float:
        left = exp(-max(0, now_ns - self._at_ns) / _FADE_NS)
        return _FACTOR_AT_FIRST * exp(log(self._factor / _FACTOR_AT_FIRST) * left)

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


def refusal(
    predicted_ns: float, factor: float, promised_ns: float, *, has_backlog: bool
) -> Refusal | None:
    """None: it will be in time, or its tenant has nothing here: then it would not be earlier by coming
    later, and if it is late all the same that is our doing.  The wait is what of
    the prediction, which runs down as time does, is too much now."""
    if predicted_ns * factor <= promised_ns or not has_backlog:
        return None
    wait_ms = round((predicted_ns - promised_ns / factor) / 1e6)
    retry_ms = max(RETRY_MS_MIN, min(RETRY_MS_MAX, wait_ms))
    return Refusal(retry_ms)


def left_to_say(expected: Sequence[tuple[int, int]]) -> list[int]:
    """Of (expected, known) tokens: at least one each, since nobody knows the end."""
    return [max(1, most - known) for most, known in expected]
