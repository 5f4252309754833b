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
from security import dpop
from security.audit import AuditEvent, AuditUnavailable
from security.authenticate import offers_proof
from security.dpop import Asked
from security.failures import (
    OF_THE_PROOF,
    AuthDenied,
    AuthMalformed,
    AuthUnavailable,
    Suspended,
)

ALGORITHMS = " ".join(dpop.ALGORITHMS)


async def identify(house: House, scope: Scope) -> Principal:
    """The principal behind a request's credential.  Raises ApiError 400, 401, 403 or 503."""
    try:
        who = await house.authenticator.authenticate(
            scope["headers"], scope.get("query_string", b""), asked(scope)
        )
        house.door.met(scope["headers"], who.tenant, lambda: _rank(house, who))
        return who
    except (AuthDenied, AuthMalformed, AuthUnavailable, Suspended) as why:
        reason, error = _explain(why, scope)
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


def asked(scope: Scope) -> Asked:
    """The request that a proof must be for.  Nothing that was forwarded counts: `X-Forwarded-*` is whoever's."""
    host = next((value for name, value in scope["headers"] if name == b"host"), b"")
    return Asked(scope["method"], scope["raw_path"].decode("latin-1"), host.decode("latin-1"))


def _explain(why: Exception, scope: Scope) -> tuple[str, ApiError]:
    reason = str(getattr(why, "reason", "denied"))
    if isinstance(why, AuthMalformed):
        return reason, invalid(
            "Send exactly one credential: 'Authorization: Bearer …' (or 'Authorization: DPoP …' with one DPoP "
            "header), or a key as 'x-api-key: …', and not both.",
            code="malformed_credential",
        )
    if isinstance(why, AuthUnavailable):
        return reason, unavailable(
            "Credentials cannot be checked right now. Try again.",
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
    assert isinstance(why, AuthDenied)
    if not offers_proof(scope["headers"]):
        return reason, unauthenticated(reason)
    return reason, unauthenticated(reason, _challenge(why))


def _challenge(why: AuthDenied) -> dict[str, str]:
    """To who speaks of a proof (RFC 9449 §7.1).  That a proof is bad by itself may be told; all that is
    found out with the token is `invalid_token`, or a thief would learn that theirs still stands.  Who has
    proved everything else needs a nonce, and is given it (§9)."""
    said = "invalid_dpop_proof" if why.reason in OF_THE_PROOF else "invalid_token"
    nonce = {} if why.nonce is None else {"dpop-nonce": why.nonce}
    said = "use_dpop_nonce" if nonce else said
    return {"www-authenticate": f'DPoP error="{said}", algs="{ALGORITHMS}"', **nonce}


def route_name(scope: Scope) -> str:
    """The route that was matched, never the path: that is a caller's text."""
    return str(getattr(scope.get("route"), "path", "-"))


def request_id(scope: Scope) -> str:
    """The id that the guard minted for this request."""
    minted = scope["state"]["request_id"]
    assert isinstance(minted, str)
    return minted
