"""`/v1/admin/cache`: what is kept of prompts, counted; and gone on demand, with a proof.

Counts and pseudonyms go out, never words, keys or token ids.  A tenant's administrator lists and purges its own
tenant's, operators all (`policies.access.may_on_cache`); reading it is for nobody, so there is no route for it.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from executor.contract import Executor, ExecutorLost, Kept, ModelCard
from gateway.api.administration.call import Call
from gateway.api.administration.operations import Id, knowing, permit
from gateway.api.wire import query
from gateway.errors import ApiError, invalid, not_found, unavailable
from gateway.house import Deployment, House
from gateway.identify import request_id
from gateway.purging import Heard, Target, purge
from gateway.queue import UNKNOWN, names
from gateway.refusals import audit_down
from gateway.unbroken import unbroken
from policies.access import CacheAct, may_on_cache
from policies.scope.labels import Document
from security.audit import AuditUnavailable, CacheEvent
from security.audit_proof import Proof, encode_proof
from security.purge import Purged, PurgeReason, purge_record
from tenants.directory import ChangeKind
from tenants.documents import Kind, Record, templates_of

Reason = Annotated[str, Meta(min_length=1, max_length=512)]


async def listed(call: Call) -> object:
    """By tenant, model and kind of label; `by=label` a row for each."""
    asked = query(call.scope, frozenset({"tenant", "by"}))
    tenant = asked.get("tenant") or call.who.tenant
    permit(may_on_cache(call.who, CacheAct.LIST, tenant))
    if tenant is not None:
        knowing(call, tenant)
    if (by := asked.get("by", "kind")) not in {"kind", "label"}:
        raise invalid("'by' is kind or label.", param="by")
    house = call.house
    whose, known = None if tenant is None else house.pseudonym(tenant), names(house, tenant)
    rows: list[dict[str, object]] = []
    silent, left_out = [], 0
    for each in deployed(house):
        try:
            found = await each.executor.list_kept(whose, by_label=by == "label")
        except ExecutorLost:
            silent.append(each.name)
            continue
        left_out += found.left_out
        card = each.executor.card
        rows += [_row(house, each.name, card, known.get(kept.owner), kept) for kept in found.rows]
    await call.record(CacheEvent.LISTED.value, tenant=tenant, target=by, reason=None)
    return {"by": by, "kept": rows, "left_out": left_out, "silent": silent}


def _row(
    house: House, model: str, card: ModelCard | None, tenant: str | None, kept: Kept
) -> dict[str, object]:
    """`label`: a pseudonym of the pseudonym that executors compare."""
    block_bytes = 0 if card is None or not card.kv_blocks else card.kv_bytes // card.kv_blocks
    return {
        "tenant": tenant or UNKNOWN,
        "model": model,
        "kind": kept.kind,
        **({"label": house.pseudonym(kept.label.hex())} if kept.label else {"labels": kept.labels}),
        "blocks": kept.blocks,
        "bytes": kept.blocks * block_bytes,
        "pinned_blocks": kept.pinned,
        "oldest_s": kept.oldest_ms // 1000,
    }


class PurgeAsk(msgspec.Struct, forbid_unknown_fields=True):
    """One of: `all`; `document`; `template`; `tenant`, and of it one `user` of an `issuer`."""

    reason: Reason
    tenant: Id | None = None
    user: Id | None = None
    issuer: Id | None = None
    document: Id | None = None
    template: Id | None = None
    all: bool = False


async def purged(call: Call) -> object:
    """Answers when every executor has acknowledged and read zeros, with the record and its proof."""
    ask = call.decode(PurgeAsk)
    target = _target(call, ask)
    require_record(call)
    heard, proof = await unbroken(_purge(call, target, ask.reason))
    if heard.unacknowledged:
        raise unavailable(
            f"{heard.unacknowledged} of the executors did not acknowledge, so it is not known to be gone "
            f"there. Record {proof.index} of the audit log says what the others did. Ask again.",
            code="purge_unacknowledged",
            retry_after_s=5,
        )
    if heard.blocks_read_zero != heard.blocks:
        raise unavailable(
            f"What was purged does not read back as zero. Record {proof.index} of the audit log says so. "
            "Restart the executor: its memory cannot be trusted.",
            code="purge_not_zeroed",
            retry_after_s=60,
        )
    return {
        "scope": target.scope,
        "tenant": target.tenant,
        "blocks": heard.blocks,
        "blocks_zeroed": heard.blocks,
        "blocks_read_zero": heard.blocks_read_zero,
        "requests_ended": heard.ended,
        "executors": heard.executors,
        "record": proof.index,
        "proof": msgspec.json.decode(encode_proof(proof)),
    }


async def _purge(call: Call, target: Target, reason: str) -> tuple[Heard, Proof]:
    """Who and why is in the database before anything is done; what was done, in the audit log after it."""
    house = call.house
    await house.directory.note(
        ChangeKind.CACHE_PURGED,
        tenant=target.tenant or "",
        subject=target.scope,
        actor=call.actor,
        reason=reason,
    )
    heard = await purge(executors_of(house), target)
    house.purges.note(target.tenant)
    purged = heard.purged(target.scope, PurgeReason.ASKED_FOR)
    return heard, await recorded(call, purged, target.tenant)


def require_record(call: Call) -> None:
    """Nothing is done that cannot be recorded.  Raises ApiError 503."""
    try:
        call.house.audit.require_healthy()
    except AuditUnavailable as down:
        raise audit_down() from down


async def recorded(call: Call, purged: Purged, tenant: str | None) -> Proof:
    house, who = call.house, call.who
    try:
        return await purge_record(
            house.audit,
            purged,
            tenant=tenant,
            request_id=request_id(call.scope),
            subject=house.names.person(who.tenant, who.issuer, who.user),
            credential_id=who.credential.id,
        )
    except AuditUnavailable as down:
        raise unavailable(
            "It was purged, but the audit log could not be written, so there is no record of it. Ask again "
            "for one.",
            code="audit_unavailable",
            retry_after_s=5,
        ) from down


def executors_of(house: House) -> list[Executor]:
    return [each.executor for each in deployed(house)]


def deployed(house: House) -> list[Deployment]:
    """Each once, whatever else it is called."""
    return list({id(each): each for each in house.deployments.values()}.values())


def _target(call: Call, ask: PurgeAsk) -> Target:
    """What is to go, by whoever may make it go.  Raises ApiError 400, 403, 404."""
    house, who = call.house, call.who
    named = [
        *(["all"] if ask.all else []),
        *(name for name in ("document", "template", "tenant") if getattr(ask, name) is not None),
    ]
    if len(named) != 1 or (ask.user is not None) > (ask.tenant is not None):
        raise invalid(
            "Name one: all, a document, a template, or a tenant (and of it a user).", param="tenant"
        )
    if ask.issuer is not None and ask.user is None:
        raise invalid("issuer: is a user's; name the user.", param="issuer")
    if ask.all:
        permit(may_on_cache(who, CacheAct.PURGE, None))
        return Target("all")
    if ask.tenant is not None:
        permit(may_on_cache(who, CacheAct.PURGE, ask.tenant))
        knowing(call, ask.tenant)
        owner = house.pseudonym(ask.tenant)
        if ask.user is None:
            return Target(ask.tenant, ask.tenant, owner)
        issuer = ask.issuer or who.issuer
        scope = house.names.person(ask.tenant, issuer, ask.user) or "-"
        tags = (house.caches.keys.of_person(ask.tenant, issuer, ask.user),)
        return Target(scope, ask.tenant, owner, tags)
    permit(may_on_cache(who, CacheAct.PURGE, who.tenant))
    return _text_target(call, ask)


def _text_target(call: Call, ask: PurgeAsk) -> Target:
    """A registered text's.  A public template's is purged of one tenant's by that tenant's administrator."""
    house, who = call.house, call.who
    id_, kind = ask.document, Kind.DOCUMENT
    if id_ is None:
        id_, kind = ask.template, Kind.TEMPLATE
    record = house.registered.documents.find(id_ or "")
    if record is None or record.kind is not kind:
        raise missing(kind)
    if record.tenant is not None and who.tenant not in {None, record.tenant}:
        raise missing(kind)
    tenant = record.tenant or who.tenant
    scope = record.id
    if record.tenant is not None:
        scope = house.names.document(record.tenant, record.id) or "-"
    owner = None if tenant is None else house.pseudonym(tenant)
    return Target(scope, tenant, owner, _tags(house, record))


def _tags(house: House, record: Record) -> tuple[bytes, ...]:
    """Also of lists that have only grown since: what was kept by them is not found, but is there."""
    if record.kind is Kind.TEMPLATE or record.tenant is None:
        return tuple(house.caches.keys.of_template(each) for each in templates_of(record))
    return tuple(
        house.caches.keys.of_document(
            record.tenant, Document(record.id, version, record.content_version)
        )
        for version in range(1, record.acl_version + 1)
    )


def missing(kind: Kind) -> ApiError:
    return not_found(f"There is no such {kind.value}.", code=f"{kind.value}_not_found")
