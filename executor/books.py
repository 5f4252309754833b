"""What a step cost and who pays: measured time split over its rows, tokens counted, rates learnt.

Refuses to know: what was said, blocks, who is next.  Source: SCHEDULER.md §2 (charge what was measured).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq

from executor.choice import Choice
from executor.cost import Rates, Share, StepTimes, attribute, lost_parts
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
        shares = [row.share(found) if row.runs else None for row in planned]
        computed = [share for share in shares if share is not None]
        if computed:
            self.times.observe(computed, measured_ns)
        else:
            self.totals.empty_steps_ns += measured_ns
        split = iter(attribute(measured_ns, computed, rates) if computed else ())
        parts = [(0, 0) if share is None else next(split) for share in shares]
        bill = _as_if(planned, shares, measured_ns, rates) or parts
        self._charge((row.seq, *part) for row, part in zip(planned, bill, strict=True))
        for row, share, (own_ns, lost_ns) in zip(planned, shares, parts, strict=True):
            seq, before = row.seq, row.seq.prefilled
            seq.advance(row.known)
            self.totals.guessed(len(row.guesses), 0 if share is None else share.missed)
            seq.device_ns += own_ns
            seq.recomputed_ns += lost_ns
            self.totals.busy_ns += own_ns
            if lost_ns:
                assert share is not None
                recompute_ns, guesses_ns = lost_parts(lost_ns, share, rates)
                self.totals.recompute_ns += recompute_ns
                self.totals.wrong_guesses_ns += guesses_ns
            self.totals.prompt_tokens += seq.prefilled - before
            self.watch.charge(seq, own_ns, now_ns)


def _as_if(
    planned: Seq[Planned], shares: Seq[Share | None], measured_ns: int, rates: Rates
) -> list[tuple[int, int]] | None:
    """Where something was kept that may not be told of: what each of all rows would have been charged,
    had it been computed.  What was saved is as expected, the rest as measured."""
    if not any(row.skipped for row in planned):
        return None
    whole = [
        share or Share(row.known, row.start) for row, share in zip(planned, shares, strict=True)
    ]
    saved_ns = 0.0 if any(row.runs for row in planned) else rates.step_ns
    for at, row in enumerate(planned):
        if row.skipped:
            whole[at] = Share(row.known, row.start, row.lost)
            saved_ns += rates.row_ns(row.known, row.start)
            if row.runs:
                saved_ns -= rates.row_ns(row.runs, row.start + row.skipped)
    return attribute(measured_ns + max(0, round(saved_ns)), whole, rates)
