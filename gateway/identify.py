"""Who is asking: the one place where a request becomes a `Principal`.

Every failure looks the same from outside and says what it was in the audit log.  Source: SECURITY.md
§4 (tokens), API.md case 49.
"""

from __future__ import annotations

from starlette.types import Scope

from gateway.errors import ApiError, invalid, unauthenticated, unavailable
from gateway.house import House
from gateway.refusals import audit_down
from policies import access
from policies.facts import Principal
from policies.shedding import Rank, rank_of
from policies.verdict import Deny
from security.audit import AuditEvent, AuditUnavailable
from security.failures import AuthDenied, AuthMalformed, AuthUnavailable, Suspended


async def identify(house: House, scope: Scope) -> Principal:
    """The principal behind a request's credential.  Raises ApiError 400, 401, 403 or 503."""
    try:
        who = await house.authenticator.authenticate(
            scope["headers"], scope.get("query_string", b"")
        )
        house.door.met(scope["headers"], who.tenant, lambda: _rank(house, who))
        return who
    except (AuthDenied, AuthMalformed, AuthUnavailable, Suspended) as why:
        reason, error = _explain(why)
        tenant = getattr(why, "tenant", None)  # set where the credential was genuine
        credential_id = getattr(why, "credential_id", None)
    house.door.refused(scope["headers"])
    house.metrics.auth_denied.labels(reason).inc()
    try:
        await house.audit.append(
            AuditEvent(
                kind="request.rejected" if error.status == 400 else "auth.denied",
                request_id=request_id(scope),
                route=route_name(scope),
                outcome="refused",
                reason=reason,
                tenant=tenant,
                credential_id=credential_id,
            )
        )
    except AuditUnavailable as down:
        raise audit_down() from down
    raise error


def _rank(house: House, who: Principal) -> Rank:
    """By its own class; what a single request wishes for is not known at the door."""
    standing = house.directory.standing(who)
    if isinstance(standing, Deny):
        return Rank.WEIGHTED if who.tenant is None else Rank.BACKFILL
    named = house.classes.named.get(access.class_of(who, standing, None))
    return Rank.WEIGHTED if named is None else rank_of(named.kind)


def _explain(why: Exception) -> tuple[str, ApiError]:
    reason = str(getattr(why, "reason", "denied"))
    if isinstance(why, AuthMalformed):
        return reason, invalid(
            "Send exactly one credential, in the Authorization header: 'Authorization: Bearer …'.",
            code="malformed_credential",
        )
    if isinstance(why, AuthUnavailable):
        return reason, unavailable(
            "The identity provider's keys cannot be checked right now. Try again.",
            code="auth_unavailable",
            retry_after_s=5,
        )
    if isinstance(why, Suspended):
        return reason, ApiError(
            403,
            "permission_error",
            "tenant_suspended",
            "This tenant is suspended. Ask your operator.",
            headers={"x-should-retry": "false"},
        )
    return reason, unauthenticated(reason)


def route_name(scope: Scope) -> str:
    """The route that was matched, never the path: that is a caller's text."""
    return str(getattr(scope.get("route"), "path", "-"))


def request_id(scope: Scope) -> str:
    """The id that the guard minted for this request."""
    minted = scope["state"]["request_id"]
    assert isinstance(minted, str)
    return minted
