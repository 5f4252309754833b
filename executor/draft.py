"""Guesses of what a sequence says next, out of its own words: prompt lookup.

An answer often repeats its prompt or itself (a quotation, a table, code).  The last few tokens are
looked up among all earlier ones, and what followed there is the guess.  Only the sequence's own tokens
are read, so nothing of one request can show in the speed of another.

A table of fixed size from a hash of a few tokens to the place after their last occurrence; a
collision forgets the older place, and a place is believed only after its tokens were compared.
Refuses to know: sequences, the model, whether guessing pays.  Source: A. Saxena, "Prompt lookup
decoding" (2023).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

GRAM: Final = 3
GUESSES_MAX: Final = 6
_SLOTS: Final = 1 << 14
_STEP: Final = 2048
"""Tokens indexed in one call, about half a millisecond: a long prompt is caught up with over steps."""


class Lookup:
    """Of one sequence.  Its tokens only ever grow at the end."""

    __slots__ = ("_indexed", "_last", "_slots")

    def __init__(self) -> None:
        self._slots = array("i", bytes(4 * _SLOTS))
        self._indexed = GRAM  # the next place to be entered
        self._last = -1  # its slot, if it was computed

    def guesses(self, tokens: Sequence[int], most: int = GUESSES_MAX) -> list[int]:
        """What may follow `tokens`; empty if they do not end like anything before, or while a long
        prompt is still being read."""
        end = len(tokens)
        if end <= GRAM:
            return []
        slots, at = self._slots, self._indexed
        if self._last >= 0 and at < end:
            slots[self._last] = at
            at += 1
        stop = min(end, at + _STEP)
        for place in range(at, stop):
            slots[hash(tuple(tokens[place - GRAM : place])) % _SLOTS] = place
        self._indexed, self._last = stop, -1
        if stop < end:
            return []
        last = tokens[end - GRAM :]
        self._last = hash(tuple(last)) % _SLOTS
        at = slots[self._last]
        if at == 0 or tokens[at - GRAM : at] != last:
            return []
        found: list[int] = []
        for place in range(at, at + most):  # past the end it goes on with itself: a short cycle
            found.append(tokens[place] if place < end else found[place - end])
        return found
