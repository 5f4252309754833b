"""Calls of tools in the text of an answer, read as it comes.

One character after the other goes through a machine that is written as one reads: a generator for each part of the
syntax, which asks for the next character by `yield` and returns the first one that it did not use.  So the result
cannot depend on how the text was split, takes time in proportion to the text, and nothing is ever taken back:

- what may begin a call, and the white space before it, is held back until that is decided;
- it is decided once a function that may be called is named and its arguments have begun; then the call's name is told,
  and its arguments as they come, to the bracket that closes them, whatever is between (a model's broken JSON too);
- what turns out to be no call is text, all of it, and nothing else is; an end in the midst leaves what there is;
- where a grammar made the answer, a head that an end cut off is no text but the call's, and nothing comes of it.

Refuses to know: tokens, requests, whether arguments keep their schema.  Source: API.md §2 (40, 41), §5.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass, field
from enum import Enum, auto

from gateway.tools.calls import CallPart
from gateway.tools.lexing import Part, literal, space, string

_ARGUMENTS = frozenset({"arguments", "parameters"})
_SCALAR = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-.")
_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


class Made(Enum):
    """How an answer came about.  Where a grammar made it, nothing that calls are written with is text."""

    FREELY = auto()  # text, and calls anywhere in it
    EITHER = auto()  # by a grammar: calls alone, or JSON that is none
    CALLS = auto()  # by a grammar: calls alone


@dataclass(frozen=True, slots=True)
class Spelling:
    """How a model writes calls: `opens`, then one as a JSON object or several as a list of them, then `closes`.
    `bare`: one may also begin the answer without `opens`, and `separator` may stand between several.  `named`: also
    the name and then the object of the arguments.  `hidden`: characters that stand for control tokens, never shown."""

    opens: str
    closes: str = ""
    bare: bool = False
    separator: str = ""
    named: bool = False
    hidden: frozenset[str] = frozenset()


@dataclass(slots=True)
class Said:
    """Text, and at which character of what was read it begins."""

    at: int
    chars: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.chars)

    @property
    def end(self) -> int:
        return self.at + len(self.chars)


@dataclass(slots=True)
class Called:
    """The start of a call (`id` and `name`), or more of its arguments.  `end`: characters read by then."""

    index: int
    end: int
    id: str | None = None
    name: str | None = None
    chars: list[str] = field(default_factory=list)

    @property
    def part(self) -> CallPart:
        return CallPart(self.index, "".join(self.chars), self.id, self.name)


class Reader:
    """Of one choice.  `names`: of the functions that may be called.  `mint(index)` gives a call's id.  Without
    `parallel` the first call is the last word: then `done`, and nothing more is read."""

    def __init__(
        self,
        spelling: Spelling,
        names: Collection[str],
        mint: Callable[[int], str],
        *,
        parallel: bool = True,
        made: Made = Made.FREELY,
    ) -> None:
        self._spelling = spelling
        self._names = frozenset(names)
        self._mint = mint
        self._parallel = parallel
        self._made = made
        self.calls = 0
        self.whole = True  # no call has begun that is not complete
        self.done = False
        self.read = 0  # characters
        self._held: list[str] = []  # the last of them, undecided
        self._over = False
        self._closing = False  # what is held only closes a call
        self._out: list[Said | Called] = []
        self._machine = self._answer()
        next(self._machine)

    @property
    def decided(self) -> int:
        """Characters of which it is known what they are."""
        return self.read - len(self._held)

    def push(self, text: str) -> list[Said | Called]:
        """What is decided by now."""
        for char in text:
            if self.done:
                break
            self.read += 1
            self._held.append(char)
            self._machine.send(char)
        return self._take()

    def finish(self) -> list[Said | Called]:
        """What was held back, once no more text comes."""
        if not (self.done or self._over):
            self._over = True
            with contextlib.suppress(StopIteration):
                self._machine.send("")
        return self._take()

    def _take(self) -> list[Said | Called]:
        out, self._out = self._out, []
        return out

    # What becomes of what is held.  `char` is the one that was just read and belongs to what follows.

    def _show(self, char: str) -> None:
        """Text, all but `char`; at the end of all, nothing if it would only have closed a call, or opened one
        where there is nothing else."""
        if not char and (self._closing or self._made is Made.CALLS):
            self._held.clear()
        self._say(len(self._held) - len(char))

    def _say(self, count: int) -> None:
        at = self.decided
        for place, letter in enumerate(self._held[:count], start=at):
            if letter in self._spelling.hidden:
                continue
            last = self._out[-1] if self._out else None
            if not (isinstance(last, Said) and last.end == place):
                last = Said(place)
                self._out.append(last)
            last.chars.append(letter)
        del self._held[:count]

    def _drop(self, char: str) -> None:
        del self._held[: len(self._held) - len(char)]

    def _begin(self, name: str, char: str) -> None:
        """A call: what is held but `char` was its head."""
        self._made = Made.CALLS if self._made is Made.EITHER else self._made
        self._drop(char)
        self._out.append(Called(self.calls, self.decided, self._mint(self.calls), name))
        self.calls += 1
        self.whole = False

    def _argue(self, chars: list[str], end: int) -> None:
        last = self._out[-1] if self._out else None
        if not (isinstance(last, Called) and last.index == self.calls - 1 and last.id is None):
            last = Called(self.calls - 1, end)
            self._out.append(last)
        last.chars += chars
        last.end = end

    def _called(self) -> None:
        """The arguments are complete."""
        self._closing = self.whole = True
        self.done = not self._parallel

    # The machine.

    def _answer(self) -> Part:
        char = yield
        if self._spelling.bare:
            char = yield from space(char)
            if char == "{":
                char = yield from self._row(char)
        if self._made is Made.EITHER:
            char = yield from self._either(char)
        while char:
            self._closing = False
            char = yield from self._text(char)
        self._show(char)
        return char

    def _either(self, char: str) -> Part:
        """Its beginning says which; JSON is that to its end, whatever stands in its strings."""
        char = yield from space(char)
        if char == self._spelling.opens[0]:
            self._made = Made.CALLS
            opened, char = yield from literal(self._spelling.opens, char)
            if opened:
                return (yield from self._calls(char))
        while char:
            self._say(len(self._held))
            char = yield
        return char

    def _text(self, char: str) -> Part:
        """Up to the end of the next calls."""
        opens = self._spelling.opens
        while True:
            char = yield from space(char)
            if not char:
                self._show(char)
                return char
            if char != opens[0]:
                self._say(len(self._held))
                char = yield
                continue
            opened, char = yield from literal(opens, char)
            if opened:
                return (yield from self._calls(char))
            self._show(char)

    def _calls(self, char: str) -> Part:
        """After `opens`."""
        char = yield from space(char)
        if char == "[":
            return (yield from self._list((yield)))
        if char == "{":
            return (yield from self._row(char))
        if self._spelling.named and char in _NAME:
            return (yield from self._named(char))
        self._show(char)
        return char

    def _list(self, char: str) -> Part:
        while True:
            char = yield from space(char)
            if char == "{":
                called, char = yield from self._call(char)
                if not called:
                    return char
                char = yield from space(char)
                if char == ",":
                    char = yield
                    continue
            if char != "]":
                self._show(char)
                return char
            return (yield from self._close((yield)))

    def _row(self, char: str) -> Part:
        """Objects, one after the other where there is a separator."""
        while True:
            called, char = yield from self._call(char)
            if not called:
                return char
            if not self._spelling.separator:
                return (yield from self._close(char))
            char = yield from space(char)
            if char == self._spelling.separator:
                char = yield from space((yield))
                if char != "{":
                    self._show(char)
                    return char
            if char != "{":
                self._drop(char)
                return char

    def _named(self, char: str) -> Part:
        """`name{arguments}`; a model may put more between them, as the number of the call."""
        letters: list[str] = []
        while char and char in _NAME:
            letters.append(char)
            char = yield
        while char and char != "{" and not char.isspace():
            char = yield
        char = yield from space(char)
        name = "".join(letters)
        if char != "{" or name not in self._names:
            self._show(char)
            return char
        self._begin(name, char)
        char = yield from self._nested(char, told=True)
        return (yield from self._close(char))

    def _close(self, char: str) -> Part:
        """What closes calls, and white space after it."""
        self._closing = True
        char = yield from space(char)
        if self._spelling.closes:
            closed, char = yield from literal(self._spelling.closes, char)
            if not closed:
                self._show(char)
                return char
        self._drop(char)
        char = yield from space(char)
        self._drop(char)
        return char

    def _call(self, char: str) -> Generator[None, str, tuple[bool, str]]:
        """`{"name": …, "arguments": {…}}`, in either order; whatever else is in it is passed over.  Whether it was one
        to its end, and the next character; what was none was shown."""
        self._closing = False
        name: str | None = None
        waiting: list[str] | None = None  # arguments that came before the name
        begun = False
        char = yield from space((yield))
        while char == '"':
            key, char = yield from string(char)
            char = yield from space(char)
            if char != ":":
                break
            char = yield from space((yield))
            if key == "name" and name is None and char == '"':
                name, char = yield from string(char)
                if name is None or name not in self._names:
                    break
                if waiting is not None:
                    self._begin(name, char)
                    self._argue(waiting, self.decided)
                    self._called()
                    begun = True
                    if self.done:
                        return True, (yield)
            elif key in _ARGUMENTS and char == "{" and not begun and waiting is None:
                if name is None:
                    start = len(self._held) - 1
                    char = yield from self._nested(char)
                    waiting = self._held[start : len(self._held) - len(char)]
                else:
                    self._begin(name, char)
                    begun = True
                    char = yield from self._nested(char, told=True)
            else:
                char = yield from self._value(char)
            char = yield from space(char)
            if char == "}" and begun:
                char = yield
                self._drop(char)
                return True, char
            if char != ",":
                break
            char = yield from space((yield))
        self._show(char)
        return False, char

    # JSON, as far as one must know it to find its end.

    def _value(self, char: str) -> Part:
        if char == '"':
            _, char = yield from string(char)
        elif char in {"{", "["}:
            char = yield from self._nested(char)
        else:
            while char in _SCALAR:
                char = yield
        return char

    def _nested(self, char: str, *, told: bool = False) -> Part:
        """To the bracket that closes this one.  `told`: these are the arguments of the call that has begun."""
        depth, quoted, escaped = 0, False, False
        while char:
            if told:
                self._held.clear()
                self._argue([char], self.decided)
            if quoted:
                quoted = escaped or char != '"'
                escaped = not escaped and char == "\\"
            elif char == '"':
                quoted = True
            elif char in "{[":
                depth += 1
            elif char in "}]":
                depth -= 1
                if not depth:
                    if told:
                        self._called()
                    return (yield)
            char = yield
        return char
