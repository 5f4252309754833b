"""Every refusal has a record, also one that came before the line: bad shape, foreign object, no right.

The four kinds are SECURITY.md §4's; `identify` writes `auth.denied`.  Holds our words alone: never a
value that was sent.  Refuses to know: what is refused, and why.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.errors import ApiError, unavailable
from gateway.house import House
from gateway.unbroken import unbroken
from policies.facts import Principal
from security.audit import AuditEvent, AuditUnavailable


@asynccontextmanager
async def told(house: House, who: Principal, request_id: str, route: str) -> AsyncIterator[None]:
    """Record the ApiError that leaves the block, before anybody hears of it."""
    try:
        yield
    except ApiError as why:
        house.metrics.refused.labels(why.reason).inc()
        event = AuditEvent(
            kind=why.record_kind,
            request_id=request_id,
            tenant=who.tenant,
            subject=house.names.person(who.tenant, who.issuer, who.user),
            credential_id=who.credential.id,
            route=route,
            outcome="refused",
            reason=why.reason,
            status=why.status,
        )
        try:
            await unbroken(house.audit.append(event))
        except AuditUnavailable as down:
            raise audit_down() from down
        raise


def audit_down() -> ApiError:
    return unavailable(
        "The audit log cannot be written, so nothing is served. Try again.",
        code="audit_unavailable",
        retry_after_s=5,
    )
