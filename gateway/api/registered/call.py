"""One request about registered texts: who asks with what, the right that it takes, its record, its answer.

The endpoints are `documents` and `templates`; both listeners have them, each with its own shape of
errors.  What is absent, lapsed, another tenant's and not for this caller is one 404, reached by the same
steps: one look-up, one decision over whatever was found, nothing read (SECURITY.md P8, C20).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta
from starlette.types import Receive, Scope, Send

from gateway import strict_json
from gateway.api.endpoint import Arrival, Entry
from gateway.api.schema import whole
from gateway.api.wire import json_bytes, query
from gateway.errors import ApiError, from_deny, invalid, not_found, unavailable
from gateway.house import House, Reading
from gateway.identify import identify, request_id, route_name
from gateway.kept import Basis
from gateway.lifecycle import allowed, standing_of
from gateway.refusals import told
from gateway.registered import About
from gateway.registered_records import event_of, require_log, settled
from gateway.revocations import Ending
from gateway.streaming import respond
from gateway.unbroken import unbroken
from policies import registered as rules
from policies.access import Owner
from policies.facts import Principal
from policies.registered import Right
from policies.verdict import Deny, Reason
from security.api_keys import names_credential
from security.audit import RegisteredEvent
from tenants.documents import Kind, Record, RegistryFull, Room, VersionMoved
from tenants.scopes import dimensions, scope_limits
from tenants.store import StoreUnavailable
from tenants.tempo import TempoAsk

T = TypeVar("T", bound=msgspec.Struct)
BODY_BYTES_MAX = 4 * 1024 * 1024
INLINE_CHARS_MAX = 2048
LISTED_MAX = 100
LISTED = 20
TITLE_CHARS_MAX = 256
Text = Annotated[str, Meta(min_length=1, max_length=BODY_BYTES_MAX)]
Title = Annotated[str, Meta(min_length=1, max_length=TITLE_CHARS_MAX)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]

ABSENT: Final = Record(
    id="",
    kind=Kind.DOCUMENT,
    tenant="",
    issuer="",
    owner="",
    content_version=-1,
    acl_version=-1,
    created_at_s=0,
    changed_at_s=0,
    expires_at_s=None,
    tokens={},
)
"""Decided over where there is nothing, so that nothing is decided differently."""


@dataclass(frozen=True, slots=True)
class Call:
    house: House
    who: Principal
    scope: Scope
    body: bytes
    kind: Kind
    id: str

    def decode(self, shape: type[T]) -> T:
        return strict_json.decode(self.body, shape)

    def rights(self, record: Record) -> frozenset[Right]:
        if self.kind is Kind.TEMPLATE:
            return rules.template_rights(self.who, record.tenant)
        owner = Owner(record.tenant or "", record.issuer, record.owner)
        acl = self.house.registered.documents.acl(record)
        return rules.document_rights(self.who, owner, acl, self.house.clock.monotonic_ns())

    def found(self, *needed: Right) -> Record:
        """The one that the path names, for who has one of these rights.  Raises ApiError 403, 404."""
        return self.permitted(self.house.registered.documents.find(self.id), *needed)

    def permitted(self, record: Record | None, *needed: Right) -> Record:
        """The same of what stands there."""
        if record is None or record.kind is not self.kind:
            record = ABSENT
        rights = self.rights(record)
        if Right.SEE not in rights or record is ABSENT:
            raise self.missing()
        if rights.isdisjoint(needed):
            raise from_deny(Deny(Reason.FORBIDDEN))
        return record

    def missing(self) -> ApiError:
        return not_found(
            f"There is no such {self.kind.value}, or it is not yours.",
            code=f"{self.kind.value}_not_found",
        )

    def visible(self) -> list[Record]:
        """Newest first."""
        documents = self.house.registered.documents
        owners = [self.who.tenant] if self.kind is Kind.DOCUMENT else [None, self.who.tenant]
        mine = [
            each
            for tenant in dict.fromkeys(owners)
            for each in documents.of(tenant)
            if each.kind is self.kind and Right.SEE in self.rights(each)
        ]
        return sorted(mine, key=lambda each: (each.created_at_s, each.id), reverse=True)

    def page(self) -> tuple[list[Record], bool]:
        """What `limit` and `after` ask for, and whether there is more.  Raises ApiError 400."""
        asked = query(self.scope, frozenset({"limit", "after"}))
        limit = asked.get("limit", str(LISTED))
        if not (limit.isascii() and limit.isdigit() and len(limit) < 4) or not (
            1 <= int(limit) <= LISTED_MAX
        ):
            raise invalid(f"limit: expected a number from 1 to {LISTED_MAX}.", param="limit")
        listed, start = self.visible(), 0
        if (after := asked.get("after")) is not None:
            ids = [each.id for each in listed]
            if after not in ids:
                raise invalid("after: expected the last id of the page before.", param="after")
            start = ids.index(after) + 1
        end = start + int(limit)
        return listed[start:end], end < len(listed)

    async def record(
        self, event: RegisteredEvent, target: Record, ending: Ending | None = None
    ) -> None:
        """Durable before the answer.  `ending`: what was taken away by it."""
        done = event_of(self.house, event, target, self.who, request_id(self.scope))
        await settled(self.house, done, ending)

    def room(self, tenant: str | None) -> Room:
        return Room() if tenant is None else Room(*self.house.directory.room_of(tenant))

    async def tokens(self, text: str, tenant: str | None, param: str) -> dict[str, int]:
        """How long it is for each model that the tenant may use, as far as they are loaded.  Raises
        ApiError 400 where it fits into none of them."""
        deployments = {each.name: each for each in self.house.deployments.values()}
        models = set(deployments)
        if tenant is not None:
            models &= standing_of(self.house, self.who).models
        loaded = [name for name in sorted(models) if deployments[name].executor.card is not None]
        if not loaded:
            raise unavailable(
                "No model is loaded yet that could count it. Try again.", code="model_loading"
            )
        counted = {}
        for name in loaded:
            reading = deployments[name].reading()
            if (tokens := await _count(reading, text)) is not None:
                counted[name] = tokens
        if not counted:
            most = max(deployments[name].reading().card.context_tokens for name in loaded)
            raise invalid(
                f"{param}: the text is longer than the context of every model here; the largest has "
                f"{most} tokens. Split it.",
                param=param,
                code="context_length_exceeded",
            )
        return counted


async def _count(reading: Reading, text: str) -> int | None:
    """None where it does not fit."""
    vocabulary = reading.vocabulary
    if vocabulary.fewest_tokens(text) > vocabulary.context_tokens:
        return None
    if len(text) <= INLINE_CHARS_MAX:
        count = len(vocabulary.encode_content(text))
    else:
        count = len(await asyncio.to_thread(vocabulary.encode_content, text))
    return count if count <= vocabulary.context_tokens else None


Handler = Callable[[Call], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Route:
    """An endpoint of one method; `prefix` cuts the id from the path, `suffix` its end.  What changes something
    stands behind `once`; what reads is called by itself."""

    house: House
    kind: Kind
    handler: Handler
    prefix: str = ""
    suffix: str = ""
    rated: bool = True
    body_bytes_max: int = BODY_BYTES_MAX
    metered: bool = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        who = await identify(self.house, scope)
        await self.serve(Entry(scope, Arrival.of(self.house.clock, scope), who), receive, send)

    def open(self) -> None:
        """While the house drains, too."""

    def check(self, entry: Entry, basis: Basis) -> None:
        """What it was about is there, and the caller may no less over it than then."""
        if basis.target is not None:
            call = self._call(entry)
            if not set(basis.rights) <= _rights_over(call, basis.target):
                raise call.missing()

    async def serve(self, entry: Entry, receive: Receive, send: Send) -> None:
        call = self._call(entry)
        async with told(self.house, call.who, request_id(call.scope), route_name(call.scope)):
            answer = await unbroken(self._answered(call))
        if isinstance(answer, dict) and isinstance(id_ := answer.get("id"), str):
            basis = entry.doing.basis
            basis.target, basis.rights = id_, tuple(sorted(_rights_over(call, id_)))
        if isinstance(answer, str):
            await respond(send, 200, answer.encode(), {"content-type": "text/plain; charset=utf-8"})
        else:
            await respond(send, 200, json_bytes(answer))

    def _call(self, entry: Entry) -> Call:
        path = entry.scope["path"]
        named = path[len(self.prefix) : len(path) - len(self.suffix)] if self.prefix else ""
        return Call(self.house, entry.who, entry.scope, entry.body, self.kind, named)

    async def _answered(self, call: Call) -> object:
        """To its end, though the caller has gone: half a revocation is none."""
        require_log(self.house)
        try:
            async with rated(call.house, call.who, call.scope):
                return await self.handler(call)
        except RegistryFull as full:
            raise ApiError(
                403,
                "permission_error",
                "registry_full",
                f"There is no room for it: {full.limit} are allowed ({full.limit_name}). Delete what is "
                "no longer needed.",
            ) from full
        except VersionMoved as moved:
            raise call.missing() from moved
        except StoreUnavailable as down:
            raise unavailable(
                "The registry could not be reached; whether the change was kept is not known. Look, "
                "and try again.",
                code="registry_down",
            ) from down


def _rights_over(call: Call, id_: str) -> set[str]:
    """By name; none over what is gone."""
    record = call.house.registered.documents.find(id_)
    return set() if record is None else {right.value for right in call.rights(record)}


@asynccontextmanager
async def rated(house: House, who: Principal, scope: Scope) -> AsyncIterator[None]:
    """One of the caller's requests a minute, and a place among those that run at once, as a completion
    takes.  A deletion takes none: whoever has used theirs up can still take a right away.  Operators,
    who have no plan, are not counted.  Raises ApiError 403, 429."""
    tempo = house.tempo
    if who.tenant is None:
        yield
        return
    standing = standing_of(house, who)  # suspended, unknown: refused alike everywhere
    if scope["method"] == "DELETE":
        yield
        return
    named = request_id(scope)
    scopes = scope_limits(standing, dimensions(who, "", None))
    allowed(await tempo.admit(TempoAsk(named, who.tenant, scopes, input_tokens=0, output_tokens=0)))
    try:
        yield
    finally:
        await tempo.release(named, 0)


def text_of(text: str, param: str) -> str:
    """What may be registered: text, of which NUL is no part."""
    if "\0" in text:
        raise invalid(f"{param}: contains NUL, which is no text.", param=param)
    return whole(text, param)


def name_of(text: str, param: str) -> str:
    """What is kept and shown in lists.  Raises ApiError 400."""
    if names_credential(text):
        raise invalid(f"{param}: this is a credential, which is kept nowhere.", param=param)
    if not (text.isprintable() and text == text.strip()):
        raise invalid(
            f"{param}: expected printable characters, and no space at either end.", param=param
        )
    return whole(text, param)


def view(call: Call, record: Record, about: About) -> dict[str, Any]:
    """What every view begins with."""
    rights = call.rights(record)
    return {
        "id": record.id,
        "object": call.kind.value,
        "created_at": record.created_at_s,
        "updated_at": record.changed_at_s,
        "version": record.content_version,
        "title": about.title if Right.TITLE in rights else None,
        "tokens": dict(record.tokens[record.content_version]),
    }


@dataclass(frozen=True, slots=True)
class Family:
    """What documents and templates answer alike."""

    view: Callable[[Call, Record, About], dict[str, Any]]
    read: RegisteredEvent
    deleted: RegisteredEvent

    async def every(self, call: Call) -> object:
        if call.kind is Kind.DOCUMENT and call.who.tenant is None:
            raise from_deny(Deny(Reason.NO_TENANT))
        page, more = call.page()
        abouts = await call.house.registered.abouts([(each, each.content_version) for each in page])
        data = [self.view(call, each, about) for each, about in zip(page, abouts, strict=True)]
        return {
            "object": "list",
            "data": data,
            "first_id": data[0]["id"] if data else None,
            "last_id": data[-1]["id"] if data else None,
            "has_more": more,
        }

    async def one(self, call: Call) -> object:
        record = call.found(Right.SEE)
        return self.view(call, record, await about_of(call, record))

    async def content(self, call: Call) -> object:
        record = call.found(Right.TEXT)
        try:
            (text,) = await call.house.registered.texts([(record, record.content_version)])
        except KeyError:
            raise call.missing() from None
        await call.record(self.read, record)
        return text

    async def remove(self, call: Call) -> object:
        gone, ending = await call.house.registered.remove([call.found(Right.DELETE)])
        if not gone:  # somebody else was first
            raise call.missing()
        await call.record(self.deleted, gone[0], ending)
        return {"id": gone[0].id, "object": call.kind.value, "deleted": True}


async def about_of(call: Call, record: Record) -> About:
    (about,) = await call.house.registered.abouts([(record, record.content_version)])
    return about
