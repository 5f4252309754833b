"""What one choice has said so far, put together: for a whole answer, and for the last words of a stream that
repeat what it said.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.api.answers import Choice
from gateway.telling import Delta
from gateway.text.reply import ShownToken
from gateway.tools.calls import ToolCall


@dataclass(slots=True)
class Gathered:
    """`logprobs`: they were asked for."""

    logprobs: bool = False
    _text: list[str] = field(default_factory=list)
    _shown: list[ShownToken] = field(default_factory=list)
    _calls: dict[int, _Call] = field(default_factory=dict)

    def add(self, delta: Delta) -> None:
        self._text.append(delta.text)
        if self.logprobs:
            self._shown.extend(delta.shown)
        for part in delta.calls:
            if part.id is not None:
                assert part.name is not None
                self._calls[part.index] = _Call(part.id, part.name)
            self._calls[part.index].arguments.append(part.arguments)

    def choice(self, index: int, finish: str) -> Choice:
        return Choice(
            index,
            "".join(self._text),
            finish,
            tuple(self._shown) if self.logprobs else None,
            tuple(
                ToolCall(call.id, call.name, "".join(call.arguments))
                for _, call in sorted(self._calls.items())
            ),
        )


@dataclass(slots=True)
class _Call:
    id: str
    name: str
    arguments: list[str] = field(default_factory=list)
