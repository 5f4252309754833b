"""How long an answer will be: what a user's last ones were, as a fading mean and spread.

Only a guess, and never the client's wish: it decides how much memory is set aside,
and that is put right by what happens.  Nobody gains by being guessed wrong (SCHEDULER.md §1,
Equinox: a predictor must not enter fairness).
Refuses to know: requests, tokens' values.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

KEPT: Final = 4096
_KEEP: Final = 0.8
_STRANGER_TOKENS: Final = 256


class Outputs:
    """Remembers the `KEPT` users who finished something last."""

    __slots__ = ("_known", "_spread")

    def __init__(self, spread: float = 0.5) -> None:
        self._spread = spread
        self._known: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()

    def expect(self, tenant: str, user: str, max_new_tokens: int) -> int:
        known = self._known.get((tenant, user))
        if known is None:
            return min(max_new_tokens, _STRANGER_TOKENS)
        mean, deviation = known
        return max(1, min(max_new_tokens, round(mean + self._spread * deviation)))

    def saw(self, tenant: str, user: str, tokens: int) -> None:
        key = (tenant, user)
        known = self._known.pop(key, None)
        if known is None:
            self._known[key] = (float(tokens), 0.0)
        else:
            mean, deviation = known
            off = abs(tokens - mean)
            self._known[key] = (
                _KEEP * mean + (1 - _KEEP) * tokens,
                _KEEP * deviation + (1 - _KEEP) * off,
            )
        if len(self._known) > KEPT:
            self._known.popitem(last=False)
