"""What an executor left of a gateway that was killed is booked by the next one: as used, not as reserved.

Whatever became of those holds meanwhile (lapsed and billed as reserved; settled, the word coming too late)
is the book's to know: what ended stays as it ended.  What was over the stop string when the gateway was
lost is not known here, and counts.  Refuses to know: when an executor leaves something.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import msgspec

from executor.contract import WORDS_SUFFIX, Word
from gateway.house import House
from gateway.metering import Part, billed
from tenants.asks import BookFault

AT_ONCE = 256


async def book_left(house: House, folder: Path) -> None:
    """All that lies below `folder`, which has one for each model."""
    for path in await asyncio.to_thread(_left, folder):
        if house.book.away:
            return
        try:
            words = await asyncio.to_thread(_read, path)
        except ValueError:
            house.log("last_words.unreadable", file=path.name)
            path.rename(path.with_suffix(".unreadable"))
            continue
        ordered = sorted(words, key=attrgetter("id"))
        every = [(each, tuple(group)) for each, group in groupby(ordered, attrgetter("id"))]
        unknown = 0
        for start in range(0, len(every), AT_ONCE):
            asked = (_end(house, *each) for each in every[start : start + AT_ONCE])
            unknown += sum(await asyncio.gather(*asked))
        path.unlink()
        house.log("book.last_words", count=len(every), unknown_count=unknown)


def _left(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*/*{WORDS_SUFFIX}"))


def _read(path: Path) -> list[Word]:
    """ValueError where it is none of ours."""
    return [msgspec.json.decode(line, type=Word) for line in path.read_bytes().splitlines()]


async def _end(house: House, request_id: str, words: Iterable[Word]) -> bool:
    """Whether nothing is known of it.  StoreUnavailable: later."""
    said = tuple(words)
    try:
        if any(word.prefilled or word.generated for word in said):
            parts = map(_part, said)
            meters = billed(parts, delivered=False, warm=any(word.warm for word in said))
            await house.book.settle(request_id, meters)
        else:
            await house.book.void(request_id)
    except BookFault:
        return True
    return False


def _part(word: Word) -> Part:
    return Part(
        prompt=word.prompt,
        prompt_tokens=word.prompt_tokens,
        prefilled=word.prefilled,
        cached=word.cached,
        output=word.generated,
        cause=word.cause,
    )
