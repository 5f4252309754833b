"""POST /v1/responses: how items become a prompt, in which words it is answered, and what is kept of it.

A request that stores nothing and goes on from nothing touches no table.  Else what came before is read first, by the
rights of this moment; then the response has its place, durably, before anything is done for it; and it is kept before
its last words are sent, so that nobody is told of a response that is not there.  Where keeping it fails after all, the
answer says `store: false`, since it was paid for.
Refuses to know: SQL, seals (`stored`), when an event is due.  Source: API.md §1; DESIGN.md, settled 6 and 7.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec
from starlette.types import Send

from gateway.api.answers import Answered, Head
from gateway.api.chat import templated
from gateway.api.endpoint import Entry
from gateway.api.generate import Asked, Family, Resolve, Speaking
from gateway.api.responses.items import OUR_PREFIX, Item, Reference, response_of, told
from gateway.api.responses.object import (
    Became,
    Status,
    encode,
    response_answer,
    response_fields,
)
from gateway.api.responses.schema import Asking, parse_responses
from gateway.api.responses.stream import Last, ResponseStream, fault
from gateway.errors import ApiError, conflict
from gateway.house import House, Reading
from gateway.kept import Basis
from gateway.lifecycle import allowed
from gateway.middleware.wire import Message, with_headers
from gateway.provenance import Resolved
from gateway.registered_records import write
from gateway.stored import Content, Found, absent
from gateway.tape import Tape
from gateway.unbroken import unbroken
from policies.facts import Principal
from policies.scope.decision import renewed
from policies.scope.labels import Label, join_all
from security.audit import AuditEvent
from tenants.responses import Begun
from tenants.responses_rows import OPEN

READ, DELETED, CANCELLED = "response.read", "response.deleted", "response.cancelled"
"""Kinds of records."""
REFERENCES_MAX = 32
"""Stored responses whose items one request may name."""
_items = msgspec.json.Decoder(tuple[Item, ...])


class _Output(msgspec.Struct):
    output: tuple[Item, ...]


_output = msgspec.json.Decoder(_Output)


def items_of(found: Found) -> tuple[Item, ...]:
    """What was put into a stored response."""
    return _items.decode(found.content.items)


def output_of(found: Found) -> tuple[Item, ...]:
    return _output.decode(found.content.response).output


async def record(house: House, entry: Entry, kind: str, id_: str) -> None:
    """Before anybody hears of it.  Raises ApiError 503."""
    who = entry.who
    event = AuditEvent(
        kind=kind,
        request_id=entry.arrived.request_id,
        tenant=who.tenant,
        subject=house.names.person(who.tenant, who.issuer, who.user),
        credential_id=who.credential.id,
        target=id_,
        outcome="done",
    )
    await write(house, [event])


def may_read(house: House, who: Principal, reads: Label | None) -> None:
    """Of what was answered from registered texts: may it be read now?  Raises ApiError 404 where one of them may not,
    409 where one has changed."""
    permission = house.registered.permission
    if reads is None or permission.to_go_on(who, reads):
        return
    allowed(permission.to_read_now(who, reads))
    raise conflict(
        "response_outdated",
        "A registered text that this response was made from has changed since, so it is told no more. "
        "Ask again from the present text.",
    )


@dataclass(slots=True)
class Making:
    """One response as it is made.  `tape`: that of the background, where it is made there.  `told`: something of it was
    said.  `last`: what it became; `said`: that was said; `kept`: whether it is stored, once that was tried."""

    house: House
    entry: Entry
    to: Send
    tape: Tape | None = None
    asking: Asking | None = None
    items: tuple[Item, ...] = ()
    begun: bool = False
    stream: ResponseStream | None = None
    told: bool = False
    last: Last | None = None
    said: bool = False
    kept: bool | None = None
    progressed: bool = False
    before: list[Label] = field(default_factory=list)

    @property
    def background(self) -> bool:
        return self.tape is not None

    @property
    def streamed(self) -> bool:
        """Its caller asked for events."""
        return self.asking is not None and self.asking.controls.stream

    def now(self) -> bytes | None:
        """The response as it is by now; None before anything is told of it."""
        if self.stream is None:
            return None
        return encode(self.stream.now() if self.last is None else self.last.fields)

    @property
    def id(self) -> str:
        return OUR_PREFIX + self.entry.arrived.request_id.removeprefix("req_")

    @property
    def family(self) -> Family:
        return replace(RESPONSES, ask=self.ask, shape=self.shape, write=self.write)

    async def ask(self, body: object, reading: Reading, wall_ms: int, resolve: Resolve) -> Asked:
        asking = self.asking = parse_responses(body, vocab_size=reading.card.vocab_size)
        conversation = await self._before(asking.previous)
        self.items = await self._named(asking)
        asked = await asked_of(asking, (*conversation, *self.items), reading, wall_ms, resolve)
        asked = replace(asked, resolved=self._covered(asked.resolved), repeated=asking.repeated)
        if asking.store:
            await self._begin(asking, asked)
        if self.background:  # as a stream that begins with its place in the queue, whoever reads it
            asked = replace(asked, controls=replace(asked.controls, stream=True, x_status=True))
        return asked

    def shape(self, speaking: Speaking) -> ResponseStream:
        assert self.asking is not None
        x_status = self.asking.controls.x_status
        self.stream = ResponseStream(speaking, self._ended, x_status=x_status)
        return self.stream

    def write(self, asked: Asked, answered: Answered) -> bytes:
        self._ended(Last(response_answer(asked.repeated, answered), encode))
        assert self.last is not None
        return encode(self.last.fields)

    def _ended(self, last: Last) -> None:
        self.last = last

    async def send(self, message: Message) -> None:
        """Kept before the words that say so."""
        stream = self.stream
        begun = stream is not None and stream.state is Status.IN_PROGRESS
        if self.background and begun and not self.progressed:
            self.progressed = True
            await self.house.stored.progress(self.id)
        if self.begun and self.last is not None:
            if self.kept is None:
                self.kept = await unbroken(self.keep(self.last))
            if not self.kept:
                message = _unkept(message, self.last)
        self.told = True
        self.said = self.said or (self.last is not None and bool(message.get("body")))
        await self.to(message)

    async def end(self, why: ApiError | None) -> None:
        """Of a stream that was cut off: its last words, where it has not said them.  `why` None: it was cancelled."""
        if self.stream is None or not self.told:
            return
        words = b""
        if self.last is None:
            words = self.stream.cancelled() if why is None else self.stream.error(why)
        elif not self.said:  # it was cut off as it was being kept
            words = self.last.words(self.last.fields)
        await self.send({"type": "http.response.body", "body": words, "more_body": False})

    async def keep(self, last: Last) -> bool:
        """Of what was made in the background as a stream, its events too."""
        basis, fields, events = self.entry.doing.basis, last.fields, None
        if self.tape is not None and self.streamed:
            so_far = self.tape.so_far()
            events = None if so_far is None else so_far + last.words(fields)
        content = self._content(encode(fields), basis.reads, events)
        stored, who = self.house.stored, self.entry.who
        return await stored.keep(who, self.id, str(fields["status"]), content)

    def _content(self, response: bytes, reads: Label | None, events: bytes | None) -> Content:
        assert self.asking is not None
        basis = Basis(model=self.asking.controls.model, reads=reads)
        return Content(encode(told(self.items, self.id)), response, basis, events)

    async def over(self) -> None:
        """However it ended.  Where nothing was kept, nothing is there."""
        if self.begun and not self.kept:
            await unbroken(self.house.stored.abandon(self.id))

    # How.

    async def _before(self, previous: str | None) -> list[Item]:
        if previous is None:
            return []
        house, who, items = self.house, self.entry.who, list[Item]()
        try:
            chain, whole = await house.stored.chain(who, previous)
            if not whole:
                raise absent()
            for found in chain:
                self._goes_by(found)
                items += (*items_of(found), *output_of(found))
        except ApiError as why:
            why.param = "previous_response_id"
            raise
        await record(house, self.entry, READ, previous)
        return items

    async def _named(self, asking: Asking) -> tuple[Item, ...]:
        """What was asked, with the items in it that are of stored responses."""
        there: dict[str, Item] = {}
        looked: set[str] = set()
        items: list[Item] = []
        for index, item in enumerate(asking.items):
            if not isinstance(item, Reference):
                items.append(item)
                continue
            of = response_of(item.id)
            if of is not None and of not in looked and len(looked) < REFERENCES_MAX:
                looked.add(of)
                if (found := await self.house.stored.find(self.entry.who, of)) is not None:
                    self._goes_by(found)
                    await record(self.house, self.entry, READ, of)
                    there |= {each.id: each for each in (*items_of(found), *output_of(found))}
            if item.id not in there:
                why = absent()
                why.param = f"input[{index}].id"
                raise why
            items.append(there[item.id])
        return tuple(items)

    def _goes_by(self, found: Found) -> None:
        """Raises ApiError 404, 409."""
        if found.row.status in OPEN and not found.row.lapsed:
            raise conflict("response_in_progress", "That response is not finished yet.")
        reads = found.content.basis.reads
        may_read(self.house, self.entry.who, reads)
        if (
            reads is not None
        ):  # the lists of its readers may have changed, and have the caller on them still
            snapshot = self.house.registered.documents.snapshot()
            self.before.append(renewed(reads, snapshot))

    def _covered(self, resolved: Resolved | None) -> Resolved | None:
        """What was answered before from registered texts is as much of them as the texts are: who loses the right
        to one loses this answer with it."""
        if not self.before:
            return resolved
        labels = [*self.before, *([] if resolved is None else [resolved.decision.label])]
        permission = self.house.registered.permission
        decision = allowed(permission.to_read(self.entry.who, join_all(labels)))
        if resolved is None:
            return Resolved((), decision)
        return replace(resolved, decision=decision)

    async def _begin(self, asking: Asking, asked: Asked) -> None:
        model = self.house.deployments[asking.controls.model].name
        what = Begun(self.id, model, background=self.background, previous=asking.previous)
        content = None
        if self.background:  # which is asked for from now on, at whichever gateway
            head = Head(self.id, self.entry.arrived.wall_ms // 1000, model)
            queued = response_fields(head, asked.repeated, Became(Status.QUEUED))
            reads = None if asked.resolved is None else asked.resolved.decision.label
            content = self._content(encode(queued), reads, b"" if self.streamed else None)
        await unbroken(self._put(what, content))

    async def _put(self, what: Begun, content: Content | None) -> None:
        """To its end: whoever is cut off meanwhile knows whether it is there, and takes it away."""
        await self.house.stored.begin(self.entry.who, what, content, len(self.entry.body))
        self.begun = True


def _unkept(message: Message, last: Last) -> Message:
    """The same answer, which says that it was not kept."""
    words = last.words({**last.fields, "store": False})
    if message["type"] != "http.response.start":
        return {**message, "body": words} if message.get("body") else message
    named = dict(message["headers"])
    if b"content-length" not in named:
        return message
    return with_headers(message, ((b"content-length", b"%d" % len(words)),))


async def asked_of(
    asking: Asking, items: Sequence[Item], reading: Reading, wall_ms: int, resolve: Resolve
) -> Asked:
    """`items`: of the whole conversation.  Raises ApiError 400, and what `resolve` raises, naming fields as they are
    called here."""
    job = asking.job(items)
    try:
        return await templated(job, reading, wall_ms, resolve)
    except ApiError as why:
        if why.param is not None and why.param.startswith("messages"):
            why.param = "input"
        raise


async def _ask(body: object, reading: Reading, wall_ms: int, resolve: Resolve) -> Asked:
    raise AssertionError("each response is asked by its own Making")


def _write(asked: Asked, answered: Answered) -> bytes:
    return encode(response_answer(asked.repeated, answered))


RESPONSES = Family(
    route="/v1/responses",
    id_prefix=OUR_PREFIX,
    prompt_param="input",
    ask=_ask,
    shape=ResponseStream,
    write=_write,
    fault=fault,
)
