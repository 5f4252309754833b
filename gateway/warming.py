"""What is registered is computed beforehand, so that who may read it never waits for it, and whether it is
warm says nothing of anybody's requests (P4).

Each document, and each template up to its first variable, once for every model of its tenant and for
every executor that comes: by its owner's right, in the class for background work, as a request like any
other, charged as cache write, and pinned within the tenant's part or not at all.  The two together
([template][document]) are not computed beforehand, nor is what is public, which has no tenant to pay.
Refuses to know: blocks, how much room there is.  Source: DESIGN.md, settled 3; SECURITY.md §2 (Timing).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from executor.contract import ModelCard, Sampling
from gateway import lifecycle
from gateway.api.chat import led_by
from gateway.caching import EndUser
from gateway.case import Case, Job
from gateway.errors import ApiError
from gateway.house import Deployment, House
from gateway.references import References, TemplateReference, resolve
from gateway.text.prompts import chat_prompt_async
from gateway.text.templates import ChatMessage
from policies.facts import Credential, CredentialKind, Principal
from policies.scope.prefix import registered_steps
from tenants.documents import Kind, Record

ROUTE = "registration"
TIER = "flex"
EVERY_S = 5.0

_Version = tuple[str, str, int, int, int]
"""Tenant, id, versions of text and list, and how often what is kept of the tenant was purged."""


@dataclass(slots=True)
class Warming:
    """`done`: what each executor, known by its card, has been asked for; `unkept` of that found no room,
    or no budget, and is asked for again when something else of its tenant has gone."""

    mint: Callable[[], str]
    _cards: dict[str, ModelCard] = field(default_factory=dict, repr=False)
    _done: dict[str, set[_Version]] = field(default_factory=dict, repr=False)
    _unkept: dict[str, set[_Version]] = field(default_factory=dict, repr=False)

    async def keep(self, house: House, *, every_s: float = EVERY_S) -> None:
        """Until cancelled, whatever is new or was lost with an executor.  A round that fails is logged."""
        while True:
            await asyncio.sleep(every_s)
            try:
                await self.round(house)
            except Exception as why:  # noqa: BLE001 — the next round tries again
                house.log("warming.failed", error=why)

    async def round(self, house: House) -> int:
        """One after the other; how many were computed."""
        count = 0
        named = {each.name: each for each in house.deployments.values()}
        for deployment in named.values():
            count += await self._of(house, deployment)
        return count

    async def _of(self, house: House, deployment: Deployment) -> int:
        card, name = deployment.executor.card, deployment.name
        if card is None or deployment.reading().template is None:
            return 0
        if self._cards.get(name) is not card:  # another process, which has kept nothing
            self._cards[name], self._done[name], self._unkept[name] = card, set(), set()
        records = [
            each
            for tenant in house.directory.tenants()
            for each in house.registered.documents.of(tenant)
        ]
        wanted = {
            (
                each.tenant or "",
                each.id,
                each.content_version,
                each.acl_version,
                house.purges.count(each.tenant),
            ): each
            for each in records
        }
        done, unkept = self._done[name], self._unkept[name]
        if (
            gone := done - wanted.keys()
        ):  # there may be room in its tenant's part now, in no other's
            tenants = {tenant for tenant, *_ in gone}
            again = {each for each in unkept if each[0] in tenants}
            done -= gone | again
            unkept -= gone | again
        count = 0
        for key, record in wanted.items():
            if key in done:
                continue
            try:
                count += await warm(house, deployment, record, self.mint())
            except ApiError as why:
                house.log("registered.unwarmed", model=name, reason=why.reason)
                if why.retryable:
                    continue
                unkept.add(key)
            done.add(key)
        return count


async def warm(house: House, deployment: Deployment, record: Record, request_id: str) -> bool:
    """Whether there was anything to compute.  Raises ApiError."""
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
        return False
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
    return True


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
