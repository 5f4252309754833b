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
from gateway.metering import Part, billed, our_fault
from policies.facts import Meters
from tenants.book import Explanation
from tenants.usage import UsageRecord

AT_ONCE = 256
OUTCOME, REASON = "interrupted", "gateway_lost"


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
    held = await house.book.explain(request_id)
    if held is None or held.state is None:
        return True
    said = tuple(words)
    warm = any(word.warm for word in said)
    meters = billed(map(_part, said), delivered=False, warm=warm)
    touched = any(word.ended.prefilled or word.ended.generated for word in said)
    causes = (word.ended.cause for word in said)
    at_our_cost = not touched or our_fault(causes, delivered=False)
    record = _record(held, said, meters, at_our_cost=at_our_cost)
    if touched:
        await house.book.settle(request_id, meters, record)
    else:
        await house.book.void(request_id, record)
    return False


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
