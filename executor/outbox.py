"""What an engine says: the updates of one step by owner, and the lanes to those who asked.

Refuses to know: what the updates mean, where they go.
"""

from __future__ import annotations

from collections.abc import Callable

from executor.contract import Gauges, Lane, Report, Update


class Outbox:
    """Owned by the engine."""

    def __init__(self) -> None:
        self._said: dict[int, list[Update]] = {}
        self._lookers: set[int] = set()

    def say(self, owner: int, update: Update) -> None:
        self._said.setdefault(owner, []).append(update)

    def look(self, owner: int) -> None:
        """`owner` asks for the lanes."""
        self._lookers.add(owner)

    def reports(self, gauges: Gauges, lanes: Callable[[], tuple[Lane, ...]]) -> dict[int, Report]:
        """All of it, once."""
        said, lookers = self._said, self._lookers
        self._said, self._lookers = {}, set()
        seen = lanes() if lookers else None
        return {
            owner: Report(
                updates=tuple(said.get(owner, ())),
                gauges=gauges,
                lanes=seen if owner in lookers else None,
            )
            for owner in {**said, **dict.fromkeys(lookers)}
        }
