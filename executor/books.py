"""What a step cost and who pays: measured time split over its rows, tokens counted, rates learnt.

Refuses to know: what was said, blocks, who is next.  Source: SCHEDULER.md §2 (charge what was measured).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq

from executor.choice import Choice
from executor.cost import StepTimes, attribute
from executor.guesses import Guesser, Planned
from executor.scheduler.protocol import Charge
from executor.sequence import Key, Sequence
from executor.totals import Totals
from executor.watch import Watch


class Books:
    """Owned by the engine.  `charge` is the scheduler's."""

    def __init__(
        self,
        times: StepTimes,
        guesser: Guesser,
        charge: Callable[[Iterable[Charge[Sequence]]], None],
    ) -> None:
        self.times = times
        self.totals = Totals()
        self.watch = Watch()
        self._guesser = guesser
        self._charge = charge

    def enter(
        self,
        planned: Seq[Planned],
        found: Mapping[Key, Seq[Choice]],
        measured_ns: int,
        now_ns: int,
    ) -> None:
        """The rows were computed, whoever still wants them: book tokens and time."""
        rates = self.times.rates
        self._guesser.settle(planned, found, rates, measured_ns)
        shares = [row.share(found) for row in planned]
        parts = attribute(measured_ns, shares, rates)
        self.times.observe(shares, measured_ns)
        self._charge((row.seq, *part) for row, part in zip(planned, parts, strict=True))
        for row, share, (own_ns, lost_ns) in zip(planned, shares, parts, strict=True):
            seq, before = row.seq, row.seq.prefilled
            seq.advance(row.known)
            self.totals.guessed(len(row.guesses), share.missed)
            seq.device_ns += own_ns
            seq.recomputed_ns += lost_ns
            self.totals.busy_ns += own_ns
            self.totals.prompt_tokens += seq.prefilled - before
            self.watch.charge(seq, own_ns, now_ns)
