"""What somebody wrote, fit to be shown back: short, nothing in it that drives a terminal or cannot be
encoded.  `gateway.quoting` may not be known here.

Refuses to know: what is secret; no value of a trace or a machine is ever shown.  Source: SECURITY.md §4 (L3).
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

WORD_CHARS_MAX: Final = 64
SENTENCE_CHARS_MAX: Final = 2_000
# A path has our own fields and places in lists; a foreign name that looks like one stays a name.
_UNKNOWN: Final = re.compile(
    r"Object contains unknown field `(.*?)`( - at `\$[a-z_0-9.\[\]]*`)?", re.DOTALL
)


def quoted(text: str) -> str:
    """In quotes, other than printable ASCII escaped."""
    return f"{text[:WORD_CHARS_MAX]!a}{'…' if len(text) > WORD_CHARS_MAX else ''}"


def printable(text: str, chars_max: int | None = None) -> str:
    """As it stands, lines kept; a replacement character for each other that does not print."""
    cut = text if chars_max is None or len(text) <= chars_max else text[:chars_max] + "…"
    return "".join(c if c.isprintable() or c == "\n" else "�" for c in cut)


def misfit(broken: msgspec.DecodeError | RecursionError, expected: str) -> str:
    """Why that is not what it should be.  msgspec names fields, types and bounds, and of all that stood
    there only a field that it does not know.  `expected`: where it is no JSON at all."""
    if not isinstance(broken, msgspec.ValidationError):
        return f"it is no {expected}"
    unknown = _UNKNOWN.fullmatch(str(broken))
    if unknown is None:
        return str(broken)
    return f"Object contains unknown field {quoted(unknown[1])}{unknown[2] or ''}"
