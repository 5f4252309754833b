"""A second reading of an answer with calls, of the whole text at once: what `tools.reader` must come to, however the
text was split.  Written from the formats, by position in the text instead of by character.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection

from gateway.tools.reader import Spelling

Reading = tuple[str, list[tuple[str, str]]]
"""The text that is shown, and name and arguments of each call."""

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_SCALAR = re.compile(r"[A-Za-z0-9+.\-]*")
_NAME = re.compile(r"[A-Za-z0-9_-]+")


class NoCall(Exception):
    """At `at` it turned out to be none; None: the text ended first."""

    def __init__(self, at: int | None) -> None:
        self.at = at


class Whole:
    def __init__(self, text: str, spelling: Spelling, names: Collection[str]) -> None:
        self.text, self.spelling, self.names = text, spelling, names
        self.shown: list[str] = []
        self.calls: list[tuple[str, str]] = []
        self.settled = 0  # all before is shown, called or passed over

    def read(self) -> Reading:
        at = self.space(0)
        if self.spelling.bare and self.text.startswith("{", at):
            at = self.attempt(self.row, at)
        while (found := self.text.find(self.spelling.opens, at)) >= 0:
            before = len(self.text[self.settled : found].rstrip()) + self.settled
            self.show(max(before, self.settled))
            at = self.attempt(self.marked, found)
        self.show(len(self.text))
        return "".join(self.shown), self.calls

    def attempt(self, part: Callable[[int], int], at: int) -> int:
        try:
            return part(at)
        except NoCall as end:
            at = len(self.text) if end.at is None else end.at
            if end.at is not None or not self.closing:
                self.show(at)
            self.settled = at
            return at

    closing = False

    def show(self, until: int) -> None:
        text = self.text[self.settled : until]
        self.shown.append("".join(c for c in text if c not in self.spelling.hidden))
        self.settled = max(until, self.settled)

    def marked(self, at: int) -> int:
        self.closing = False
        at = self.space(at + len(self.spelling.opens))
        if self.text.startswith("[", at):
            return self.listed(at + 1)
        if self.text.startswith("{", at):
            return self.row(at)
        name = _NAME.match(self.text, at)
        if not self.spelling.named or name is None:
            raise NoCall(self.end(at))
        at = name.end()
        while at < len(self.text) and self.text[at] != "{" and not self.text[at].isspace():
            at += 1
        at = self.space(at)
        if not self.text.startswith("{", at) or name[0] not in self.names:
            raise NoCall(self.end(at))
        return self.closed(self.arguments(name[0], at))

    def listed(self, at: int) -> int:
        while True:
            at = self.space(at)
            if self.text.startswith("{", at):
                at = self.space(self.call(at))
                if self.text.startswith(",", at):
                    at += 1
                    continue
            if not self.text.startswith("]", at):
                raise NoCall(self.end(at))
            return self.closed(at + 1)

    def row(self, at: int) -> int:
        while True:
            at = self.call(at)
            if not self.spelling.separator:
                return self.closed(at)
            at = self.space(at)
            parted = self.text.startswith(self.spelling.separator, at)
            at = self.space(at + 1) if parted else at
            if self.text.startswith("{", at):
                continue
            if parted and at < len(self.text):
                raise NoCall(at)
            self.settled = at
            return at

    def closed(self, at: int) -> int:
        self.closing = True
        at = self.space(at)
        closes = self.spelling.closes
        if not self.text.startswith(closes, at):
            for place, wanted in enumerate(closes):
                if not self.text.startswith(wanted, at + place):
                    raise NoCall(self.end(at + place))
        self.settled = self.space(at + len(closes))
        return self.settled

    def call(self, at: int) -> int:
        self.closing = False
        name: str | None = None
        early: str | None = None
        begun = False
        at = self.space(at + 1)
        while self.text.startswith('"', at):
            key, at = self.string(at)
            at = self.space(at)
            if not self.text.startswith(":", at):
                break
            at = self.space(at + 1)
            if key == "name" and name is None and self.text.startswith('"', at):
                name, at = self.string(at)
                if name is None or name not in self.names:
                    break
                if early is not None:
                    self.calls.append((name, early))
                    self.settled, begun, self.closing = at, True, True
            elif (
                key in {"arguments", "parameters"}
                and self.text.startswith("{", at)
                and not begun
                and early is None
            ):
                if name is None:
                    start, at = at, self.nested(at)
                    early = self.text[start:at]
                else:
                    begun = True
                    at = self.arguments(name, at)
            else:
                at = self.value(at)
            at = self.space(at)
            if begun and self.text.startswith("}", at):
                self.settled = at + 1
                return at + 1
            if not self.text.startswith(",", at):
                break
            at = self.space(at + 1)
        raise NoCall(self.end(at))

    def arguments(self, name: str, at: int) -> int:
        end = self.nested(at)
        self.calls.append((name, self.text[at:end]))
        self.settled = end
        whole = end < len(self.text) or self.balanced(self.text[at:end])
        self.closing = whole
        return end

    @staticmethod
    def balanced(text: str) -> bool:
        bare = _STRING.sub("", text)
        return '"' not in bare and sum(map(bare.count, "{[")) == sum(map(bare.count, "}]"))

    def nested(self, at: int) -> int:
        depth = 0
        while at < len(self.text):
            if self.text[at] == '"':
                found = _STRING.match(self.text, at)
                if found is None:
                    return len(self.text)
                at = found.end()
                continue
            depth += (self.text[at] in "{[") - (self.text[at] in "}]")
            at += 1
            if not depth:
                return at
        return at

    def value(self, at: int) -> int:
        if self.text.startswith('"', at):
            return self.string(at)[1]
        if self.text[at : at + 1] in {"{", "["}:
            return self.nested(at)
        found = _SCALAR.match(self.text, at)
        assert found is not None
        return found.end()

    def string(self, at: int) -> tuple[str | None, int]:
        found = _STRING.match(self.text, at)
        if found is None:
            return None, len(self.text)
        try:
            return json.loads(found[0], strict=False), found.end()
        except ValueError:
            return None, found.end()

    def space(self, at: int) -> int:
        while self.text[at : at + 1].isspace():
            at += 1
        return at

    def end(self, at: int) -> int | None:
        return at if at < len(self.text) else None
