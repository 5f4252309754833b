"""Whether guesses are worth running: a purse in nanoseconds that cannot lose more than it earns.

A guess costs a token's arithmetic and saves, where it holds, its sequence's part of a whole step.
Three things must agree before one is run:

- the rates fitted to measured steps say that what it will probably save exceeds what it costs (never
  so in a busy batch, where a token costs nearly all of its part of a step);
- the purse can pay for it.  It earns 1 % of each measured step and what guesses that held saved, and
  is debited for every guess; so the time lost to guesses is at most 1 % of all time, whatever the
  guesses are worth, and over any minute at most that and the full purse (`PURSE_NS`): under 2 %;
- its sequence's own guesses have held lately, run or not: those not run are compared all the same.

Looking for guesses takes time too: in steps so short that it would show, nobody looks.
Where the fitted line is wrong about small batches (other kernels, other layouts) the excess of the
measured steps over plain ones corrects the price.
Refuses to know: clocks, sequences, tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from executor.cost import Rates

EARNED: Final = 0.01
_LOOK_NS, _LOOKED = 2_000.0, 0.005
"""What it takes to look for a row's guesses, and the part of a step's time that may go into it."""
PURSE_NS: Final = 300e6
HOPE_MAX: Final = 0.95
_PRIOR, _PRIOR_WEIGHT = 0.6, 2.0
_KEEP_HOPE: Final = 0.9
_KEEP_PRICE: Final = 0.9
_PRICE_MAX: Final = 10.0
_PRICE_WEIGHT_NS: Final = 1e5


class Hope:
    """How likely a sequence's next guess holds.  Begins hopeful, and is sobered within a few."""

    __slots__ = ("_held", "_tried")

    def __init__(self) -> None:
        self._held = _PRIOR * _PRIOR_WEIGHT
        self._tried = _PRIOR_WEIGHT

    @property
    def rate(self) -> float:
        return min(HOPE_MAX, self._held / self._tried)

    def saw(self, held: bool) -> None:
        self._held = _KEEP_HOPE * self._held + held
        self._tried = _KEEP_HOPE * self._tried + 1.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one row: a decode after `start` computed tokens, of whose `run` guesses `held` did."""

    start: int
    run: int
    held: int


class Purse:
    """`begin` a step, `grant` guesses to its rows, `settle` what was measured."""

    __slots__ = ("_estimated_ns", "_excess_ns", "_left_ns", "_rates", "_rows", "allowance_ns")

    def __init__(self) -> None:
        self.allowance_ns = 0.0
        self._estimated_ns = _PRICE_WEIGHT_NS
        self._excess_ns = _PRICE_WEIGHT_NS
        self._rates = Rates(0.0, 0.0, 0.0)
        self._rows = 1
        self._left_ns = 0.0

    @property
    def price(self) -> float:
        """What a guess costs in truth, as a multiple of what the rates say."""
        return min(_PRICE_MAX, max(1.0, self._excess_ns / self._estimated_ns))

    def begin(self, rates: Rates, rows: int) -> bool:
        """A step of `rows` rows is being planned.  False: no guess can pay in it."""
        self._rates, self._rows, self._left_ns = rates, rows, self.allowance_ns
        if _LOOKED * self._part_ns(0) < _LOOK_NS:
            return False
        return HOPE_MAX * self._part_ns(0) > self.price * rates.tokens_ns(1, 0)

    def grant(self, start: int, rate: float, offered: int) -> int:
        """How many of the guesses `offered` to a row should be run; they are paid for."""
        granted, likely = 0, rate
        while granted < offered:
            cost_ns = self.price * self._rates.tokens_ns(1, start + granted + 1)
            if cost_ns > self._left_ns or likely * self._part_ns(start) <= cost_ns:
                break
            self._left_ns -= cost_ns
            granted, likely = granted + 1, likely * rate
        return granted

    def settle(self, measured_ns: int, plain_ns: float, outcomes: list[Outcome]) -> None:
        """The step took `measured_ns` and would have taken about `plain_ns` without its guesses.
        The dearer of estimate and excess is charged; an excess beyond a whole step is an accident."""
        estimated_ns = sum(self._rates.tokens_ns(each.run, each.start + 1) for each in outcomes)
        saved_ns = sum(each.held * self._part_ns(each.start) for each in outcomes)
        charged_ns = 0.0
        if estimated_ns > 0:
            excess_ns = min(measured_ns - plain_ns, estimated_ns + plain_ns)
            charged_ns = max(estimated_ns * self.price, excess_ns)
            self._estimated_ns = _KEEP_PRICE * self._estimated_ns + estimated_ns
            self._excess_ns = max(0.0, _KEEP_PRICE * self._excess_ns + excess_ns)
        earned_ns = EARNED * min(measured_ns, 2 * (plain_ns + charged_ns)) + saved_ns - charged_ns
        self.allowance_ns = max(-plain_ns, min(PURSE_NS, self.allowance_ns + earned_ns))

    def _part_ns(self, start: int) -> float:
        """A row's part of a plain step."""
        return self._rates.step_ns / self._rows + self._rates.row_ns(1, start)
