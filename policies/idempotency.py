"""What one `Idempotency-Key` means: who comes by it hears what, and what is kept once its work is over.

Two tables, as functions.  `judge`: a key as it stands, and a request that comes by it.  `ending`: a piece of
work that is over, and what its key says from then on.  The rule behind both: whatever was billed, or may have
been, is never done a second time by the same key; whatever left no trace is done as if for the first time.

Refuses to know: what a key is, where it stands, what was answered, clocks.
Source: DESIGN.md, settled 6; MONEY.md §1 (invariant 14), §3; draft-ietf-httpapi-idempotency-key-header-07.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    RUNNING = "RUNNING"
    DONE = "DONE"


class Verdict(StrEnum):
    """What a request hears that comes by a key."""

    RUN = "run"
    RUNNING = "running"  # read along where it runs here and is a stream; else come again
    REPLAY = "replay"
    GONE = "gone"  # it was done, and its answer is not kept
    UNKNOWN = "unknown"  # it may have been done, and whoever did it is no more
    REUSED = "reused"  # the key is another request's
    FULL = "full"  # there is no room to remember another


class Billed(StrEnum):
    """What the book says of the work that a key stands for."""

    NOTHING = "nothing"  # never held, voided, or settled at nothing
    OPEN = "open"  # held, and not resolved yet
    SOMETHING = "something"  # settled, or charged until its usage arrives
    UNTOLD = "untold"  # it is no work that the book knows


@dataclass(frozen=True, slots=True)
class Standing:
    """A key that is known.  `lapsed`: whoever runs it has not said so for a lease.  `expired`: its time is over.
    `kept`: there is an answer."""

    state: State
    same_body: bool
    lapsed: bool
    expired: bool
    kept: bool
    billed: Billed


def judge(found: Standing | None, *, room: bool = True) -> Verdict:
    """None: nobody has come by this key, or it is forgotten."""
    if found is None:
        return Verdict.RUN if room else Verdict.FULL
    if _is_free(found):
        return Verdict.RUN
    if not found.same_body:
        return Verdict.REUSED
    if found.state is State.DONE:
        return Verdict.REPLAY if found.kept else Verdict.GONE
    if not found.lapsed or found.billed is Billed.OPEN:
        return Verdict.RUNNING
    return Verdict.UNKNOWN


def _is_free(found: Standing) -> bool:
    """What runs is never free, however old; what nobody runs any more is if it cost nothing."""
    runs = found.state is State.RUNNING and (not found.lapsed or found.billed is Billed.OPEN)
    if runs:
        return False
    return found.expired or (found.state is State.RUNNING and found.billed is Billed.NOTHING)


class Ending(StrEnum):
    """What becomes of a key when its work is over."""

    KEEP = "keep"  # the answer is told again
    CLOSE = "close"  # done, and never again by this key; no answer is kept
    FREE = "free"  # nothing came of it: the next by this key is the first
    LEAVE = "leave"  # nobody knows yet: its lease lapses, and the book is asked


@dataclass(frozen=True, slots=True)
class Work:
    """`status`: of the answer or the refusal.  `whole`: nothing of the answer is missing, as of a stream that ends in
    an error.  `spent`: something is billed for it; None: that is not known.  `fits`: it may be kept, and there is
    room."""

    status: int
    whole: bool
    spent: bool | None
    fits: bool


DETERMINISTIC = frozenset({400, 413})
"""Refusals that the same request meets again, whenever it comes."""


def ending(work: Work) -> Ending:
    """Refusals to which something else may be said the next time (401, 403, 404, 408, 409, 422, 429, 5xx) are told
    once: by then the right, the rate or the machine may be another."""
    if work.spent is None:
        return Ending.LEAVE
    if work.whole and (200 <= work.status < 300 or (work.spent and work.status in DETERMINISTIC)):
        return Ending.KEEP if work.fits else Ending.CLOSE
    return Ending.CLOSE if work.spent else Ending.FREE
