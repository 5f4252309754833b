"""Stop strings over a text that comes in pieces: an exact cut, and no leaked prefix.

All stops are watched at once by an Aho–Corasick automaton, one dictionary step a character.  Its
depth is the length of the longest tail that may yet become a stop, which is exactly what is held
back.  The stop that is *complete* first wins, as generation would have ended there; of several that
are complete at the same character, the longest.  The result cannot depend on how the text was split.

Refuses to know: tokens, requests.  Source: Aho and Corasick, CACM 18(6), 1975.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class Automaton:
    """The stops of one request, read by all its choices.  Frozen once built.  Bounds on number and
    length of `stops` are the schema's; within them it may take 3 MB."""

    __slots__ = ("depth", "fail", "longest", "next", "stops")

    def __init__(self, stops: Sequence[str] = ()) -> None:
        assert "" not in stops  # the schema has refused it
        self.stops = tuple(stops)
        self.next: list[dict[str, int]] = [{}]
        self.depth = [0]
        self.longest = [0]
        for stop in stops:
            self._add(stop)
        self.fail = [0] * len(self.next)
        self._link()

    def _add(self, stop: str) -> None:
        state = 0
        for char in stop:
            following = self.next[state].get(char)
            if following is None:
                following = len(self.next)
                self.next[state][char] = following
                self.next.append({})
                self.depth.append(self.depth[state] + 1)
                self.longest.append(0)
            state = following
        self.longest[state] = len(stop)

    def _link(self) -> None:
        """For each state the longest proper suffix that is a state too, breadth first."""
        queue = deque(self.next[0].values())
        while queue:
            state = queue.popleft()
            for char, child in self.next[state].items():
                back = self.fail[state]
                while char not in self.next[back] and back:
                    back = self.fail[back]
                self.fail[child] = self.next[back].get(char, 0)
                queue.append(child)
            if not self.longest[state]:
                self.longest[state] = self.longest[self.fail[state]]


class StopStrings:
    """One choice's place in the automaton, and what is held back of its text.  `found`: which of the stops was
    completed."""

    __slots__ = ("_automaton", "_held", "_state", "found")

    def __init__(self, stops: Automaton | Sequence[str] = ()) -> None:
        self._automaton = stops if isinstance(stops, Automaton) else Automaton(stops)
        self.found: int | None = None
        self._held = ""
        self._state = 0

    @property
    def hit(self) -> bool:
        return self.found is not None

    def push(self, text: str) -> tuple[str, bool]:
        """The text that is safe to show, and whether a stop string was completed.  After a hit there
        is no more: the rest of `text` is dropped, and later pushes give nothing."""
        if self.hit:
            return "", True
        automaton = self._automaton
        if len(automaton.next) == 1:
            return text, False
        state, steps, fail = self._state, automaton.next, automaton.fail
        for place, char in enumerate(text, start=len(self._held) + 1):
            while (found := steps[state].get(char)) is None and state:
                state = fail[state]
            state = found or 0
            if cut := automaton.longest[state]:
                said = (self._held + text)[:place]
                self.found = automaton.stops.index(said[place - cut :])
                self._held = ""
                return said[: place - cut], True
        self._state = state
        buffer = self._held + text
        keep = automaton.depth[state]
        self._held = buffer[len(buffer) - keep :]
        return buffer[: len(buffer) - keep], False

    def flush(self) -> str:
        """What was held back, once no more text can come."""
        held, self._held, self._state = self._held, "", 0
        return held
