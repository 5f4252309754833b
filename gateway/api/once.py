"""In front of every endpoint that changes or computes something: who asks, the whole body, and once by one key.

Without an `Idempotency-Key` a request goes straight through.  By one, it is work of its own (`runs`), and whoever
comes by the same key with the same request reads along where it is a stream that runs here, is told to come again
where it runs otherwise, and is told the kept answer when it is over, as far as they may hear it now.  The table of
what is heard and kept is `policies.idempotency`; in words, in gateway/README.md.

Looking for an answer draws from the rate of requests like asking for one, before the database hears of it: a claim
is a durable write, and whoever is over their rate must not make others wait for it.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import Final

from starlette.types import Receive, Scope, Send

from gateway.api.doorway import Doorway
from gateway.api.endpoint import Arrival, Endpoint, Entry
from gateway.errors import ApiError
from gateway.guard import read_body
from gateway.house import House
from gateway.idempotency import (
    Asked,
    canonical,
    client_key,
    gone,
    keys_down,
    refused,
    reused,
    running,
)
from gateway.identify import identify, route_name
from gateway.kept import Basis, Kept
from gateway.lifecycle import allowed, expires_in_ms, standing_of
from gateway.live import LiveRequest
from gateway.refusals import audit_down, told
from gateway.registered import shredded
from gateway.runs import Doing, Run
from gateway.streaming import until_disconnect
from gateway.tape import Tape
from gateway.unbroken import unbroken
from policies.facts import Limits
from policies.idempotency import Verdict
from security.audit import AuditEvent, AuditUnavailable
from tenants.idempotency import Claim, Found
from tenants.scopes import dimensions, scope_limits
from tenants.store import StoreUnavailable
from tenants.tempo import TempoAsk

REPLAYED: Final = (b"idempotent-replayed", b"true")
RETRIES: Final = {b"%d" % times: str(times) for times in range(1, 11)}
"""What OpenAI's and Anthropic's clients say of how often they have asked before.  A client's word: counted, never
believed, and a label of ten values."""
PART_BYTES: Final = 64 * 1024
"""Of a kept stream, sent at once."""


@dataclass(frozen=True, slots=True)
class Once:
    house: House
    endpoint: Endpoint
    doorway: Doorway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrived = Arrival.of(self.house.clock, scope)
        self.endpoint.open()
        who = await identify(self.house, scope)
        self._count_retry(scope)
        entry = Entry(scope, arrived, who)
        with ExitStack() as place:
            async with self._told(entry):
                key = client_key(scope["headers"])
                place.enter_context(self.doorway.inside(who.tenant))
                with self.doorway.held(who.tenant):
                    body = await read_body(receive, limit=self.endpoint.body_bytes_max)
            entry = replace(entry, body=body, key=key)
            if not self.endpoint.metered:  # what it waits for is not the loop
                self.house.door.gate.leave(entry.arrived.request_id)
            if key is None:
                await self.endpoint.serve(entry, receive, send)
            else:
                await until_disconnect(receive, self._once(entry, send))

    def _count_retry(self, scope: Scope) -> None:
        for name, value in scope["headers"]:
            if name == b"x-stainless-retry-count" and (said := RETRIES.get(value)) is not None:
                self.house.metrics.retried.labels(said).inc()

    def _told(self, entry: Entry) -> AbstractAsyncContextManager[None]:
        return told(self.house, entry.who, entry.arrived.request_id, route_name(entry.scope))

    async def _once(self, entry: Entry, send: Send) -> None:
        async with self._told(entry):
            asked = await self._asked(entry)
            run, found = await self._found(entry, asked)
            self.house.metrics.keyed.labels(self._heard(entry, run, found)).inc()
            if found.verdict is Verdict.REPLAY:
                await self._replay(entry, asked, found, send)
                return
            if found.verdict is not Verdict.RUN:
                raise refused(found)
            if run.claim.request_id != entry.arrived.request_id:
                await self._read_along(entry, run, send)
                return
        with run.tape.read() as reader:
            await run.tape.play(reader, send)

    def _heard(self, entry: Entry, run: Run, found: Found) -> Verdict:
        first = found.verdict is Verdict.RUN and run.claim.request_id == entry.arrived.request_id
        return Verdict.RUNNING if found.verdict is Verdict.RUN and not first else found.verdict

    async def _asked(self, entry: Entry) -> Asked:
        house, who, scope = self.house, entry.who, entry.scope
        assert entry.key is not None
        if who.tenant is not None and house.secrets.is_shredded(who.tenant):
            raise shredded()  # no answer could be kept, so by a key nothing is done
        digest = house.digests.key(who, f"{scope['method']} {route_name(scope)}", entry.key)
        body, stream = await canonical(entry.body)
        target = scope["path"].encode() + b"?" + scope.get("query_string", b"")
        claim = Claim(
            digest=digest,
            body=house.digests.body(digest, target, body),
            tenant=who.tenant or "",
            request_id=entry.arrived.request_id,
            metered=self.endpoint.metered,
        )
        return Asked(claim, stream and self.endpoint.metered)

    async def _found(self, entry: Entry, asked: Asked) -> tuple[Run, Found]:
        """Work that runs here by this key, begun now where there is none; and what its claim says."""
        runs, claim, tempo = self.house.runs, asked.claim, self.house.tempo
        drawn = None
        if self.endpoint.rated and entry.who.tenant is not None:
            drawn = f"{claim.request_id}/key"
            allowed(await tempo.admit(self._draw(entry, drawn)))
        try:
            try:
                run = await self._run_of(claim)
                if run is None:
                    do = _Do(self.house, self.endpoint, entry, drawn)
                    run = runs.begin(claim, do, stream=asked.stream)
                return run, await run.heard()
            except StoreUnavailable as down:
                raise keys_down() from down
        finally:
            if drawn is not None:  # what has begun has given it back
                await unbroken(tempo.release(drawn, 0))

    async def _run_of(self, claim: Claim) -> Run | None:
        """What asks the same by this key here.  That something else is being asked by it is no answer, until
        that has heard whether the key is its own."""
        while (run := self.house.runs.find(claim.digest)) is not None:
            if run.claim.body == claim.body:
                return run
            if (await run.heard()).verdict is not Verdict.REUSED:
                raise reused()
            await run.over()
        return None

    def _draw(self, entry: Entry, drawn: str) -> TempoAsk:
        """A request, and no place among those that run: the one that is looked for has it."""
        standing = standing_of(self.house, entry.who)
        scopes = scope_limits(standing, dimensions(entry.who, "", None))
        rates = tuple(replace(each, limits=Limits(rpm=each.limits.rpm)) for each in scopes)
        return TempoAsk(drawn, standing.tenant, rates, input_tokens=0, output_tokens=0)

    async def _read_along(self, entry: Entry, run: Run, send: Send) -> None:
        """As a request of its own, which its own credential's end ends."""
        tape = run.tape
        if not (run.stream and tape.admits):
            tape.touch()
            raise running()
        self.house.door.gate.leave(entry.arrived.request_id)
        with tape.read() as reader:
            await tape.begun()
            self._check(entry, run.doing.basis, run.claim.request_id)
            live = LiveRequest(
                entry.arrived.request_id,
                entry.who,
                lambda why: tape.interrupt(reader, why),
                reads=run.doing.basis.reads,
                listens=True,
            )
            expiry_ms = expires_in_ms(self.house, entry.who)
            with self.house.live.entered(live, expires_in_ms=expiry_ms):
                await self._record(entry, run.claim.request_id, "attached")
                listener = _Listener(send)
                try:
                    await tape.play(reader, listener.send, (REPLAYED,))
                except ApiError as why:
                    if not listener.started:
                        raise
                    assert run.doing.fault is not None  # it is a stream, and has begun
                    await listener.end(run.doing.fault(why))

    async def _replay(self, entry: Entry, asked: Asked, found: Found, send: Send) -> None:
        assert found.sealed is not None
        digest = asked.claim.digest
        kept = self.house.runs.read(entry.who.tenant, digest, found.sealed)
        if kept is None:
            raise gone(found)
        self._check(entry, kept.basis, found.request_id)
        await self._record(entry, found.request_id, "replayed")
        await _play(kept, send)

    def _check(self, entry: Entry, basis: Basis, of: str) -> None:
        """Raises what a new request would meet; ApiError 409 where the text that it was answered from has changed."""
        self.endpoint.check(entry, basis)
        permission = self.house.registered.permission
        if basis.reads is not None and not permission.to_go_on(entry.who, basis.reads):
            allowed(permission.to_read_now(entry.who, basis.reads))
            raise gone(Found(Verdict.GONE, of, why="changed"))

    async def _record(self, entry: Entry, of: str, outcome: str) -> None:
        """Before anything of it is heard.  `of`: the request whose answer it is."""
        who, house = entry.who, self.house
        event = AuditEvent(
            kind="request.replayed",
            request_id=entry.arrived.request_id,
            tenant=who.tenant,
            subject=house.names.person(who.tenant, who.issuer, who.user),
            credential_id=who.credential.id,
            route=route_name(entry.scope),
            outcome=outcome,
            target=of,
        )
        try:
            await house.audit.append(event)
        except AuditUnavailable as down:
            raise audit_down() from down


@dataclass(frozen=True, slots=True)
class _Do:
    """`drawn`: what was drawn to look for an answer; whoever begins draws for that."""

    house: House
    endpoint: Endpoint
    entry: Entry
    drawn: str | None

    async def __call__(self, tape: Tape, doing: Doing) -> None:
        if self.drawn is not None:
            await self.house.tempo.refund(self.drawn)
        doing.basis.roles = tuple(sorted(role.value for role in self.entry.who.roles))
        await self.endpoint.serve(replace(self.entry, doing=doing), tape.receive, tape.send)


@dataclass(slots=True)
class _Listener:
    """Where one reader's answer goes, and whether it has begun."""

    to: Send
    started: bool = False

    async def send(self, message: object) -> None:
        self.started = True
        await self.to(message)  # type: ignore[arg-type]

    async def end(self, data: bytes) -> None:
        await self.to({"type": "http.response.body", "body": data, "more_body": False})


async def _play(kept: Kept, send: Send) -> None:
    headers = [*kept.headers, REPLAYED]
    await send({"type": "http.response.start", "status": kept.status, "headers": headers})
    for start in range(0, len(kept.body), PART_BYTES):
        part = kept.body[start : start + PART_BYTES]
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
