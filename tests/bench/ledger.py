"""Does the book agree with what clients received?  Pure.

A throughput figure without this check does not count (PEERS.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.bench.admin import Used
from tests.bench.figures import Answer


@dataclass(frozen=True, slots=True)
class Verdict:
    """`faults` empty: the figures count."""

    received: Used
    billed: Used
    leftovers: Mapping[str, int]
    faults: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not self.faults

    def sentence(self) -> str:
        what = (
            f"{self.billed.requests} requests, {self.billed.input_tokens} + "
            f"{self.billed.output_tokens} tokens billed"
        )
        if self.holds:
            return f"ledger: {what} = received; nothing left over"
        return f"ledger: DOES NOT HOLD ({what}): " + "; ".join(self.faults)


def check(answers: Sequence[Answer], billed: Used, leftovers: Mapping[str, int]) -> Verdict:
    """`billed`: what the ledger grew by during exactly these requests.  Refused ones cost nothing
    and have no row; one that broke after tokens may be billed more than its client ever heard, so a
    comparison is only possible where every admitted request ended whole."""
    whole = [answer for answer in answers if answer.whole]
    broken = [a for a in answers if not a.whole and a.status in {None, 200}]
    received = Used(
        requests=len(whole),
        input_tokens=sum(a.input_tokens for a in whole),
        output_tokens=sum(a.output_tokens for a in whole),
    )
    return compare(received, billed, leftovers, broken=[a.error or "?" for a in broken])


def compare(
    received: Used, billed: Used, leftovers: Mapping[str, int], *, broken: Sequence[str] = ()
) -> Verdict:
    """The same of sums.  `broken`: why each answer that did not end whole did not."""
    faults: list[str] = []
    if broken:
        faults.append(f"{len(broken)} answers broke ({broken[0]})")
    for name in ("requests", "input_tokens", "output_tokens"):
        ours, theirs = getattr(received, name), getattr(billed, name)
        if ours != theirs:
            faults.append(f"{name}: received {ours}, billed {theirs}")
    faults += [f"{count} {name} left over" for name, count in sorted(leftovers.items())]
    return Verdict(received, billed, dict(leftovers), tuple(faults))
