"""What an engine says: the updates of one step by owner, and who is here to those who asked.

Refuses to know: what the updates mean, where they go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from executor.contract import Gauges, Lane, Report, Update
from executor.overview import overview


class Outbox:
    """Owned by the engine."""

    def __init__(self) -> None:
        self._said: dict[int, list[Update]] = {}
        self._lookers: dict[int, dict[str | None, None]] = {}  # in the order of asking

    def say(self, owner: int, update: Update) -> None:
        self._said.setdefault(owner, []).append(update)

    def look(self, owner: int, tenant: str | None) -> None:
        """`owner` asks who is here: of `tenant`, or of all."""
        self._lookers.setdefault(owner, {})[tenant] = None

    def reports(self, gauges: Gauges, lanes: Callable[[], Iterable[Lane]]) -> dict[int, Report]:
        """All of it, once."""
        said, lookers = self._said, self._lookers
        self._said, self._lookers = {}, {}
        everybody = tuple(lanes()) if lookers else ()
        return {
            owner: Report(
                updates=tuple(said.get(owner, ())),
                gauges=gauges,
                overviews=tuple(overview(everybody, each) for each in lookers.get(owner, ())),
            )
            for owner in {**said, **lookers}
        }
