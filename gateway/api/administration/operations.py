"""Administration, on the admin listener only.

Every route names the question of `policies.access` that it asks; there is no route without one.
Every change is an audit record with its actor before it is answered.  Errors are RFC 9457 problems.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from gateway import views
from gateway.api.administration.call import Call
from gateway.api.wire import query, query_lists
from gateway.errors import ApiError, conflict, from_deny, invalid, not_found
from gateway.promises import COLUMNS, promises_view
from gateway.queue import look, names, queue_view
from gateway.quoting import fit
from policies import access
from policies.facts import Role
from policies.tags import TAGS_MAX, fault, parse
from policies.verdict import Deny, Reason
from tenants.deleting import Deleting
from tenants.directory import Directory, KeyRecord
from tenants.store import StoreUnavailable

FOR_EVER_MS = 2**62
KEY_ROLES = frozenset({Role.TENANT_ADMIN.value, Role.FINANCE.value})
Id = Annotated[str, Meta(min_length=1, max_length=256)]
Note = Annotated[str, Meta(max_length=512)]


def permit(allowed: bool) -> None:
    if not allowed:
        raise from_deny(Deny(Reason.FORBIDDEN))


async def status(call: Call) -> object:
    permit(access.may_operate(call.who))
    return await views.status_view(call.house, pid=os.getpid())


async def metrics(call: Call) -> object:
    permit(access.may_operate(call.who) or access.may_read_usage(call.who, None))
    seen = await look(call.house)
    metrics = call.house.metrics
    metrics.classes.sums = seen.sums()
    metrics.classes.lag_max = seen.lag_max
    return metrics.exposition()


async def load(call: Call) -> object:
    """The requests that run here now, in vLLM's words: for a balancer that counts them."""
    permit(access.may_operate(call.who))
    return {"server_load": len(call.house.live)}


async def queue(call: Call) -> object:
    """Who runs and who waits: all of it for operators, its own lanes for a tenant's administrator."""
    tenant = _watched(call, query(call.scope, frozenset({"tenant"})).get("tenant"))
    seen = await look(call.house, tenant)
    known = names(call.house, tenant)
    return queue_view(seen, known, operator=access.may_operate(call.who))


async def promises(call: Call) -> object:
    asked = query(call.scope, frozenset({"by", "tenant"}))
    tenant = _watched(call, asked.get("tenant"))
    by = tuple(part for part in asked.get("by", "service_class,tenant").split(",") if part)
    if not by or len(set(by)) != len(by) or not set(by) <= set(COLUMNS):
        raise invalid("'by' is a list of: " + ", ".join(COLUMNS) + ".", param="by")
    return promises_view(call.house.promises, call.house.classes.named, by, tenant)


def _watched(call: Call, asked: str | None) -> str | None:
    """Whose work is looked at; None: everybody's.  Operators may narrow it to one tenant."""
    tenant = asked or call.who.tenant
    permit(access.may_administer(call.who, tenant or ""))
    if tenant is not None:
        knowing(call, tenant)
    return tenant


async def tenants(call: Call) -> object:
    permit(access.may_operate(call.who))
    found = call.house.directory.tenants()
    plan = call.house.directory.plan_of
    return {
        "tenants": [
            {"tenant": name, "plan": plan(name), "suspended": gone} for name, gone in found.items()
        ]
    }


class Reasoned(msgspec.Struct, forbid_unknown_fields=True):
    reason: Note | None = None


async def suspend(call: Call) -> object:
    return await _set_suspended(call, suspended=True)


async def resume(call: Call) -> object:
    return await _set_suspended(call, suspended=False)


async def _set_suspended(call: Call, *, suspended: bool) -> object:
    permit(access.may_suspend(call.who))
    assert call.name is not None
    reason = call.decode(Reasoned).reason or ""
    directory = knowing(call, call.name)
    if suspended:
        await directory.suspend(call.name, reason=reason, actor=call.actor)
    else:
        if await Deleting(call.house.retention).find(call.name) is not None:
            raise conflict(
                "tenant_deleting",
                "This tenant is being deleted. 'lockgate tenant delete --abandon' ends that while nothing is destroyed.",
            )
        await directory.resume(call.name, reason=reason, actor=call.actor)
    kind, ending = "tenant.suspended" if suspended else "tenant.resumed", None
    if suspended:
        call.house.purges.note(call.name)  # what it has registered is computed anew
        try:
            ending = await call.house.registered.suspended(call.name)
        except StoreUnavailable:  # suspended it is, and that has its record
            await call.record(kind, tenant=call.name, target=call.name, reason=None)
            raise
    await call.record(kind, tenant=call.name, target=call.name, reason=None, ending=ending)
    return {"tenant": call.name, "suspended": suspended}


def knowing(call: Call, tenant: str) -> Directory:
    """The directory, which knows this tenant; else 404."""
    if call.house.directory.is_deleted(tenant):
        raise ApiError(
            *(410, "invalid_request_error", "tenant_deleted"),
            f"The tenant '{fit(tenant)}' was deleted, and its name is not used again.",
        )
    if tenant not in call.house.directory.tenants():
        raise not_found(f"There is no tenant '{fit(tenant)}'.")
    return call.house.directory


class NewKeyAsk(msgspec.Struct, forbid_unknown_fields=True):
    tenant: Id
    user: Id
    project: Id | None = None
    roles: Annotated[list[str], Meta(max_length=8)] | None = None
    groups: Annotated[list[Id], Meta(max_length=64)] | None = None
    service_class: Id | None = None
    expires_at: Annotated[int, Meta(ge=0, le=253_402_300_799)] | None = None
    tags: Annotated[dict[str, str], Meta(max_length=TAGS_MAX)] | None = None


async def create_key(call: Call) -> object:
    ask = call.decode(NewKeyAsk)
    permit(access.may_administer(call.who, ask.tenant))
    directory = knowing(call, ask.tenant)
    roles = tuple(ask.roles or ())
    if not set(roles) <= KEY_ROLES:
        raise invalid(
            "A key may hold the roles " + " and ".join(sorted(KEY_ROLES)) + ", no other.",
            param="roles",
        )
    classes = directory.classes_of(ask.tenant)
    if ask.service_class is not None and ask.service_class not in classes:
        raise invalid(
            "This class is not in the tenant's plan, so such a key could ask nothing. The plan has: "
            + ", ".join(classes)
            + ".",
            param="service_class",
        )
    for name, value in (ask.tags or {}).items():
        if why := fault(name, value):
            raise invalid(f"tags: {why}.", param="tags")
    made = call.house.mint_key()
    await directory.add_key(
        KeyRecord(
            id=made.id,
            digest=made.digest,
            tenant=ask.tenant,
            user=ask.user,
            project=ask.project,
            roles=roles,
            groups=tuple(ask.groups or ()),
            service_class=ask.service_class,
            created_at_s=call.house.clock.wall_ms() // 1000,
            expires_at_s=ask.expires_at,
            tags=tuple(sorted((ask.tags or {}).items())),
        ),
        actor=call.actor,
    )
    await call.record("key.created", tenant=ask.tenant, target=made.id, reason=None)
    return {"id": made.id, "secret": made.secret, "tenant": ask.tenant, "user": ask.user}


async def list_keys(call: Call) -> object:
    asked = query(call.scope, frozenset({"tenant"}))
    tenant = asked.get("tenant") or call.who.tenant
    if tenant is None:
        permit(access.may_operate(call.who))
        of = tuple(call.house.directory.tenants())
    else:
        permit(access.may_administer(call.who, tenant))
        knowing(call, tenant)
        of = (tenant,)
    listed = [key for name in of for key in call.house.directory.list_keys(name)]
    return {"keys": [views.key_view(key) for key in listed]}


async def rotate_key(call: Call) -> object:
    record = _administered_key(call)
    made = call.house.mint_key()
    await call.house.directory.rotate_key(
        record.id, new_id=made.id, new_digest=made.digest, actor=call.actor
    )
    await call.record("key.rotated", tenant=record.tenant, target=record.id, reason=None)
    return {"id": made.id, "secret": made.secret, "replaces": record.id}


async def revoke_key(call: Call) -> object:
    record = _administered_key(call)
    reason = call.decode(Reasoned).reason or ""
    await call.house.directory.revoke_key(record.id, reason=reason, actor=call.actor)
    await call.record("key.revoked", tenant=record.tenant, target=record.id, reason=None)
    return {"id": record.id, "revoked": True}


def _administered_key(call: Call) -> KeyRecord:
    """Another tenant's key and an absent one look the same."""
    assert call.name is not None
    record = call.house.directory.key(call.name)
    if record is None or not access.may_administer(call.who, record.tenant):
        raise not_found("There is no such key.")
    return record


class RevokeAsk(msgspec.Struct, forbid_unknown_fields=True):
    token_id: Id | None = None
    issuer: Id | None = None
    subject: Id | None = None
    tenant: Id | None = None
    expires_at: Annotated[int, Meta(ge=0, le=253_402_300_799)] | None = None
    reason: Note | None = None


async def revoke_token(call: Call) -> object:
    """By token id, or everything issued to a subject so far.  A tenant's administrator revokes within
    the tenant; an operator anywhere."""
    ask = call.decode(RevokeAsk)
    tenant = ask.tenant or call.who.tenant or ""
    permit(access.may_revoke(call.who, tenant))
    # A mistyped tenant would be told "revoked" while the real tokens go on.
    directory = knowing(call, tenant) if tenant else call.house.directory
    reason = ask.reason or ""
    if ask.token_id is not None and ask.subject is None:
        await directory.revoke_token(
            ask.token_id,
            issuer=ask.issuer or "",
            tenant=tenant,
            expires_at_s=ask.expires_at,
            reason=reason,
            actor=call.actor,
        )
        await call.record("token.revoked", tenant=tenant or None, target=ask.token_id, reason=None)
        return {"token_id": ask.token_id, "revoked": True}
    if ask.subject is not None and ask.issuer is not None and ask.token_id is None:
        await directory.revoke_subject(
            tenant=tenant,
            issuer=ask.issuer,
            subject=ask.subject,
            reason=reason,
            actor=call.actor,
        )
        target = call.house.names.person(tenant or None, ask.issuer, ask.subject)
        await call.record("subject.revoked", tenant=tenant or None, target=target, reason=None)
        return {"issuer": ask.issuer, "subject": ask.subject, "revoked": True}
    raise invalid("Name either token_id, or issuer and subject.", param="token_id")


async def request(call: Call) -> object:
    assert call.name is not None
    found = await call.house.book.explain(call.name)
    if found is not None:
        dims = found.dims
        owner = access.Owner(dims.tenant, dims.issuer, dims.user)
        if access.may_operate(call.who) or access.may_read_request(call.who, owner):
            return views.explanation_view(found, operator=access.may_operate(call.who))
    raise not_found(
        "There is no such request, or it was refused before it ran: see the audit log, which outlasts what is kept "
        "of refusals."
    )


async def check(call: Call) -> object:
    """The effective limits of a principal that need not be signed in.  Users of one name at two
    issuers are two people; without a word it is the caller's own issuer."""
    names = frozenset({"tenant", "user", "project", "issuer"})
    listed = query_lists(call.scope, names, frozenset({"tag"}))
    asked = {name: values[0] for name, values in listed.items()}
    tenant = asked.get("tenant")
    if tenant is None:
        raise invalid("Name the tenant: ?tenant=…", param="tenant")
    permit(access.may_administer(call.who, tenant))
    knowing(call, tenant)
    issuer = asked.get("issuer") or call.who.issuer
    try:
        tags = dict(map(parse, listed.get("tag", ())))
    except ValueError as why:
        raise invalid(f"tag: {why}.", param="tag") from why
    imagined = views.imagined(tenant, asked.get("user"), asked.get("project"), issuer, tags)
    view = await views.standing_view(call.house, imagined)
    served = {each.name: each.batching for each in call.house.deployments.values()}
    return view | {"batching": {name: served[name] for name in usable(view) if name in served}}


def usable(view: Mapping[str, object]) -> list[str]:
    """The models of a standing view: no other is named to who asks."""
    models = view["models"]
    assert isinstance(models, list)
    return models
