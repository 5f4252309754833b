"""What an executor left of a gateway that was killed is booked by the next one: as used, not as reserved.

Whatever became of those holds meanwhile (lapsed and billed as reserved; settled, the word coming too late)
is the book's to know: what ended stays as it ended.  What was over the stop string when the gateway was
lost is not known here, and counts.  A word is believed as far as it can be true: of a hold that nobody has here,
and up to what it reserved.  Refuses to know: when an executor leaves something.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from enum import Enum
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import msgspec

from executor.contract import WORDS_SUFFIX, Word
from gateway.house import House
from gateway.metering import Part, billed, our_fault
from policies.facts import Meters
from tenants.book import Explanation
from tenants.usage import UsageRecord

AT_ONCE = 256
ASIDE_SUFFIX = ".unreadable"
BYTES_MAX = 64 * 2**20
ID_CHARS_MAX = 128
COUNT_MAX = 2**50
"""Tokens, or nanoseconds: thirteen days."""
OUTCOME, REASON = "interrupted", "gateway_lost"


async def book_left(house: House, folder: Path) -> None:
    """All that lies below `folder`, which has one for each model.  What is in a file that cannot be is put
    aside with it, and keeps nothing else."""
    for path in await asyncio.to_thread(_left, folder):
        if house.book.away:
            return
        try:
            words, whole = await asyncio.to_thread(_read, path)
        except OSError as why:
            _put_aside(house, path, type(why).__name__)
            continue
        ordered = sorted(words, key=attrgetter("id"))
        every = [(each, tuple(group)) for each, group in groupby(ordered, attrgetter("id"))]
        found: Counter[_Found] = Counter()
        for start in range(0, len(every), AT_ONCE):
            asked = (_end(house, *each) for each in every[start : start + AT_ONCE])
            found.update(await asyncio.gather(*asked))
        house.log(
            "book.last_words",
            count=found[_Found.BOOKED],
            unknown_count=found[_Found.UNKNOWN],
            impossible_count=found[_Found.IMPOSSIBLE],
        )
        if whole and not found[_Found.IMPOSSIBLE]:
            path.unlink()
        else:
            _put_aside(house, path, "impossible" if whole else "damaged")


class _Found(Enum):
    BOOKED = "booked"
    UNKNOWN = "unknown"  # nothing was ever held by that id
    IMPOSSIBLE = "impossible"  # more than was reserved, or of what this gateway runs


def _left(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*/*{WORDS_SUFFIX}"))


def _read(path: Path) -> tuple[list[Word], bool]:
    """What can be read, and whether that is all.  OSError."""
    if path.stat().st_size > BYTES_MAX:
        raise OSError("no executor leaves so much")
    words, whole = [], True
    for line in path.read_bytes().splitlines():
        try:
            words.append(msgspec.json.decode(line, type=Word))
        except ValueError:
            whole = False
    return words, whole


def _put_aside(house: House, path: Path, why: str) -> None:
    house.log("last_words.put_aside", reason=why)
    with suppress(OSError):  # then it is told again
        path.rename(path.with_suffix(ASIDE_SUFFIX))


async def _end(house: House, request_id: str, words: Iterable[Word]) -> _Found:
    """StoreUnavailable: later."""
    if not (request_id.isascii() and request_id.isprintable() and len(request_id) <= ID_CHARS_MAX):
        return _Found.UNKNOWN
    if house.book.runs(request_id):
        return _Found.IMPOSSIBLE
    held = await house.book.explain(request_id)
    if held is None or held.state is None:
        return _Found.UNKNOWN
    said = tuple(words)
    warm = any(word.warm for word in said)
    meters = billed(map(_part, said), delivered=False, warm=warm)
    if not _fits(meters, said, held):
        return _Found.IMPOSSIBLE
    touched = any(word.ended.prefilled or word.ended.generated for word in said)
    causes = (word.ended.cause for word in said)
    at_our_cost = not touched or our_fault(causes, delivered=False)
    record = _record(held, said, meters, at_our_cost=at_our_cost)
    if touched:
        await house.book.settle(request_id, meters, record)
    else:
        await house.book.void(request_id, record)
    return _Found.BOOKED


def _fits(meters: Meters, said: tuple[Word, ...], held: Explanation) -> bool:
    """The executor stops at what was reserved, and counts no time backwards."""
    prompt, output = held.reserved_tokens
    counts = [value for word in said for value in _counts(word)]
    within = all(0 <= value <= COUNT_MAX for value in counts)
    inputs = meters.input + meters.cached_input + meters.cache_write
    return within and inputs <= prompt and meters.output <= output


def _counts(word: Word) -> tuple[int, ...]:
    how = word.ended
    return (
        *(word.prompt, word.prompt_tokens, how.prefilled, how.cached, how.generated),
        *(how.queued_ns, how.prefill_ns, how.decode_ns, how.device_ns, how.recomputed_ns),
        how.preemptions,
    )


def _part(word: Word) -> Part:
    return Part(
        prompt=word.prompt,
        prompt_tokens=word.prompt_tokens,
        prefilled=word.ended.prefilled,
        cached=word.ended.cached,
        output=word.ended.generated,
        cause=word.ended.cause,
    )


def _record(
    held: Explanation, said: tuple[Word, ...], meters: Meters, *, at_our_cost: bool
) -> UsageRecord:
    """What is known of it here: which route it came by, and what its client heard, is not."""
    ends = [word.ended for word in said]
    device_ns = sum(each.device_ns for each in ends)
    return UsageRecord(
        request_id=held.request_id,
        dims=held.dims,
        route="",
        received_at_ms=held.held_at_ms,
        outcome=OUTCOME,
        reason=REASON,
        prompt_tokens=meters.input + meters.cached_input,
        output_tokens=meters.output,
        generated_tokens=sum(each.generated for each in ends),
        queued_ns=max(each.queued_ns for each in ends),
        prefill_ns=max(each.prefill_ns for each in ends),
        decode_ns=max(each.decode_ns for each in ends),
        device_ns=0 if at_our_cost else device_ns,
        faulted_ns=device_ns if at_our_cost else 0,
        recomputed_ns=sum(each.recomputed_ns for each in ends),
        preemptions=sum(each.preemptions for each in ends),
        device_start=said[0].start or None,
    )
