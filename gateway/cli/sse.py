"""Server-sent events as Lockgate writes them: comments and data, LF or CRLF.  Pure.

Splits at line feeds alone: a line separator inside JSON text (U+2028) is text, which line splitters of
standard libraries do not know.  Source: API.md §3, the WHATWG HTML standard §9.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

LINE_BYTES_MAX = 8 << 20


class NotEvents(Exception):
    """What came is no event stream of bounded lines."""


@dataclass(frozen=True, slots=True)
class Comment:
    text: str


@dataclass(frozen=True, slots=True)
class Data:
    raw: bytes


def events(chunks: Iterable[bytes]) -> Iterator[Comment | Data]:
    """One item a comment or data line; other fields say nothing to us.  Raises NotEvents."""
    rest = bytearray()
    for chunk in chunks:
        rest += chunk
        *lines, last = rest.split(b"\n")
        rest = bytearray(last)
        if len(rest) > LINE_BYTES_MAX:
            raise NotEvents("a line without end")
        for line in lines:
            bare = bytes(line).removesuffix(b"\r")
            if bare.startswith(b":"):
                yield Comment(bare[1:].strip().decode("utf-8", "replace"))
            elif bare.startswith(b"data:"):
                yield Data(bare[5:].removeprefix(b" "))
