"""Words in place of what somebody wrote, while a chat template is rendered to see where it puts it.

A word is unguessable, numbered, and wears a sentinel on each side that `trim` takes for white space, so that it shows
which side was trimmed.  JSON that the template makes of client text is content as a whole, brackets included: it is
tokenised in one piece, as the model was trained to read it.
Refuses to know: templates, roles, tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Self, SupportsIndex

from policies.scope.labels import Label

_SENTINEL = "\x1f"  # white space to `trim`, and in no template
_WORN = re.compile(f"({_SENTINEL}?)Lg([0-9a-f]+)q([0-9]+)q({_SENTINEL}?)")
"""A word of any rendering: to compile one for each would cost as much as rendering."""


class Origin(StrEnum):
    SCAFFOLD = "scaffold"
    CONTENT = "content"


@dataclass(frozen=True, slots=True)
class Segment:
    """`source` names the request field that a CONTENT came from, as `messages[1].content`; `label` is
    of whom it was registered for, None where the client wrote it."""

    text: str
    origin: Origin
    source: str | None = None
    label: Label | None = None


Mask = Callable[[str, str, Label | None], str]
"""A text, the request field that it is from, and of whom it was registered for."""


def bare(text: str, source: str, label: Label | None = None) -> str:
    """A `Mask` that hides nothing."""
    del source, label
    return text


class _Json(str):
    """A word for JSON, of which a template may cut off an end: Mistral's take the last bracket, to write more in it."""

    __slots__ = ("_cut",)
    _cut: Callable[[slice], str]

    def __new__(cls, word: str, text: str, conceal: Callable[[str], str]) -> Self:
        made = super().__new__(cls, word)
        made._cut = lambda part: conceal(text[part])
        return made

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        return self._cut(key) if isinstance(key, slice) else super().__getitem__(key)


class Masks:
    """Of one rendering.  `secret`: unguessable, in hexadecimal digits."""

    def __init__(self, secret: str) -> None:
        self._secret = secret
        self._sources: list[Segment] = []

    def mask(self, text: str, source: str, label: Label | None = None) -> str:
        """An empty string stays: templates ask whether there is content."""
        if not text:
            return text
        self._sources.append(Segment(text, Origin.CONTENT, source, label))
        return f"{_SENTINEL}Lg{self._secret}q{len(self._sources) - 1}q{_SENTINEL}"

    def reveal(self, value: Any) -> Any:
        """The same value where it has no words, or one of registered text: that keeps to itself."""
        if self._joinable(value) <= 0:
            return value
        return _mapped(
            value, lambda text: self._replaced(text, lambda word: self._content(word).text)
        )

    def conceal(self, text: str) -> str:
        """A word for JSON that was made of them."""
        return _Json(self.mask(text, "tools"), text, self.conceal)

    def _joinable(self, value: Any) -> int:
        """How many words are in it; a large negative number where one is of registered text."""
        if isinstance(value, str):
            found = [self._content(word).label for word in self._words(value)]
            return len(found) if not any(found) else -(2**62)
        if isinstance(value, Mapping):
            return sum(self._joinable(key) + self._joinable(inner) for key, inner in value.items())
        if isinstance(value, list | tuple):
            return sum(map(self._joinable, value))
        return 0

    def _content(self, word: re.Match[str]) -> Segment:
        """Without its sentinel on a side it was trimmed there."""
        content = self._sources[int(word[3])]
        text = content.text if word[1] else content.text.lstrip()
        return replace(content, text=text if word[4] else text.rstrip())

    def _words(self, text: str) -> Iterator[re.Match[str]]:
        return (word for word in _WORN.finditer(text) if word[2] == self._secret)

    def _replaced(self, text: str, new: Callable[[re.Match[str]], str]) -> str:
        return _WORN.sub(lambda word: new(word) if word[2] == self._secret else word[0], text)

    def split(self, outline: str) -> tuple[Segment, ...]:
        """Cut an outline at its words."""
        segments: list[Segment] = []
        at = 0
        for word in self._words(outline):
            segments.append(Segment(outline[at : word.start()], Origin.SCAFFOLD))
            segments.append(self._content(word))
            at = word.end()
        segments.append(Segment(outline[at:], Origin.SCAFFOLD))
        return tuple(segment for segment in segments if segment.text)

    def blotted(self, text: str) -> str:
        """Without what was written."""
        return self._replaced(text, lambda _: "…")

    def written(self) -> list[str]:
        return [source.text for source in self._sources]


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_mapped(key, change): _mapped(inner, change) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(inner, change) for inner in value]
    return value
