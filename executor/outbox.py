"""What an engine says: the updates of one step by owner, and who is here to those who asked.

Refuses to know: what the updates mean, where they go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from executor.contract import Gauges, Lane, Listed, Purged, Report, Revoked, Update
from executor.overview import overview

Answer = Revoked | Purged | Listed


class Outbox:
    """Owned by the engine."""

    def __init__(self) -> None:
        self._said: dict[int, list[Update]] = {}
        self._lookers: dict[int, dict[str | None, None]] = {}  # in the order of asking
        self._answers: dict[int, list[Answer]] = {}

    def say(self, owner: int, update: Update) -> None:
        self._said.setdefault(owner, []).append(update)

    def look(self, owner: int, tenant: str | None) -> None:
        """`owner` asks who is here: of `tenant`, or of all."""
        self._lookers.setdefault(owner, {})[tenant] = None

    def measure(self, owner: int) -> None:
        """`owner` wants a report, whatever it says."""
        self._said.setdefault(owner, [])

    def answer(self, owner: int, answer: Answer) -> None:
        """To an order of `owner`."""
        self._answers.setdefault(owner, []).append(answer)

    def reports(self, gauges: Gauges, lanes: Callable[[], Iterable[Lane]]) -> dict[int, Report]:
        """All of it, once."""
        said, lookers, answers = self._said, self._lookers, self._answers
        self._said, self._lookers, self._answers = {}, {}, {}
        everybody = tuple(lanes()) if lookers else ()
        return {
            owner: Report(
                updates=tuple(said.get(owner, ())),
                gauges=gauges,
                overviews=tuple(overview(everybody, each) for each in lookers.get(owner, ())),
                revoked=tuple(a for a in answers.get(owner, ()) if isinstance(a, Revoked)),
                purged=tuple(a for a in answers.get(owner, ()) if isinstance(a, Purged)),
                listed=tuple(a for a in answers.get(owner, ()) if isinstance(a, Listed)),
            )
            for owner in {**said, **lookers, **answers}
        }
