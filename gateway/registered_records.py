"""The audit records of registered texts: what was done to which, and that what was taken away is gone.

What takes a right away is recorded as soon as it is durable, `pending` while executors are told, and again
(`revocation.confirmed`, the same target) when all of them have confirmed.  A pending record without that
word is answered by the next `gateway.started`: what was kept has gone with the process.

Refuses to know: what a text says, how a right ends.  Source: SECURITY.md P6, P11, §2 (Audit-safe metadata).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from msgspec.structs import replace

from gateway.house import House
from gateway.refusals import audit_down
from gateway.registered import unacknowledged
from gateway.revocations import Ending
from policies.facts import Principal
from security.audit import AuditEvent, AuditUnavailable, RegisteredEvent
from tenants.documents import Record


def event_of(
    house: House,
    event: RegisteredEvent,
    target: Record,
    who: Principal | None = None,
    request_id: str | None = None,
) -> AuditEvent:
    """What is public is named, what is a tenant's has a pseudonym.  `who` None: the house itself."""
    named = target.id
    if target.tenant is not None:
        named = house.names.document(target.tenant, target.id) or "-"
    return AuditEvent(
        kind=event.value,
        request_id=request_id,
        tenant=target.tenant,
        subject=None if who is None else house.names.person(who.tenant, who.issuer, who.user),
        credential_id=None if who is None else who.credential.id,
        target=named,
        outcome="done",
    )


async def write(house: House, events: Iterable[AuditEvent]) -> None:
    """All are tried, whatever becomes of one.  Raises ApiError 503."""
    heard = await asyncio.gather(*map(house.audit.append, events), return_exceptions=True)
    for why in heard:
        if isinstance(why, AuditUnavailable):
            raise audit_down() from why
        if isinstance(why, BaseException):
            raise why


async def settled(house: House, event: AuditEvent, ending: Ending | None) -> None:
    """`event` is durable in SQL, and `ending` what it took away.  Raises ApiError 503 where that is not
    confirmed, which `Registered.sweep` asks for again."""
    if ending is None:
        await write(house, [event])
        return
    finishing = asyncio.ensure_future(house.registered.finish(ending))
    try:
        await write(house, [replace(event, outcome="pending")])
    finally:
        confirmed = await finishing
    if not confirmed:
        raise unacknowledged()
    await write(house, [replace(event, kind=RegisteredEvent.REVOCATION_CONFIRMED.value)])


def confirmed(house: House, endings: Iterable[Ending]) -> list[AuditEvent]:
    """Of what was asked for again."""
    kind = RegisteredEvent.REVOCATION_CONFIRMED
    found = []
    for ending in endings:
        found += [event_of(house, kind, each) for each in ending.records]
        if ending.tenant is not None:
            found.append(
                AuditEvent(
                    kind=kind.value, tenant=ending.tenant, target=ending.tenant, outcome="done"
                )
            )
    return found


def require_log(house: House) -> None:
    """Before anything is done that could not be recorded.  Raises ApiError 503."""
    try:
        house.audit.require_healthy()
    except AuditUnavailable as down:
        raise audit_down() from down
