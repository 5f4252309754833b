"""JSON and fixed words, character by character, as far as one must know them to find their end.

Generators that ask for the next character by `yield` and return the first one that they did not use.
Refuses to know: calls, what becomes of what was read.
"""

from __future__ import annotations

import json
from collections.abc import Generator

Part = Generator[None, str, str]
"""Is sent characters, "" at the end of the text; returns the character that it leaves to the next."""


def space(char: str) -> Part:
    while char.isspace():
        char = yield
    return char


def literal(word: str, char: str) -> Generator[None, str, tuple[bool, str]]:
    """Whether it was this word, and the character after it or the first that was none of it."""
    for wanted in word:
        if char != wanted:
            return False, char
        char = yield
    return True, char


def string(char: str) -> Generator[None, str, tuple[str | None, str]]:
    """What the string says, None if it is broken, and the character after it."""
    raw = [char]
    char = yield
    escaped = False
    while char and (escaped or char != '"'):
        raw.append(char)
        escaped = not escaped and char == "\\"
        char = yield
    if not char:
        return None, char
    try:
        text = json.loads("".join([*raw, '"']), strict=False)
    except ValueError:
        text = None
    return text, (yield)
