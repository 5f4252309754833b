"""One administrative request: who asks with what, the record of what they did, and the answer.

The endpoints themselves are the other files here.  Errors are RFC 9457 problems (`problems`).  Refuses to know: what is asked.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from starlette.types import Receive, Scope, Send

from gateway import strict_json
from gateway.api.endpoint import Arrival, Entry
from gateway.api.wire import check_kept, json_bytes, query
from gateway.errors import from_deny, invalid, unavailable
from gateway.house import House
from gateway.identify import identify, request_id, route_name
from gateway.kept import Basis
from gateway.refusals import told
from gateway.registered_records import settled
from gateway.revocations import Ending
from gateway.streaming import respond, until_disconnect
from gateway.unbroken import unbroken
from policies.facts import Principal
from policies.verdict import Deny, Reason
from security.audit import AuditEvent
from tenants.directory import DirectoryFault
from tenants.store import StoreUnavailable

T = TypeVar("T", bound=msgspec.Struct)
BODY_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class Call:
    """One administrative request: who, with what, and which part of the path was variable."""

    house: House
    who: Principal
    scope: Scope
    body: bytes
    name: str | None

    def decode(self, kind: type[T]) -> T:
        asked = strict_json.decode(self.body or b"{}", kind)
        for param, value in msgspec.structs.asdict(asked).items():
            for text in _texts(value):
                _check_text(text, param)
        return asked

    async def record(
        self,
        kind: str,
        *,
        tenant: str | None,
        target: str | None,
        reason: str | None,
        ending: Ending | None = None,
    ) -> None:
        """Durable before the answer.  Free text a person wrote stays in the ledger, not here.  `ending`:
        what was taken away by it."""
        house, who = self.house, self.who
        done = AuditEvent(
            kind=kind,
            request_id=request_id(self.scope),
            tenant=tenant,
            subject=house.names.person(who.tenant, who.issuer, who.user),
            credential_id=who.credential.id,
            target=target,
            outcome="done",
            reason=reason,
        )
        await settled(house, done, ending)

    @property
    def actor(self) -> str:
        return f"{self.who.issuer}:{self.who.user}"


@dataclass(frozen=True, slots=True)
class Streamed:
    """An answer of any length.  Whoever leaves ends it; where it breaks off, the connection does too, so
    that nobody takes a part for the whole."""

    content_type: str
    name: str
    chunks: AsyncIterator[bytes]

    async def sent(self, send: Send) -> None:
        headers = [
            (b"content-type", self.content_type.encode()),
            (b"content-disposition", f'attachment; filename="{self.name}"'.encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for chunk in self.chunks:
            if chunk:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


Handler = Callable[[Call], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Route:
    """An endpoint of one method; `prefix` cuts the variable part of the path, `suffix` its end.  `secret`: what it
    answers is shown once.  `asked`: it reads its query; elsewhere there is none, and a name in it is no filter.  What changes something stands behind `once`; what reads is called by itself."""

    house: House
    handler: Handler
    prefix: str = ""
    suffix: str = ""
    secret: bool = False
    asked: bool = False
    body_bytes_max: int = BODY_BYTES_MAX
    metered: bool = False
    rated: bool = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        who = await identify(self.house, scope)
        await self.serve(Entry(scope, Arrival.of(self.house.clock, scope), who), receive, send)

    def open(self) -> None:
        """While the house drains, too."""

    def check(self, entry: Entry, basis: Basis) -> None:
        """Which questions were asked then is not known here; whoever has the roles of then would hear the same."""
        if not set(basis.roles) <= {role.value for role in entry.who.roles}:
            raise from_deny(Deny(Reason.FORBIDDEN))

    async def serve(self, entry: Entry, receive: Receive, send: Send) -> None:
        entry.doing.secret = self.secret
        who, scope, path = entry.who, entry.scope, entry.scope["path"]
        name = path[len(self.prefix) : len(path) - len(self.suffix)] if self.prefix else None
        async with told(self.house, who, request_id(scope), route_name(scope)):
            if not self.asked:
                query(scope, frozenset())
            call = Call(self.house, who, scope, entry.body, name)
            answer = await unbroken(self._answered(call))
        if isinstance(answer, Streamed):
            await until_disconnect(receive, answer.sent(send))
        elif isinstance(answer, bytes):
            await respond(send, 200, answer, {"content-type": METRICS_TEXT})
        else:
            await respond(send, 200, json_bytes(answer))

    async def _answered(self, call: Call) -> object:
        """To its end: half a revocation is none, and one without its record neither."""
        try:
            return await self.handler(call)
        except DirectoryFault as fault:
            raise invalid(str(fault)) from fault
        except StoreUnavailable as down:
            changed = "whether the change was kept is not known. Look, and try again."
            reads = call.scope["method"] in {"GET", "HEAD"}
            said = "nothing was changed. Try again." if reads else changed
            raise unavailable(
                f"The database could not be reached; {said}", code="store_unavailable"
            ) from down


METRICS_TEXT = "text/plain; version=1.0.0; charset=utf-8"


def _texts(value: object) -> Iterator[str]:
    """However deep they lie."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _texts(each)
    elif isinstance(value, dict):
        yield from _texts([*value, *value.values()])
    elif isinstance(value, msgspec.Struct):
        yield from _texts(msgspec.structs.astuple(value))


def _check_text(text: str, param: str) -> None:
    """What is kept can be, and a name is a name.  Raises ApiError 400."""
    check_kept(text, param)
    if param != "reason" and not (text.isprintable() and text == text.strip()):
        raise invalid(
            f"{param}: expected printable characters, and no space at either end.", param=param
        )
