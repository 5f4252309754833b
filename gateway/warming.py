"""What is registered is computed beforehand, so that who may read it never waits for it, and whether it is
warm says nothing of anybody's requests (P4).

Each document, and the newest version of each template up to its first variable, for every model of its
tenant and for every executor that comes: by its owner's right, in the class for background work, as a request like
any other, charged as cache write, and pinned within the tenant's part or not at all, until it goes.  Neither
[template][document] together nor what is public, which has no tenant to pay.

Theory of operation.  Every few seconds a look at what is wanted and is not there.  A tenant with such texts gets a
task that asks for them one by one, and waits for its turn before each: a few may be asked for at once, turns are
taken in the order of waiting, so a tenant with many texts delays nobody's first.  A refusal of the whole
tenant (its budget, its rate) sends its task away for a while that doubles.  What has no room is asked for again when
something of its tenant has gone, and its smallest by and by (room is free only when the last reader has gone).
Refuses to know: blocks, how much room there is.  Source: DESIGN.md, settled 3; SECURITY.md §2 (Timing).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from executor.contract import ModelCard, Sampling, allotted
from gateway import lifecycle
from gateway.api.chat import led_by
from gateway.caching import CacheTerms, EndUser
from gateway.case import Case, Job
from gateway.errors import ApiError
from gateway.house import Deployment, House
from gateway.purging import Target, purge
from gateway.references import References, TemplateReference, resolve
from gateway.text.prompts import chat_prompt_async
from gateway.text.templates import ChatMessage
from gateway.warmth import Fate, Held, Version, label_of, superseded, to_ask
from policies.facts import Credential, CredentialKind, Principal
from policies.scope.prefix import registered_steps
from security.keyring import KeyringError
from security.keyring_tenants import SecretGone
from tenants.documents import Kind, Record

ROUTE = "registration"
TIER = "flex"
EVERY_S = 5.0
AT_ONCE: Final = 8
"""So many texts of so many tenants are asked for at the same time of one executor."""
PAUSE_S: Final = (5, 600)
NO_ROOM: Final = "no_room"
_FIX = "Raise kv_memory or plans.*.cache.quota, or delete what is no longer needed."
_UNFIT = frozenset({400, 413})


_Part = tuple[str, str]
"""Of a model's executor, a tenant's."""


@dataclass(frozen=True, slots=True)
class _Pause:
    wait_s: int = 0
    until_ns: int = 0

    def longer(self, now_ns: int) -> _Pause:
        least_s, most_s = PAUSE_S
        wait_s = min(most_s, max(least_s, 2 * self.wait_s))
        return _Pause(wait_s, now_ns + wait_s * 1_000_000_000)


@dataclass(slots=True)
class Warming:
    mint: Callable[[], str]
    at_once: int = AT_ONCE
    _cards: dict[str, ModelCard] = field(default_factory=dict, repr=False)
    _terms: dict[str, Mapping[str, CacheTerms]] = field(default_factory=dict, repr=False)
    _turns: dict[str, asyncio.Semaphore] = field(default_factory=dict, repr=False)
    _pauses: dict[_Part, _Pause] = field(default_factory=dict, repr=False)
    _retries: dict[_Part, _Pause] = field(default_factory=dict, repr=False)
    _leaving: dict[_Part, set[bytes]] = field(default_factory=dict, repr=False)
    _tasks: dict[_Part, asyncio.Task[int]] = field(default_factory=dict, repr=False)

    async def keep(self, house: House, *, every_s: float = EVERY_S) -> None:
        """Until cancelled, whatever is new or was lost with an executor.  A look that fails is logged."""
        try:
            while True:
                await asyncio.sleep(every_s)
                try:
                    self.look(house)
                except Exception as why:  # noqa: BLE001 — the next look tries again
                    house.log("warming.failed", error=why)
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def round(self, house: House) -> int:
        """One look, and all that comes of it: how many were asked for and are pinned."""
        self.look(house)
        return sum(await asyncio.gather(*self._tasks.values()))

    def look(self, house: House) -> None:
        """Every tenant with something to do, and no task at it, gets one."""
        for key in [key for key, task in self._tasks.items() if task.done()]:
            if (why := self._tasks.pop(key).exception()) is not None:
                house.log("warming.failed", model=key[0], tenant=key[1], error=why)
        for deployment in {each.name: each for each in house.deployments.values()}.values():
            card = deployment.executor.card
            if card is None or deployment.reading().template is None:
                continue
            self._meet(house, deployment.name, card)
            known = house.directory.tenants()
            before = house.warmth.tenants(deployment.name)
            for tenant in (*known, *sorted(before - known.keys())):
                self._look_at(house, deployment, tenant, known=tenant in known)

    def _meet(self, house: House, model: str, card: ModelCard) -> None:
        """Another process has kept nothing, and other terms may have ended what was kept."""
        if self._cards.get(model) is not card:
            self._cards[model] = card
            self._turns.setdefault(model, asyncio.Semaphore(self.at_once))
            house.warmth.begin(model)
            self._pauses = {key: each for key, each in self._pauses.items() if key[0] != model}
            self._retries = {key: each for key, each in self._retries.items() if key[0] != model}
            self._leaving = {key: each for key, each in self._leaving.items() if key[0] != model}
        if self._terms.get(model) is not house.caches.terms:
            self._terms[model] = house.caches.terms
            for tenant in house.warmth.tenants(model):
                house.warmth.doubt(model, tenant)
            rooms = [room_tokens(house, model, each) for each in house.caches.terms]
            house.log(
                "registered.room",
                model=model,
                count=len(rooms),
                least_tokens=min(rooms, default=0),
            )

    def _look_at(self, house: House, deployment: Deployment, tenant: str, *, known: bool) -> None:
        model, key = deployment.name, (deployment.name, tenant)
        if key in self._tasks:
            return
        if not known or not house.caches.keeps(tenant):  # whose quota, and what was in it, is gone
            for id_ in house.warmth.of(model, tenant):
                house.warmth.drop(model, tenant, id_)
            return
        try:
            secret = house.secrets.current(tenant).version
        except (SecretGone, KeyringError):
            return
        purges = house.purges.count(tenant)
        records = {each.id: each for each in house.registered.documents.of(tenant)}
        wanted = {
            id_: Version(each.content_version, each.acl_version, secret, purges)
            for id_, each in records.items()
        }
        held = house.warmth.of(model, tenant)
        if over := superseded(held, wanted):
            for id_ in over:
                house.warmth.drop(model, tenant, id_)
            tags = {held[id_].tag for id_ in over if held[id_].fate is Fate.WARM}
            self._leaving.setdefault(key, set()).update(tags)
            house.warmth.doubt(model, tenant, Fate.NO_ROOM)  # there may be some now
        now_ns = house.clock.monotonic_ns()
        if now_ns < self._pauses.get(key, _Pause()).until_ns:
            return
        held = house.warmth.of(model, tenant)
        asked = to_ask(held, wanted)
        if not asked and now_ns >= self._retries.get(key, _Pause()).until_ns:
            without = [id_ for id_, each in held.items() if each.fate is Fate.NO_ROOM]
            asked = tuple(sorted(without, key=lambda id_: held[id_].tokens)[:1])
        if asked or self._leaving.get(key):
            listed = [(records[id_], wanted[id_]) for id_ in asked]
            task = self._of_tenant(house, deployment, tenant, listed)
            self._tasks[key] = asyncio.create_task(task, name=f"warming-{model}")

    async def _of_tenant(
        self,
        house: House,
        deployment: Deployment,
        tenant: str,
        listed: list[tuple[Record, Version]],
    ) -> int:
        """How many are pinned now that were not."""
        key, card = (deployment.name, tenant), self._cards[deployment.name]
        fates: list[Fate] = []
        await self._let_go(house, deployment, tenant)
        for record, version in listed:
            if house.registered.documents.find(record.id) is not record:
                continue  # changed or gone meanwhile: the next look sees what it is
            async with self._turns[deployment.name]:
                fates.append(await self._fate(house, deployment, record))
            if fates[-1] is Fate.WAITING or self._cards[deployment.name] is not card:
                break
            self._note(house, deployment, record, version, fates[-1])
        now_ns = house.clock.monotonic_ns()
        for fate, kept in ((Fate.WAITING, self._pauses), (Fate.NO_ROOM, self._retries)):
            before = kept.pop(key, _Pause())
            if fate in fates:
                kept[key] = before.longer(now_ns)
        return fates.count(Fate.WARM)

    async def _fate(self, house: House, deployment: Deployment, record: Record) -> Fate:
        try:
            return await warm(house, deployment, record, self.mint())
        except ApiError as why:
            if why.code == NO_ROOM:
                return Fate.NO_ROOM
            fields = {"model": deployment.name, "tenant": record.tenant, "reason": why.reason}
            house.log("registered.unwarmed", **fields)
            return Fate.UNFIT if why.status in _UNFIT else Fate.WAITING
        except Exception as why:  # noqa: BLE001 — a later look tries again; others go on
            house.log("warming.failed", model=deployment.name, tenant=record.tenant, error=why)
            return Fate.WAITING

    def _note(
        self, house: House, deployment: Deployment, record: Record, version: Version, fate: Fate
    ) -> None:
        model, tenant = deployment.name, record.tenant or ""
        before = house.warmth.of(model, tenant).get(record.id)
        label = label_of(record)
        tokens = record.tokens[record.content_version].get(model, 0)
        tag = house.caches.keys.scope(label).tag
        house.warmth.note(model, record.id, Held(tenant, version, label, tag, fate, tokens))
        was = None if before is None else before.fate
        if fate is Fate.WARM and was is Fate.NO_ROOM:  # so there is room for others too
            house.warmth.doubt(model, tenant, Fate.NO_ROOM)
        if fate is Fate.NO_ROOM and was is not Fate.NO_ROOM:
            house.log(
                "registered.no_room",
                model=model,
                tenant=tenant,
                text_tokens=tokens,
                room_tokens=room_tokens(house, model, tenant),
                fix=_FIX,
            )

    async def _let_go(self, house: House, deployment: Deployment, tenant: str) -> None:
        """What was pinned of versions that are over.  Whoever reads it by that version reads on."""
        key = (deployment.name, tenant)
        tags = frozenset(self._leaving.get(key, ()))
        if tags:
            target = Target(ROUTE, tenant, house.pseudonym(tenant), tuple(tags))
            heard = await purge((deployment.executor,), target, spare=True)
            if not heard.unacknowledged and key in self._leaving:
                self._leaving[key] -= tags


def room_tokens(house: House, model: str, tenant: str) -> int:
    """How much registered text a tenant's part of this model's memory can hold, by configuration alone."""
    card = house.deployments[model].executor.card
    if card is None:
        return 0
    found = allotted(house.caches.quotas(), card.pool_blocks).get(house.pseudonym(tenant))
    return 0 if found is None else found.pinned * card.block_tokens


async def warm(house: House, deployment: Deployment, record: Record, request_id: str) -> Fate:
    """WARM, or UNFIT where nothing of it can be shared.  Raises ApiError (`no_room` too), SecretGone."""
    assert record.tenant is not None
    who = owner_of(record)
    lifecycle.usable(house, who, deployment.name)
    reading = deployment.reading()
    resolved = await resolve(house.registered, who, await _named(house, record))
    assert resolved is not None
    wall_ms = house.clock.wall_ms()
    prompt = await chat_prompt_async(
        reading.vocabulary,
        reading.template,
        led_by(
            resolved.parts, [ChatMessage("user", "x")]
        ),  # cut off again: what it says is nothing
        now=datetime.fromtimestamp(wall_ms / 1000, UTC),
    )
    scoping = house.caches.scoping(
        record.tenant,
        reading.card,
        (prompt.supplied,),
        EndUser(),
        templated=True,
        expires_ns=resolved.expires_ns,
    )
    steps = registered_steps(prompt.supplied)
    if scoping is None or not steps:
        return Fate.UNFIT
    job = Job(
        route=ROUTE,
        model=deployment.name,
        prompts=(prompt.ids[: steps[-1].until],),
        samplings=(Sampling(),),
        max_output_tokens=1,
        service_class=lifecycle.class_for(house, who, TIER),
        reads=resolved.decision.label,
        scoping=scoping,
        warm=True,
    )
    case = Case(request_id, who, job, wall_ms, house.clock.monotonic_ns())
    async with lifecycle.serve(house, who, job, case) as answer:
        while await answer.next() is not None:
            pass
    return Fate.WARM


def owner_of(record: Record) -> Principal:
    """As whom it is computed and paid for: its owner's right is the one that always stands."""
    credential = Credential(CredentialKind.TOKEN, None)
    return Principal(record.tenant, None, record.owner, record.issuer, credential)


async def _named(house: House, record: Record) -> References:
    if record.kind is Kind.DOCUMENT:
        return References((record.id,))
    (about,) = await house.registered.abouts([(record, record.content_version)])
    values = dict.fromkeys(about.variables, "x")
    return References((), TemplateReference(record.id, record.content_version, values))
