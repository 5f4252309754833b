"""How long an answer will be: what a user's last ones were, as a fading mean and spread.

Only a guess, and never the client's wish: it decides how much memory is set aside,
and that is put right by what happens.  Nobody gains by being guessed wrong (SCHEDULER.md §1,
Equinox: a predictor must not enter fairness).
Refuses to know: requests, tokens' values.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

TENANTS_KEPT: Final = 4096
USERS_KEPT: Final = 64
_KEEP: Final = 0.8
_MANY: Final = 32
_STRANGER_TOKENS: Final = 256


class _Known(NamedTuple):
    """`mean` and `deviation` of the last few, `long` of the last `_MANY` or so."""

    mean: float
    deviation: float
    long: float
    seen: int


class Outputs:
    """Of each of the `TENANTS_KEPT` tenants that finished something last, its `USERS_KEPT` last users: a tenant
    with many of them makes nobody forget another's."""

    __slots__ = ("_known", "_spread")

    def __init__(self, spread: float = 0.5) -> None:
        self._spread = spread
        self._known: OrderedDict[str, OrderedDict[str, _Known]] = OrderedDict()

    def expect(self, tenant: str, user: str, max_new_tokens: int) -> int:
        """Rather too much than too little: for what is set aside."""
        known = self._of(tenant, user)
        if known is None:
            return min(max_new_tokens, _STRANGER_TOKENS)
        return max(1, min(max_new_tokens, round(known.mean + self._spread * known.deviation)))

    def mean(self, tenant: str, user: str, max_new_tokens: int) -> int:
        """For sums of many."""
        known = self._of(tenant, user)
        if known is None:
            return min(max_new_tokens, _STRANGER_TOKENS)
        return max(1, min(max_new_tokens, round(known.long)))

    def saw(self, tenant: str, user: str, tokens: int) -> None:
        users = self._known.setdefault(tenant, OrderedDict())
        self._known.move_to_end(tenant)
        known = users.pop(user, None)
        if known is None:
            users[user] = _Known(float(tokens), 0.0, float(tokens), 1)
        else:
            off = abs(tokens - known.mean)
            count = min(_MANY, known.seen + 1)
            users[user] = _Known(
                _KEEP * known.mean + (1 - _KEEP) * tokens,
                _KEEP * known.deviation + (1 - _KEEP) * off,
                known.long + (tokens - known.long) / count,
                count,
            )
        if len(users) > USERS_KEPT:
            users.popitem(last=False)
        if len(self._known) > TENANTS_KEPT:
            self._known.popitem(last=False)

    def _of(self, tenant: str, user: str) -> _Known | None:
        users = self._known.get(tenant)
        return None if users is None else users.get(user)
