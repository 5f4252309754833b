"""What one choice has said so far, put together: for a whole answer, and for the last words of a stream that
repeat what it said.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.api.answers import Choice, Said
from gateway.telling import Delta
from gateway.text.reply import ShownToken
from gateway.tools.calls import ToolCall


@dataclass(slots=True)
class Gathered:
    """`logprobs`: they were asked for."""

    logprobs: bool = False
    _parts: list[_Said | _Call] = field(default_factory=list)
    _calls: dict[int, _Call] = field(default_factory=dict)

    def add(self, delta: Delta) -> None:
        if delta.text:
            said = self._parts[-1] if self._parts else None
            if not isinstance(said, _Said):
                said = _Said()
                self._parts.append(said)
            said.text.append(delta.text)
            if self.logprobs:
                said.shown.extend(delta.shown)
        for part in delta.calls:
            if part.id is not None:
                assert part.name is not None
                call = self._calls[part.index] = _Call(part.id, part.name)
                self._parts.append(call)
            self._calls[part.index].arguments.append(part.arguments)

    def choice(self, index: int, finish: str, stopped_by: int | None = None) -> Choice:
        parts = tuple(part.whole(logprobs=self.logprobs) for part in self._parts)
        said = [part for part in parts if isinstance(part, Said)]
        return Choice(
            index,
            "".join(part.text for part in said),
            finish,
            tuple(token for part in said for token in part.tokens or ()) if self.logprobs else None,
            tuple(part for part in parts if isinstance(part, ToolCall)),
            parts,
            stopped_by,
        )


@dataclass(slots=True)
class _Said:
    text: list[str] = field(default_factory=list)
    shown: list[ShownToken] = field(default_factory=list)

    def whole(self, *, logprobs: bool) -> Said:
        return Said("".join(self.text), tuple(self.shown) if logprobs else None)


@dataclass(slots=True)
class _Call:
    id: str
    name: str
    arguments: list[str] = field(default_factory=list)

    def whole(self, *, logprobs: bool) -> ToolCall:
        del logprobs  # a call has none
        return ToolCall(self.id, self.name, "".join(self.arguments))
