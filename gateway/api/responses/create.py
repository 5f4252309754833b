"""The endpoint of POST /v1/responses: in front of its caller, or in the background.

In the background a response is work of its own, told to a tape as the stream that it is, and its caller is answered as
soon as it has a place in the queue.  So whatever refuses it (shape, rights, rate, budget, backlog) is still an HTTP
status.  It goes through the line as any request: it has a place among those that run, and ends with its key, its
person, its tenant and the texts that it reads.  It does not end with its token, which was good when it was asked:
the queue and the room for an answer bound how long it may outlive it.
Source: API.md §1; DESIGN.md, settled 7.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from starlette.types import Receive, Send

from gateway import lifecycle, strict_json
from gateway.api.endpoint import Entry
from gateway.api.generate import Generate
from gateway.api.responses.making import RESPONSES, Making
from gateway.api.responses.stream import fault
from gateway.errors import ApiError, unavailable
from gateway.house import House
from gateway.kept import Basis
from gateway.middleware.errors import internal_error
from gateway.middleware.wire import Message
from gateway.runs import RESULT_BYTES_MAX, Doing
from gateway.stored import AtWork
from gateway.streaming import respond, until_disconnect
from gateway.tape import Tape
from gateway.unbroken import unbroken
from policies.facts import Principal

_MAY_NAME = re.compile(rb'"background"|\\u00[67]')
"""Its name, or a letter that nobody writes so who means well."""


@dataclass(frozen=True, slots=True)
class CreateResponse:
    """An `Endpoint`: the one that all families have, with a family of its own for each response."""

    house: House
    draw_seed: Callable[[], int]
    body_bytes_max: int = 4 * 1024 * 1024
    metered: bool = True
    rated: bool = True

    def open(self) -> None:
        Generate(self.house, RESPONSES, self.draw_seed).open()

    def check(self, entry: Entry, basis: Basis) -> None:
        if basis.model is not None:
            lifecycle.usable(self.house, entry.who, basis.model)

    async def serve(self, entry: Entry, receive: Receive, send: Send) -> None:
        if await _is_background(entry.body):
            await self._behind(entry, receive, send)
            return
        making = Making(self.house, entry, send)
        try:
            generate = Generate(self.house, making.family, self.draw_seed)
            await generate.serve(entry, receive, making.send)
            if entry.doing.stopped:  # who reads it is there still
                await making.end(None)
        finally:
            await making.over()

    async def _behind(self, entry: Entry, receive: Receive, send: Send) -> None:
        tape = Tape(bytes_max=RESULT_BYTES_MAX, linger_s=None)
        doing = Doing(basis=entry.doing.basis, claim=entry.doing.claim)
        inner = replace(entry, who=_outliving(entry.who), doing=doing)
        making = Making(self.house, inner, tape.send, tape)
        work = AtWork(
            tape, lambda: making.begun, making.now, lambda: making.streamed, claim=doing.claim
        )
        work.task = asyncio.create_task(self._work(making, work))

        async def left() -> Message:
            message = await receive()
            if entry.doing.stopped and tape.status is not None:
                await work.cancel()
                await asyncio.Future()  # who reads it hears its last words, and that ends this
            return message

        try:
            await until_disconnect(left, self._told(making, work, entry, send))
        finally:
            if tape.status is None:  # nobody has heard of it, and nobody can ask for it
                await unbroken(work.cancel())
            # What goes on without whoever left will be billed: by their key it is not begun again.
            entry.doing.spent = doing.spent if work.task.done() else True
            entry.doing.cut = making.streamed and doing.cut

    async def _told(self, making: Making, work: AtWork, entry: Entry, send: Send) -> None:
        """Where it stands, or all of its events.  Raises what refused it."""
        tape = work.tape
        with tape.read() as reader:
            await tape.begun()
            now = making.now()
            if tape.status is not None and now is not None and not making.streamed:
                await respond(send, 200, now)
                return
            entry.doing.fault = fault
            await tape.play(reader, send)

    async def _work(self, making: Making, work: AtWork) -> None:
        house, tape, why = self.house, work.tape, None
        running = house.stored.running
        running[making.id] = work
        house.stored.watch()
        try:
            try:
                generate = Generate(house, making.family, self.draw_seed)
                await generate.serve(making.entry, tape.receive, making.send)
            except Exception as failed:  # noqa: BLE001 — who reads it hears it
                why = failed
            await self._end(making, work, why)
        finally:
            del running[making.id]
            tape.close(None if tape.is_complete else why)

    async def _end(self, making: Making, work: AtWork, why: Exception | None) -> None:
        """What was cut off is kept as what it came to; what was refused before it began is not there."""
        if making.stream is None or work.tape.status is None:
            await making.over()
            return
        if why is not None:
            self.house.log(
                "responses.crashed", request_id=making.entry.arrived.request_id, error=why
            )
        fault = _stopped() if why is None else internal_error()
        await making.end(None if work.cancelling else fault)


async def _is_background(body: bytes) -> bool:
    """Looked at before the rest is, which is read where it runs."""
    if _MAY_NAME.search(body) is None:
        return False
    try:
        asked = await asyncio.to_thread(strict_json.loads, body)
    except ApiError:
        return False  # refused where it is read
    return isinstance(asked, dict) and asked.get("background") is True


def _outliving(who: Principal) -> Principal:
    """Revoked as before, and not ended by the end of a token that was good when it asked."""
    return replace(who, credential=replace(who.credential, expires_at_s=None))


def _stopped() -> ApiError:
    return unavailable(
        "The server stopped while this response was running. Ask again.", code="draining"
    )
