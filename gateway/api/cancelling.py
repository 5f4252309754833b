"""Stop a request of one's own that runs, by its `Idempotency-Key`.

    POST /v1/requests/cancel   {"idempotency_key": "…"}   →   {"cancelled": true}

Who only goes away may come back, so work by a key goes on a while without a listener (`tape`).  This says that
nobody will, and it is over when the answer comes: a stream that has begun is cut off for everybody who reads it (of a
response, with the event that says so), and whoever has heard nothing yet hears 409 `request_cancelled`.  A response that was begun by the key and is made in the
background ends as by a cancel of its own.  What was generated is billed, as when anybody leaves.
A key belongs to its principal, so nobody can stop another's work, nor learn whether there is any.  `cancelled` is
false where nothing by that key runs at this gateway; at another it ends by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.types import Receive, Send

from gateway import strict_json
from gateway.api.endpoint import Entry
from gateway.api.wire import json_bytes
from gateway.errors import ApiError, conflict
from gateway.house import House
from gateway.idempotency import HEADER, client_key
from gateway.kept import Basis
from gateway.refusals import told
from gateway.streaming import respond

ROUTE = "/v1/requests/cancel"


@dataclass(frozen=True, slots=True)
class Cancel:
    """`routes`: of the work that can be stopped."""

    house: House
    routes: tuple[str, ...]
    body_bytes_max: int = 4096
    metered: bool = False
    rated: bool = False  # whoever has used up their rate can still stop what runs

    def open(self) -> None:
        """A house that shuts down is glad of it."""

    def check(self, entry: Entry, basis: Basis) -> None:
        """It tells nothing of any work."""

    async def serve(self, entry: Entry, receive: Receive, send: Send) -> None:
        async with told(self.house, entry.who, entry.arrived.request_id, ROUTE):
            key = _named(entry.body)
        digests = [self.house.digests.key(entry.who, f"POST {each}", key) for each in self.routes]
        runs = [run for digest in digests if (run := self.house.runs.find(digest)) is not None]
        for run in runs:
            run.doing.stopped = True
            run.tape.abandon(_stopped())
            await run.over()
        behind = await self.house.stored.cancel_claimed(digests)
        await respond(send, 200, json_bytes({"cancelled": bool(runs) or behind}))


def _stopped() -> ApiError:
    return conflict(
        "request_cancelled",
        "This request was stopped by its Idempotency-Key, with POST /v1/requests/cancel. What was generated of it is charged.",
    )


class CancelRequest(msgspec.Struct, frozen=True):
    """The key of the request to stop."""

    idempotency_key: Annotated[str, Meta(min_length=1, max_length=255)]


def _named(body: bytes) -> str:
    """Raises ApiError 400."""
    key = strict_json.decode(body, CancelRequest).idempotency_key
    found = client_key([(HEADER, key.encode("utf-8", "replace"))])
    assert found is not None
    return found
