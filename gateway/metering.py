"""What is billed of what ran (DESIGN.md, 9): input whose prefill ran, and what was taken from the cache in
its stead as far as it may be told, once a prompt; output generated.  Our own faults are priced zero.

One rule for a request that ends here, and for what a lost gateway's executor left of one.
Refuses to know: prices.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from executor.contract import Cause
from policies.facts import Meters

TURNED_AWAY = frozenset({Cause.BACKLOG, Cause.OVERLOADED})
"""Told at once, or before it ran, that it would not be served."""
OURS = TURNED_AWAY | {Cause.CRASHED, Cause.QUEUE_DEADLINE, Cause.REFUSED, Cause.QUOTA}
"""Ends that the caller neither asked for nor gets anything from."""
_OURS_HEARD = OURS - {Cause.BACKLOG}


@dataclass(frozen=True, slots=True)
class Part:
    """One choice: which prompt of its request it had, and tokens.  `output`: what is billed of it."""

    prompt: int
    prompt_tokens: int
    prefilled: int
    cached: int
    output: int
    cause: Cause


def our_fault(causes: Iterable[Cause], *, delivered: bool) -> bool:
    """Whether one of a request's ends is priced zero, and all of it with that."""
    ours = _OURS_HEARD if delivered else OURS
    return any(cause in ours for cause in causes)


def billed(parts: Iterable[Part], *, delivered: bool, warm: bool) -> Meters:
    """`delivered`: something was heard of it, so a choice that made room is no fault."""
    every = tuple(parts)
    if our_fault((part.cause for part in every), delivered=delivered):
        return Meters()
    inputs: dict[int, tuple[int, int, int]] = {}
    for part in every:  # of siblings that one counts which prefilled most
        this = part.prefilled, part.cached, part.prompt_tokens
        inputs[part.prompt] = max(inputs.get(part.prompt, (0, 0, 0)), this)
    prefilled = sum(each for each, _, _ in inputs.values())
    if warm:
        return Meters(cache_write=prefilled)
    return Meters(
        input=prefilled,
        cached_input=sum(
            min(cached, prompt - done) if done else 0 for done, cached, prompt in inputs.values()
        ),
        output=sum(part.output for part in every),
    )
