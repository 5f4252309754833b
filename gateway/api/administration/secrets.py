"""Tenants' secrets and the roots that wrap them, on the admin listener: shown by number, rotated, destroyed.

No secret and no key goes out, only versions, the ids of roots, and how much hangs on each.  All of it is for
operators (`policies.access.may_keep_secrets`); each change is noted with its reason, and recorded.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.api.administration.cache import Reason, executors_of, recorded, require_record
from gateway.api.administration.call import Call
from gateway.api.administration.operations import Id, knowing, permit
from gateway.errors import ApiError, conflict, invalid, not_found, unavailable
from gateway.purging import Heard, Target, purge
from gateway.rotation import sealed_by
from gateway.unbroken import unbroken
from policies.access import may_keep_secrets
from security.audit_proof import encode_proof
from security.keyring_tenants import SecretGone
from security.purge import PurgeReason
from tenants.directory import ChangeKind


class Reasoned(msgspec.Struct, forbid_unknown_fields=True):
    reason: Reason


class RetireAsk(msgspec.Struct, forbid_unknown_fields=True):
    version: Annotated[int, Meta(ge=1, le=2**31)]
    reason: Reason


class ShredAsk(msgspec.Struct, forbid_unknown_fields=True):
    """`confirm`: the tenant's name once more."""

    reason: Reason
    confirm: str


class ReleaseAsk(msgspec.Struct, forbid_unknown_fields=True):
    root: Id
    reason: Reason


async def secret(call: Call) -> object:
    return await _view(call, _tenant(call))


async def _view(call: Call, tenant: str) -> dict[str, object]:
    """`texts`: sealed under this version.  `to_reseal`: those that are not yet under the current one."""
    house = call.house
    held = house.secrets.held(tenant)
    texts = await sealed_by(house.registered.documents, house.stored, tenant)
    current = max(held, default=None)
    return {
        "tenant": tenant,
        "current": current,
        "versions": [
            {"version": version, "root": root, "texts": texts[version]}
            for version, root in sorted(held.items())
        ],
        "to_reseal": sum(count for version, count in texts.items() if version != current),
    }


async def rotate(call: Call) -> object:
    """Answers when the new version is in force; texts are sealed anew behind it."""
    tenant, ask = _tenant(call), call.decode(Reasoned)
    require_record(call)
    return await unbroken(_rotate(call, tenant, ask.reason))


async def _rotate(call: Call, tenant: str, reason: str) -> object:
    house = call.house
    await _note(call, ChangeKind.SECRET_ROTATED, tenant, tenant, reason)
    before = range(1, house.secrets.newest(tenant) + 1)
    made = await house.secrets.rotate(tenant)
    house.rotations.rotated(tenant, house.clock.monotonic_ns())
    # Nobody finds it any more; it would take room until its time is over.
    tags = tuple(house.caches.keys.of_secret(tenant, each) for each in before)
    if tags:
        await purge(
            executors_of(house), Target(tenant, tenant, house.pseudonym(tenant), tags), spare=True
        )
    house.purges.note(tenant)
    await call.record("secret.rotated", tenant=tenant, target=str(made.version), reason=None)
    return await _view(call, tenant)


async def retire(call: Call) -> object:
    """Destroys an old version, when nothing needs it."""
    tenant, ask = _tenant(call), call.decode(RetireAsk)
    house, version = call.house, ask.version
    held = house.secrets.held(tenant)
    if version not in held:
        raise not_found(f"The tenant has no secret of version {version}.")
    if version == max(held):
        raise conflict("current", f"Version {version} is the current one. Rotate first.")
    if house.rotations.may_straggle(tenant, house.clock.monotonic_ns()):
        raise conflict(
            "rotated_just_now",
            "The secret was rotated less than a minute ago, and a text may still be on its way under the "
            "old one. Try again in a minute.",
        )
    if needed := (await sealed_by(house.registered.documents, house.stored, tenant))[version]:
        raise conflict(
            "still_sealed",
            f"{needed} texts are still sealed under version {version}; they are being sealed anew. Try again "
            "later. What never ends there is damaged: delete it.",
        )
    require_record(call)
    await _note(call, ChangeKind.SECRET_RETIRED, tenant, str(version), ask.reason)
    try:
        await house.runs.keys.drop(tenant, version, "retired")
        await unbroken(house.secrets.retire(tenant, version))
    except SecretGone:
        raise not_found(f"The tenant has no secret of version {version}.") from None
    await call.record("secret.retired", tenant=tenant, target=str(version), reason=None)
    return await _view(call, tenant)


async def shred(call: Call) -> object:
    """Destroys all versions and all texts under them.  Can be asked again after a failure."""
    tenant, ask = _tenant(call), call.decode(ShredAsk)
    if ask.confirm != tenant:
        raise invalid("confirm: expected the tenant's name, as in the path.", param="confirm")
    require_record(call)
    return await unbroken(shredded(call, tenant, ask.reason))


async def shredded(call: Call, tenant: str, reason: str) -> dict[str, object]:
    """What is kept goes first, so that it can be counted, and again at the end: what came meanwhile."""
    house = call.house
    await _note(call, ChangeKind.TENANT_SHREDDED, tenant, tenant, reason)
    versions = len(house.secrets.held(tenant))
    everything = Target(tenant, tenant, house.pseudonym(tenant))
    first = await purge(executors_of(house), everything)
    texts, owed = 0, None
    try:
        texts = await house.registered.shred(tenant)
        await house.runs.keys.forget(tenant)
        await house.stored.table.forget(tenant)
    except ApiError as why:  # the secret and the texts are gone, an executor has not acknowledged
        owed = why
    await call.record("tenant.shredded", tenant=tenant, target=tenant, reason=None)
    last = await purge(executors_of(house), everything)
    house.purges.note(tenant)
    heard = Heard(
        first.blocks + last.blocks,
        first.blocks_read_zero + last.blocks_read_zero,
        first.ended + last.ended,
        last.executors,
        last.unacknowledged,
    )
    purged = heard.purged(tenant, PurgeReason.SECRET_DESTROYED, key_destroyed=True)
    proof = await recorded(call, purged, tenant)
    if owed is not None or heard.unacknowledged:
        raise unavailable(
            "The secret is destroyed and its texts are unreadable, but an executor did not acknowledge that "
            f"nothing is kept of them. Record {proof.index} of the audit log says so. Ask again.",
            code="purge_unacknowledged",
            retry_after_s=5,
        ) from owed
    return {
        "tenant": tenant,
        "versions": versions,
        "texts": texts,
        "blocks": heard.blocks,
        "blocks_read_zero": heard.blocks_read_zero,
        "requests_ended": heard.ended,
        "complete": purged.is_complete,
        "record": proof.index,
        "proof": msgspec.json.decode(encode_proof(proof)),
    }


async def roots(call: Call) -> object:
    permit(may_keep_secrets(call.who))
    return _roots(call)


def _roots(call: Call) -> dict[str, object]:
    """As this process has them: a root that was added to the file wraps from the next start on."""
    secrets = call.house.secrets
    wrapped = secrets.wrapped_by()
    return {
        "wraps": secrets.known_roots[-1],
        "roots": [{"root": each, "secrets": wrapped[each]} for each in secrets.known_roots],
    }


async def rewrap(call: Call) -> object:
    """All secrets by the newest root, in one commit."""
    permit(may_keep_secrets(call.who))
    ask = call.decode(Reasoned)
    require_record(call)
    await _note(call, ChangeKind.ROOT_REWRAPPED, "", call.house.secrets.known_roots[-1], ask.reason)
    count = await unbroken(call.house.secrets.rewrap())
    newest = call.house.secrets.known_roots[-1]
    await call.record("root_key.rewrapped", tenant=None, target=newest, reason=None)
    return {"rewrapped": count} | _roots(call)


async def release(call: Call) -> object:
    """That a root may be dropped from the file: it wraps nothing, and never will again."""
    permit(may_keep_secrets(call.who))
    ask = call.decode(ReleaseAsk)
    secrets = call.house.secrets
    known = secrets.known_roots
    if ask.root not in known:
        raise not_found("There is no such root in this server's file.")
    if ask.root not in known[1:-1]:
        raise conflict(
            "root_needed",
            "The first root stays for good, since API keys and the audit log hang on it, and the last one wraps. "
            "To replace it, add a root, restart and wrap again.",
        )
    if count := secrets.wrapped_by()[ask.root]:
        raise conflict("root_in_use", f"It still wraps {count} secrets. Wrap them again first.")
    require_record(call)
    await _note(call, ChangeKind.ROOT_RELEASED, "", ask.root, ask.reason)
    await call.record("root_key.released", tenant=None, target=ask.root, reason=None)
    return {"released": ask.root} | _roots(call)


def _tenant(call: Call) -> str:
    permit(may_keep_secrets(call.who))
    assert call.name is not None
    knowing(call, call.name)
    return call.name


async def _note(call: Call, kind: ChangeKind, tenant: str, subject: str, reason: str) -> None:
    await call.house.directory.note(
        kind, tenant=tenant, subject=subject, actor=call.actor, reason=reason
    )
