"""A tenant deleted, on the admin listener: what is kept of it taken out, destroyed, and its costs put under a pseudonym.

Asked twice.  The first time it is suspended, and what runs ends; then its rows can be taken out.  Asked again with the
SHA-256 of what was taken out, which must be what is there, it is destroyed.  Whatever fails can be asked again.
The audit log is not changed: it goes on naming the tenant, and its people by pseudonyms under a secret that is no more.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from gateway.api.administration import secrets
from gateway.api.administration.cache import Reason, require_record
from gateway.api.administration.call import Call, Streamed
from gateway.api.administration.operations import knowing, permit
from gateway.errors import ApiError, conflict, invalid
from gateway.unbroken import unbroken
from policies import access
from tenants.deleting import Deleting, Deletion, DeletionRefused
from tenants.directory import ChangeKind
from tenants.resealing import MonthDiffers

DRAIN_S: Final = 20.0
LOOK_S: Final = 0.25
Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class DeleteAsk(msgspec.Struct, forbid_unknown_fields=True):
    """`confirm`: the tenant's name once more.  `export_sha256`: of what `export` gave; without it nothing is destroyed
    yet.  `abandon`: it is not to be deleted after all, and stays suspended."""

    reason: Reason
    confirm: str
    export_sha256: Sha256 | None = None
    abandon: bool = False


async def export(call: Call) -> object:
    tenant = await _named(call)
    await call.record("tenant.exported", tenant=tenant, target=tenant, reason=None)
    chunks = Deleting(call.house.retention).export(tenant)
    return Streamed("application/x-ndjson", f"tenant-{tenant}.jsonl", chunks)


async def delete(call: Call) -> object:
    tenant = await _named(call)
    ask = call.decode(DeleteAsk)
    if ask.confirm != tenant:
        raise invalid("confirm: expected the tenant's name, as in the path.", param="confirm")
    require_record(call)
    if tenant in call.house.retention.deleting:
        raise conflict("deletion_running", "It is being deleted at this moment. Ask again.")
    call.house.retention.deleting.add(tenant)
    try:
        return await unbroken(_delete(call, tenant, ask))
    except (DeletionRefused, MonthDiffers) as why:
        raise _refused(why) from why
    finally:
        call.house.retention.deleting.discard(tenant)


async def _delete(call: Call, tenant: str, ask: DeleteAsk) -> object:
    deleting = Deleting(call.house.retention)
    if ask.abandon:
        found = await deleting.find(tenant)
        if found is None or not await deleting.abandon(found):
            raise conflict("too_late", "It is not being deleted, or is destroyed already.")
        await call.record("tenant.deletion_abandoned", tenant=tenant, target=tenant, reason=None)
        return {"tenant": tenant, "state": "suspended"}
    of = await _begun(call, deleting, tenant, ask.reason)
    if of.export_sha256 is None:
        if left := await _drained(deleting, tenant):
            raise DeletionRefused(
                "tenant_busy", f"{left} of its requests still run; they end, or their leases do", 5
            )
        if ask.export_sha256 is None:
            return {"tenant": tenant, "state": "exportable"}
        await deleting.accept(of, ask.export_sha256)
    shredded = await secrets.shredded(call, tenant, ask.reason)
    wiped = await deleting.finish(of)
    await call.house.directory.refresh()
    await call.house.registered.hear()
    await call.record("tenant.deleted", tenant=tenant, target=tenant, reason=None)
    return {
        "tenant": tenant,
        "state": "deleted",
        "pseudonym": of.pseudonym,
        "files_wiped": wiped,
        "shredded": shredded,
    }


async def _begun(call: Call, deleting: Deleting, tenant: str, reason: str) -> Deletion:
    """Recorded, suspended and noted, once."""
    if (found := await deleting.find(tenant)) is not None:
        return found
    house = call.house
    await call.record("tenant.deletion_begun", tenant=tenant, target=tenant, reason=None)
    directory, ending = house.directory, None
    if tenant in directory.tenants():
        await directory.suspend(tenant, actor=call.actor, reason=reason)
    await directory.note(
        ChangeKind.TENANT_DELETION_BEGUN,
        tenant=tenant, subject=tenant, actor=call.actor, reason=reason,
    )  # fmt: skip
    ending = await house.registered.suspended(tenant)
    await house.registered.finish(ending)
    return await deleting.begin(tenant, actor=call.actor, reason=reason)


async def _drained(deleting: Deleting, tenant: str) -> int:
    """How many still run after a while."""
    left = await deleting.held(tenant)
    for _ in range(int(DRAIN_S / LOOK_S)):
        if not left:
            break
        await asyncio.sleep(LOOK_S)
        left = await deleting.held(tenant)
    return left


async def _named(call: Call) -> str:
    """Configured, or configured no more and in the book."""
    permit(access.may_delete_tenant(call.who))
    assert call.name is not None
    tenant, house = call.name, call.house
    known = tenant in house.directory.tenants() or (
        not house.directory.is_deleted(tenant)
        and (
            await house.finance.knows(tenant)
            or await Deleting(house.retention).find(tenant) is not None
        )
    )
    if not known:
        knowing(call, tenant)
    return tenant


def _refused(why: DeletionRefused | MonthDiffers) -> ApiError:
    code = why.code if isinstance(why, DeletionRefused) else "period_differs"
    wait_s = why.retry_after_s if isinstance(why, DeletionRefused) else None
    headers = {} if wait_s is None else {"retry-after": str(wait_s)}
    return ApiError(409, "conflict", code, f"Not now: {why}.", headers=headers)
