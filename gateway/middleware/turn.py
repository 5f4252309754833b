"""Let a request go on when it has its turn (`gate`), and turn away whoever has none to wait for.

The turn ends where the answer begins, or earlier where the line says so: a request that waits for the
book or a model needs none.  Nor does one whose body is still on its way: it gives its turn back and asks again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from gateway.door import Door, busy
from gateway.middleware.live import PROBES
from gateway.middleware.wire import ASGIApp, Message, Receive, Scope, Send

AT_HAND_MS = 20.0
"""A body that comes within this time keeps its turn."""


@dataclass(frozen=True, slots=True)
class Turn:
    app: ASGIApp
    door: Door
    exempt: Collection[bytes] = PROBES

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["raw_path"] in self.exempt:
            await self.app(scope, receive, send)
            return
        gate, request_id = self.door.gate, str(scope["state"]["request_id"])
        who = self.door.caller(scope["headers"])
        if gate.waiting and not gate.open_to(who):
            raise busy()
        whole = begun = False

        async def received() -> Message:
            nonlocal whole
            if whole:
                return await receive()
            gate.ends(request_id, AT_HAND_MS)
            message = await receive()
            gate.ends(request_id)
            whole = not message.get("more_body", False)
            asks = whole and not begun and message["type"] == "http.request"
            if asks and not gate.holds(request_id):
                await gate.enter(request_id, who)
            return message

        async def sent(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                gate.leave(request_id)
            await send(message)

        await gate.enter(request_id, who)
        try:
            await self.app(scope, received, sent)
        finally:
            gate.leave(request_id)
