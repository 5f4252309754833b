"""A stored response after it was made, for whose it is alone.

    GET    /v1/responses/{id}                  as it was told
    GET    /v1/responses/{id}/input_items      what it was asked, and what came before
    POST   /v1/responses/{id}/cancel           what is made in the background ends
    DELETE /v1/responses/{id}

What is absent, another's and lapsed is one 404, reached by the same steps.  A response that was made from registered
texts is told by the rights of this moment; removing it takes none.  Each of it is recorded before it is heard.
Source: DESIGN.md, settled 7; SECURITY.md P8.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import msgspec
from starlette.types import Receive, Scope, Send

from gateway.api.answers import Usage
from gateway.api.endpoint import Arrival, Entry
from gateway.api.registered.call import rated
from gateway.api.responses.items import OUR_PREFIX, Item
from gateway.api.responses.making import (
    CANCELLED,
    DELETED,
    READ,
    items_of,
    may_read,
    output_of,
    record,
)
from gateway.api.responses.object import encode, error_fields, usage_fields
from gateway.api.responses.schema import check_included
from gateway.api.responses.stream import fault, lost
from gateway.api.wire import json_bytes, query_lists
from gateway.errors import ApiError, conflict, invalid, unavailable
from gateway.house import House
from gateway.identify import identify, route_name
from gateway.kept import Basis
from gateway.lifecycle import expires_in_ms, standing_of
from gateway.live import LiveRequest
from gateway.middleware.wire import Message
from gateway.refusals import told
from gateway.registered_records import require_log
from gateway.stored import AtWork, Found, absent
from gateway.streaming import HEADERS, respond, until_disconnect
from gateway.tape import Reader
from gateway.unbroken import unbroken
from policies.facts import Principal
from policies.price import Meter
from tenants.ledger import HELD
from tenants.responses_rows import OPEN

PREFIX: Final = "/v1/responses/"
UNTOLD: Final = frozenset({*OPEN, "failed", "cancelled"})
"""What a row says where whoever made it may have said nothing of its end."""
LISTED_MAX: Final = 100
LISTED: Final = 20
_MANY = frozenset({"include"})
_NUMBER = re.compile(r"-1|[0-9]{1,10}", re.ASCII)
_SEQUENCE = re.compile(rb'"sequence_number":([0-9]{1,10})')


@dataclass(frozen=True, slots=True)
class Call:
    house: House
    entry: Entry
    id: str

    @property
    def who(self) -> Principal:
        return self.entry.who

    async def found(self) -> Found:
        """By the rights of now.  Raises ApiError 403, 404, 409, 503."""
        found = await self.house.stored.find(self.who, self.id)
        if found is None:
            raise absent()
        reads = found.content.basis.reads
        may_read(self.house, self.who, reads)
        self.entry.doing.basis.reads = reads
        return found

    def query(self, *one: str) -> dict[str, str]:
        """What is asked, besides what more to include, of which there is nothing.  Raises ApiError 400."""
        asked = query_lists(self.entry.scope, frozenset(one), _MANY)
        check_included(asked.pop("include", ()))
        return {name: values[0] for name, values in asked.items()}


Handler = Callable[[Call], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class StoredRoute:
    """An endpoint of one method; `suffix` cuts the id from the path's end.  What changes something stands behind
    `once`; what reads is called by itself."""

    house: House
    handler: Handler
    suffix: str = ""
    rated: bool = True
    body_bytes_max: int = 4096
    metered: bool = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        who = await identify(self.house, scope)
        await self.serve(Entry(scope, Arrival.of(self.house.clock, scope), who), receive, send)

    def open(self) -> None:
        """While the house drains, too."""

    def check(self, entry: Entry, basis: Basis) -> None:
        """What it was answered from is looked at by whoever tells it again."""

    async def serve(self, entry: Entry, receive: Receive, send: Send) -> None:
        house, who, request_id = self.house, entry.who, entry.arrived.request_id
        async with told(house, who, request_id, route_name(entry.scope)):
            answer = await unbroken(self._answered(entry))
        await respond(send, 200, answer)

    async def _answered(self, entry: Entry) -> bytes:
        """To its end, though the caller has gone."""
        require_log(self.house)
        path = entry.scope["path"]
        call = Call(self.house, entry, path[len(PREFIX) : len(path) - len(self.suffix)])
        if not self.rated:  # whoever has used up their rate can still end and remove
            if entry.who.tenant is not None:
                standing_of(self.house, entry.who)
            return await self.handler(call)
        async with rated(self.house, entry.who, entry.scope):
            return await self.handler(call)


async def view(house: House, found: Found) -> bytes:
    """As it is by now: here, at another gateway, or after the one that made it has gone."""
    row, told_so = found.row, found.content.response
    work = house.stored.running.get(row.id)
    if work is not None and (now := work.now()) is not None:
        return now
    if row.status not in UNTOLD:
        return told_so
    fields = msgspec.json.decode(told_so)
    if fields["status"] not in OPEN:
        return told_so
    if row.status in OPEN and not row.lapsed:
        return encode(fields | {"status": row.status})
    # Nobody was left to say more.
    fields["usage"] = await _booked(house, row.id)
    if row.status == "cancelled":
        return encode(fields | {"status": "cancelled"})
    return encode(fields | {"status": "failed", "error": error_fields(_lost())})


async def _booked(house: House, id_: str) -> dict[str, object] | None:
    """What was billed for it, as the book has it by now; None where it does not know yet."""
    known = await house.book.explain("req_" + id_.removeprefix(OUR_PREFIX))
    if known is None or known.charge is None or known.state == HELD:
        return None
    tokens = Counter({line.meter: line.tokens for line in known.charge.lines})
    cached = tokens[Meter.CACHED_INPUT]
    usage = usage_fields(Usage(tokens[Meter.INPUT] + cached, tokens[Meter.OUTPUT], cached))
    return {**usage, "x_estimated": True} if known.estimated else usage


async def read(call: Call) -> bytes:
    found = await call.found()
    await record(call.house, call.entry, READ, call.id)
    return await view(call.house, found)


async def cancel(call: Call) -> bytes:
    """Again and again, with the same answer.  To end it takes no right to what it reads; to be told of it does."""
    stored = call.house.stored
    found = await stored.find(call.who, call.id)
    if found is None:
        raise absent()
    if not found.row.background:
        raise invalid("Only a response that was made with background: true can be cancelled.")
    if found.row.status in OPEN and not found.row.lapsed:
        await stored.cancel(call.who, call.id)
        await record(call.house, call.entry, CANCELLED, call.id)
    return await view(call.house, await call.found())


async def input_items(call: Call) -> bytes:
    asked = call.query("limit", "order", "after")
    limit = asked.get("limit", str(LISTED))
    if not (limit.isascii() and limit.isdigit() and len(limit) < 4) or not (
        1 <= int(limit) <= LISTED_MAX
    ):
        raise invalid(f"limit: expected a number from 1 to {LISTED_MAX}.", param="limit")
    order = asked.get("order", "desc")
    if order not in {"asc", "desc"}:
        raise invalid("order: expected asc or desc.", param="order")
    await call.found()
    items = await _conversation(call)
    if order == "desc":
        items.reverse()
    ids = [each.id for each in items]
    start = 0
    if (after := asked.get("after")) is not None:
        if after not in ids:
            raise invalid("after: expected the last id of the page before.", param="after")
        start = ids.index(after) + 1
    page = items[start : start + int(limit)]
    await record(call.house, call.entry, READ, call.id)
    return json_bytes(
        {
            "object": "list",
            "data": page,
            "first_id": page[0].id if page else None,
            "last_id": page[-1].id if page else None,
            "has_more": start + int(limit) < len(items),
        }
    )


async def _conversation(call: Call) -> list[Item]:
    """What the response was made from: its own input, behind what is still there of all that it went on from."""
    items: list[Item] = []
    chain, _ = await call.house.stored.chain(call.who, call.id)
    if not chain:  # removed meanwhile
        raise absent()
    *before, last = chain
    for found in before:
        may_read(call.house, call.who, found.content.basis.reads)
        items += (*items_of(found), *output_of(found))
    return [*items, *items_of(last)]


async def remove(call: Call) -> bytes:
    """What is still made of it ends with it."""
    stored = call.house.stored
    if not await stored.remove(call.who, call.id):
        raise absent()
    if (work := stored.running.get(call.id)) is not None:
        await work.cancel()
    await record(call.house, call.entry, DELETED, call.id)
    return json_bytes({"id": call.id, "object": "response", "deleted": True})


@dataclass(frozen=True, slots=True)
class ReadResponse:
    """GET /v1/responses/{id}: as an object, or its events again from the first, or behind `starting_after`."""

    house: House

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        who = await identify(self.house, scope)
        entry = Entry(scope, Arrival.of(self.house.clock, scope), who)
        with ExitStack() as seats:
            async with told(self.house, who, entry.arrived.request_id, route_name(scope)):
                after = _starting_after(Call(self.house, entry, scope["path"][len(PREFIX) :]))
                if after is not None:
                    source = await unbroken(self._source(entry, after, seats))
            if after is None:
                await StoredRoute(self.house, read).serve(entry, receive, send)
            elif isinstance(source, bytes):
                await _sent_again(source, send)
            else:
                await until_disconnect(receive, self._follow(entry, *source, after, send))

    async def _source(
        self, entry: Entry, after: int, seats: ExitStack
    ) -> bytes | tuple[AtWork, Reader]:
        """Its events behind a number, or where they are being told, with a seat there: what has one loses nothing of what is told
        before it listens.  Raises ApiError."""
        require_log(self.house)
        call = Call(self.house, entry, entry.scope["path"][len(PREFIX) :])
        async with rated(self.house, entry.who, entry.scope):
            found = await call.found()
            work = self.house.stored.running.get(call.id)
            if work is not None and work.streamed():
                if not work.tape.admits:
                    raise conflict(
                        "response_in_progress",
                        "No more readers are let in to its events. Ask for the response itself.",
                    )
                reader = seats.enter_context(work.tape.read())
                await record(self.house, entry, READ, call.id)
                return work, reader
            events = await _events(self.house, found, after)
            if events is None:
                raise invalid(
                    "stream: its events are not here. Of what is made in the background with stream: true they are "
                    "kept at its end, up to 2 MiB, and told before by the gateway that makes it. Ask for the "
                    "response itself.",
                    param="stream",
                )
            await record(self.house, entry, READ, call.id)
            return events

    async def _follow(
        self, entry: Entry, work: AtWork, reader: Reader, after: int, send: Send
    ) -> None:
        """As a request of its own, which its own credential's end ends."""
        tape, house = work.tape, self.house
        listening = _Listening(send, after)
        live = LiveRequest(
            entry.arrived.request_id,
            entry.who,
            lambda why: tape.interrupt(reader, why),
            reads=entry.doing.basis.reads,
            listens=True,
        )
        with house.live.entered(live, expires_in_ms=expires_in_ms(house, entry.who)):
            try:
                await tape.play(reader, listening.send)
            except ApiError as why:
                if not listening.started:
                    raise
                await listening.end(fault(why))


@dataclass(slots=True)
class _Listening:
    to: Send
    after: int
    started: bool = False

    async def send(self, message: Message) -> None:
        self.started = True
        if message["type"] == "http.response.body" and message.get("body"):
            message = {**message, "body": behind(message["body"], self.after)}
        await self.to(message)

    async def end(self, data: bytes) -> None:
        await self.to({"type": "http.response.body", "body": data, "more_body": False})


def _starting_after(call: Call) -> int | None:
    """None: no events are asked for.  Raises ApiError 400."""
    asked = call.query("stream", "starting_after", "include_obfuscation")
    for name in ("stream", "include_obfuscation"):
        if asked.get(name, "false") not in {"true", "false"}:
            raise invalid(f"{name}: expected true or false.", param=name)
    after = asked.get("starting_after", "-1")
    if not _NUMBER.fullmatch(after):
        raise invalid("starting_after: expected a sequence_number.", param="starting_after")
    return int(after) if asked.get("stream") == "true" else None


def behind(events: bytes, after: int) -> bytes:
    """Whole events, those that come behind a number.  Comments are for whoever waits, and left out."""
    if after < 0:
        return events
    blocks = events.removesuffix(b"\n\n").split(b"\n\n")
    found = ((block, _SEQUENCE.search(block)) for block in blocks)
    return b"".join(
        block + b"\n\n" for block, match in found if match is not None and int(match[1]) > after
    )


async def _events(house: House, found: Found, after: int) -> bytes | None:
    """Those that are kept, behind a number; of what nobody was left to end, its end.  None where there are none."""
    events = found.content.events
    if events != b"":
        return None if events is None else behind(events, after)
    became = msgspec.json.decode(await view(house, found))
    if became["status"] in OPEN:
        return None
    return lost(msgspec.json.decode(found.content.response), became, after)


async def _sent_again(events: bytes, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": list(HEADERS)})
    await send({"type": "http.response.body", "body": events, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _lost() -> ApiError:
    return unavailable(
        "The server that made this response has gone. Ask again.", code="gateway_lost"
    )
