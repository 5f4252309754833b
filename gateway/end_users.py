"""The end users of one principal, in scheduling: its children.

A service that serves many customers by one credential says who asks, and its customers share its part
fairly.  Naming more of them makes nobody's part larger: while k of them have requests here, each counts
for 1/k of the principal.  Refuses to know: their names (they come as pseudonyms), what a share is.
Source: DESIGN.md, settled question 4; API.md §1 (`safety_identifier`, `user`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec

from policies.facts import Principal


@dataclass(slots=True)
class EndUsers:
    """Holds those of requests that run: no more than there are of these."""

    _here: dict[str, Counter[str]] = field(default_factory=dict)

    @contextmanager
    def present(self, principal: str, end_user: str | None) -> Iterator[tuple[str, float]]:
        """The share's name and weight, while the request runs.  `end_user` None: the principal itself,
        which is one of its own children."""
        child = principal if end_user is None else end_user
        here = self._here.setdefault(principal, Counter())
        here[child] += 1
        try:
            yield child, 1.0 / len(here)
        finally:
            here[child] -= 1
            if not here[child]:
                del here[child]
            if not here:
                self._here.pop(principal, None)


def spelt(who: Principal, named: tuple[str | None, ...]) -> str:
    """One spelling of what this principal calls its user, whatever characters are in it.  Theirs: make a
    pseudonym of it before it goes anywhere."""
    return msgspec.json.encode((who.tenant, who.issuer, who.user, *named)).decode()
