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

    __slots__ = ("_indexed", "_slots")

    def __init__(self) -> None:
        self._slots = array("i", bytes(4 * _SLOTS))
        self._indexed = GRAM

    def guesses(self, tokens: Sequence[int], most: int = GUESSES_MAX) -> list[int]:
        """What may follow `tokens`; empty if they do not end like anything before, or while a long
        prompt is still being read."""
        end = len(tokens)
        if end <= GRAM:
            return []
        stop = min(end, self._indexed + _STEP)
        for at in range(self._indexed, stop):
            self._slots[_slot(tokens[at - GRAM : at])] = at
        self._indexed = stop
        if stop < end:
            return []
        last = tokens[end - GRAM :]
        at = self._slots[_slot(last)]
        if at == 0 or tokens[at - GRAM : at] != last:
            return []
        found: list[int] = []
        for place in range(at, at + most):  # past the end it goes on with itself: a short cycle
            found.append(tokens[place] if place < end else found[place - end])
        return found


def _slot(gram: Sequence[int]) -> int:
    return hash(tuple(gram)) % _SLOTS
