"""Whether a newcomer's first token can come in time, by its own tenant's share and not by the whole
queue: so nobody else can make the answer wrong.

    first token ≈ (prompts of its tenant ahead + its own + what must end before it gets a row) / share
                  + one step

all of it times a factor that is learnt from how such predictions came out.  Who would be late is told
now, and when it would not be: what has gone from its tenant's backlog by then is what was too much.
A prompt that takes longer than the promise on an empty machine is promised nothing.

Refuses to know: who asks, how a refusal is worded.  Source: SCHEDULER.md §2, "Admission".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from executor.cost import Rates

_KEEP: Final = 0.9
_FACTOR_MIN, _FACTOR_MAX = 0.25, 4.0
RETRY_MS_MIN: Final = 50
RETRY_MS_MAX: Final = 600_000


class Why(Enum):
    """Whose doing it is that somebody is refused."""

    BACKLOG = "backlog"  # its own tenant has too much waiting
    PLATFORM = "platform"  # we cannot, though it is within its share


@dataclass(frozen=True, slots=True)
class Refusal:
    """`retry_ms`: when it would be taken, as far as can be known."""

    why: Why
    retry_ms: int


@dataclass(frozen=True, slots=True)
class Load:
    """Prompts that wait, or are being computed: how many, tokens to compute, and tokens that they will
    probably say."""

    count: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0

    def __add__(self, other: Load) -> Load:
        return Load(
            self.count + other.count,
            self.prompt_tokens + other.prompt_tokens,
            self.output_tokens + other.output_tokens,
        )

    def __sub__(self, other: Load) -> Load:
        return Load(
            self.count - other.count,
            self.prompt_tokens - other.prompt_tokens,
            self.output_tokens - other.output_tokens,
        )

    def prompts_ns(self, rates: Rates) -> float:
        if not self.count:
            return 0.0
        mean = self.prompt_tokens / self.count
        context_ns = self.prompt_tokens * mean / 2 * rates.token_context_ns
        return self.count * rates.sequence_ns + self.prompt_tokens * rates.token_ns + context_ns

    def answers_ns(self, rates: Rates, rows: int) -> float:
        """What they will cost while they speak, `rows` at once."""
        if not self.count:
            return 0.0
        context = self.prompt_tokens / self.count + self.output_tokens / self.count / 2
        each_ns = rates.step_ns / max(1, rows) + rates.row_ns(1, int(context))
        return self.output_tokens * each_ns


def first_token_ns(
    own: Load,
    ahead: Load,
    *,
    share: float,
    free_rows: int,
    rows: int,
    step_ns: float,
    rates: Rates,
) -> float:
    """`ahead`: what of its tenant and class goes before it.  `free_rows`: those that it may still have.
    `rows`: how many run at once.  `step_ns`: what a step takes now."""
    assert 0 < share <= 1
    work_ns = ahead.prompts_ns(rates) + own.prompts_ns(rates)
    beyond = ahead.count + own.count - free_rows
    if beyond > 0 and ahead.count:
        work_ns += ahead.answers_ns(rates, rows) * min(1.0, beyond / ahead.count)
    return work_ns / share + max(step_ns, rates.step_ns)


class Experience:
    """How predictions of one class came out: a factor, fading."""

    __slots__ = ("factor",)

    def __init__(self) -> None:
        self.factor = 1.0

    def saw(self, predicted_ns: float, taken_ns: float) -> None:
        """`predicted_ns` as it was without the factor."""
        ratio = taken_ns / max(predicted_ns, 1.0)
        factor = _KEEP * self.factor + (1 - _KEEP) * min(_FACTOR_MAX, max(_FACTOR_MIN, ratio))
        self.factor = min(_FACTOR_MAX, max(_FACTOR_MIN, factor))


def refusal(
    predicted_ns: float, promised_ns: float, alone_ns: float, *, has_backlog: bool, ticket: int
) -> Refusal | None:
    """None: it will be in time, or was promised nothing.  The wait is spread by a tenth either way, so
    that those who were refused together do not come back together."""
    if predicted_ns <= promised_ns or alone_ns > promised_ns:
        return None
    wait_ms = (predicted_ns - promised_ns) / 1e6
    spread = 0.9 + 0.2 * ((ticket * 0x9E3779B1) % 2**32) / 2**32
    retry_ms = max(RETRY_MS_MIN, min(RETRY_MS_MAX, round(wait_ms * spread)))
    return Refusal(Why.BACKLOG if has_backlog else Why.PLATFORM, retry_ms)
