"""A stored response after it was made, for whose it is alone.

    GET    /v1/responses/{id}                  as it was told
    GET    /v1/responses/{id}/input_items      what it was asked, and what came before
    DELETE /v1/responses/{id}

What is absent, another's and lapsed is one 404, reached by the same steps.  A response that was made from registered
texts is told by the rights of this moment; removing it takes none.  Each of it is recorded before it is heard.
Source: DESIGN.md, settled 7; SECURITY.md P8.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from starlette.types import Receive, Scope, Send

from gateway.api.endpoint import Arrival, Entry
from gateway.api.registered_call import rated
from gateway.api.response_items import Item
from gateway.api.responses import DELETED, READ, items_of, may_read, output_of, record
from gateway.api.wire import json_bytes, query_lists
from gateway.errors import invalid
from gateway.house import House
from gateway.identify import identify, route_name
from gateway.kept import Basis
from gateway.refusals import told
from gateway.registered_records import require_log
from gateway.stored import Found, absent
from gateway.streaming import respond
from gateway.unbroken import unbroken
from policies.facts import Principal

PREFIX: Final = "/v1/responses/"
LISTED_MAX: Final = 100
LISTED: Final = 20
_MANY = frozenset({"include"})


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
        return {name: values[0] for name, values in asked.items() if name not in _MANY}


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
        async with rated(self.house, entry.who, entry.scope):
            return await self.handler(call)


async def read(call: Call) -> bytes:
    asked = call.query("stream", "starting_after", "include_obfuscation")
    if asked.get("stream", "false") != "false":
        raise invalid(
            "stream: only what was made in the background as a stream can be streamed again.",
            param="stream",
        )
    found = await call.found()
    await record(call.house, call.entry, READ, call.id)
    return found.content.response


async def input_items(call: Call) -> bytes:
    asked = call.query("limit", "order", "after", "before")
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
    if not await call.house.stored.remove(call.who, call.id):
        raise absent()
    await record(call.house, call.entry, DELETED, call.id)
    return json_bytes({"id": call.id, "object": "response", "deleted": True})
