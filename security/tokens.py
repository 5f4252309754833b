"""JWT access tokens (RFC 9068): read strictly, verified against an issuer's rule, made a principal.

Pure: no clock, no I/O; keys and time are arguments.  PyJWT checks the signature and nothing else,
since it accepts much that we refuse (SECURITY.md §0).  Refuses to know where keys come from
(`jwks`) and what a role may do (`policies.access`).

The order is fixed.  `preparse` bounds and reads; `check` holds header and claims against the rule
(cheap, so that a token which could never pass causes no key look-up); `verify` does that again
together with the signature, and only what it returns may be believed.

Time, with `leeway_s` on every comparison and whole seconds on both sides:

    claim  required  passes while
    exp    yes       now < exp + leeway
    nbf    no        now ≥ nbf − leeway
    iat    no        now ≥ iat − leeway   (a token from the future is refused)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import jwt

from policies import tags
from policies.facts import Credential, CredentialKind, Principal, Role
from security.failures import AuthDenied, Denied
from security.jwks import ALGORITHMS, VerifyKey
from security.strict import NotStrict, base64url, json_object

TOKEN_BYTES_MAX = 8192
ID_CHARS_MAX = 128
GROUPS_MAX = 256
ROLES_MAX = 64
LEEWAY_S_MAX = 300
_DEPTH_MAX = 8
_TIME_S_MAX = 253_402_300_799  # the last second of the year 9999
_KID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._=:@+-]{0,127}", re.ASCII)
_HEADER_MEMBERS = frozenset({"alg", "typ", "kid"})
# RFC 9068 §2.1: the media type, with or without its prefix.  Nothing else is an access token.
_TYPES = {"at+jwt": "at+jwt", "application/at+jwt": "at+jwt"}
# What only ID tokens (OpenID Connect Core §2, §3.3) and security events (RFC 8417) carry.
_FOREIGN_CLAIMS = frozenset({"nonce", "at_hash", "c_hash", "s_hash", "events"})
_SIGNATURES = jwt.PyJWS(algorithms=list(ALGORITHMS))
_OPERATORS = frozenset({Role.OPERATOR, Role.OPERATOR_FINANCE, Role.OPERATOR_SECURITY})


@dataclass(frozen=True, slots=True)
class ClaimNames:
    """Which claim says what; None where the issuer does not say it."""

    tenant: str
    user: str = "sub"
    project: str | None = None
    groups: str | None = None
    roles: str | None = None
    service_class: str | None = None
    tags: str | None = None


class Binding(StrEnum):
    """Whether an issuer's tokens are bound to a key (RFC 9449).  One that is bound must always be proven:
    `off` takes none, `allowed` takes both kinds, `required` no other."""

    OFF = "off"
    ALLOWED = "allowed"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class IssuerRule:
    """What one issuer's tokens must look like.  `faults` says what is wrong with a rule.  `nonce`: proofs
    bear what we said last."""

    issuer: str
    audience: str
    algorithms: tuple[str, ...]
    claims: ClaimNames
    typ: tuple[str, ...] = ("at+jwt",)
    leeway_s: int = 30
    binding: Binding = Binding.ALLOWED
    nonce: bool = False


@dataclass(frozen=True, slots=True)
class Unverified:
    """A token's parts, read but not believed."""

    raw: str = field(repr=False)
    alg: str
    typ: str | None
    kid: str | None
    claims: Mapping[str, object] = field(repr=False)

    @property
    def issuer(self) -> str | None:
        issuer = self.claims.get("iss")
        return issuer if isinstance(issuer, str) else None


@dataclass(frozen=True, slots=True)
class Claims:
    """A verified token's claims."""

    issuer: str
    subject: str
    expires_at_s: int
    issued_at_s: int | None
    token_id: str | None
    all: Mapping[str, object] = field(repr=False)


def faults(rule: IssuerRule) -> tuple[str, ...]:
    """What makes a rule unsafe or useless, one sentence each."""
    found = []
    if not rule.issuer or not rule.audience:
        found.append("issuer and audience must not be empty")
    if not rule.algorithms:
        found.append("algorithms must name at least one of " + ", ".join(ALGORITHMS))
    found += [
        f"algorithm {name!r} is not accepted; use asymmetric ones: {', '.join(ALGORITHMS)}"
        for name in rule.algorithms
        if name not in ALGORITHMS
    ]
    if not rule.typ or any(typ not in _TYPES for typ in rule.typ):
        found.append("typ must be 'at+jwt' (RFC 9068); ID tokens and plain JWTs are not accepted")
    if not 0 <= rule.leeway_s <= LEEWAY_S_MAX:
        found.append(f"leeway_s must lie within 0 and {LEEWAY_S_MAX}")
    return tuple(found)


def preparse(raw: str) -> Unverified:
    """Read a compact JWS strictly.  Raises AuthDenied and nothing else, whatever it is given."""
    if len(raw) > TOKEN_BYTES_MAX:
        raise AuthDenied(Denied.TOKEN_TOO_LONG)
    parts = raw.split(".", 3)
    if len(parts) != 3 or not all(parts):
        raise AuthDenied(Denied.TOKEN_SHAPE)
    try:
        head, body, _ = (base64url(part) for part in parts)
    except NotStrict as error:
        raise AuthDenied(Denied.TOKEN_ENCODING) from error
    try:
        header = json_object(head, depth_max=_DEPTH_MAX)
        claims = json_object(body, depth_max=_DEPTH_MAX)
    except NotStrict as error:
        raise AuthDenied(Denied.TOKEN_JSON) from error
    if (
        header.keys() - _HEADER_MEMBERS
    ):  # jku, x5u, x5c, jwk, crit, zip, b64, cty and the unheard-of
        raise AuthDenied(Denied.HEADER_MEMBER)
    alg, typ, kid = header.get("alg"), header.get("typ"), header.get("kid")
    if not isinstance(alg, str):
        raise AuthDenied(Denied.ALGORITHM)
    if not (typ is None or isinstance(typ, str)) or ("typ" in header and typ is None):
        raise AuthDenied(Denied.TYPE)
    if "kid" in header and not (isinstance(kid, str) and _KID.fullmatch(kid)):
        raise AuthDenied(Denied.KEY_ID)
    return Unverified(raw, alg, typ, kid if isinstance(kid, str) else None, claims)


def check(unverified: Unverified, rule: IssuerRule, now_s: int, shown: str | None = None) -> Claims:
    """Hold header and claims against the rule.  The result is not believed until `verify`.  `shown`: the
    thumbprint of the key that the caller has proved to hold; None: they come with the token alone."""
    assert not faults(rule)
    if unverified.alg not in rule.algorithms:
        raise AuthDenied(Denied.ALGORITHM)
    if _TYPES.get(unverified.typ or "") is None:
        raise AuthDenied(Denied.TYPE)
    claims = unverified.claims
    if unverified.issuer != rule.issuer:
        raise AuthDenied(Denied.ISSUER)
    if _FOREIGN_CLAIMS & claims.keys():
        raise AuthDenied(Denied.ID_TOKEN)
    _check_binding(claims, rule.binding, shown)
    if claims.get("aud") not in (rule.audience, [rule.audience]):
        raise AuthDenied(Denied.AUDIENCE)
    expires, begins, issued = (_time(claims, name) for name in ("exp", "nbf", "iat"))
    if expires is None:
        raise AuthDenied(Denied.TIMES)
    if now_s >= expires + rule.leeway_s:
        raise AuthDenied(Denied.EXPIRED)
    if any(at is not None and now_s < at - rule.leeway_s for at in (begins, issued)):
        raise AuthDenied(Denied.NOT_YET_VALID)
    subject, token_id = claims.get("sub"), claims.get("jti")
    if not is_id(subject):
        raise AuthDenied(Denied.SUBJECT)
    if token_id is not None and not is_id(token_id):
        raise AuthDenied(Denied.CLAIM)
    assert isinstance(subject, str)
    return Claims(
        issuer=rule.issuer,
        subject=subject,
        expires_at_s=expires,
        issued_at_s=issued,
        token_id=token_id if isinstance(token_id, str) else None,
        all=claims,
    )


def _check_binding(claims: Mapping[str, object], binding: Binding, shown: str | None) -> None:
    """What the token is bound to (RFC 7800) is exactly the key that was shown: none of both, or one."""
    if "cnf" not in claims:
        if shown is not None:
            raise AuthDenied(Denied.PROOF_STRAY)
        if binding is Binding.REQUIRED:
            raise AuthDenied(Denied.UNBOUND_TOKEN)
        return
    if binding is Binding.OFF or shown is None:
        raise AuthDenied(Denied.BOUND_TOKEN)
    if claims["cnf"] != {"jkt": shown}:  # another key, or a way of proving that we do not know
        raise AuthDenied(Denied.PROOF_BINDING)


def verify(
    unverified: Unverified,
    rule: IssuerRule,
    key: VerifyKey,
    now_s: int,
    shown: str | None = None,
) -> Claims:
    """Everything `check` asks, and the signature under `key` with an algorithm that is the rule's
    and the key's; the token only says which of those it used."""
    claims = check(unverified, rule, now_s, shown)
    verify_signature(unverified, rule.algorithms, key)
    return claims


def verify_signature(unverified: Unverified, algorithms: tuple[str, ...], key: VerifyKey) -> None:
    allowed = [name for name in algorithms if name in ALGORITHMS and name in key.algorithms]
    if unverified.alg not in allowed:
        raise AuthDenied(Denied.ALGORITHM)
    if unverified.kid is not None and unverified.kid != key.kid:
        raise AuthDenied(Denied.KEY_ID)
    try:
        _SIGNATURES.decode_complete(unverified.raw, key.key, algorithms=allowed)
    except jwt.PyJWTError as error:
        raise AuthDenied(Denied.SIGNATURE) from error


def to_principal(claims: Claims, rule: IssuerRule) -> Principal:
    """Map claims to who is asking.  A tenant is required, except for an operator, who has none:
    a token that names both is refused rather than read in one of two ways."""
    names, all_ = rule.claims, claims.all
    roles = known_roles(_strings(all_, names.roles, ROLES_MAX))
    tenant = _id(all_, names.tenant)
    check_tenancy(tenant, roles)
    user = _id(all_, names.user)
    if user is None:
        raise AuthDenied(Denied.CLAIM)
    return Principal(
        tenant=tenant,
        project=_id(all_, names.project),
        user=user,
        issuer=claims.issuer,
        credential=Credential(
            CredentialKind.TOKEN,
            claims.token_id,
            expires_at_s=claims.expires_at_s,
            issued_at_s=claims.issued_at_s,
        ),
        groups=frozenset(_strings(all_, names.groups, GROUPS_MAX)),
        roles=roles,
        service_class=_id(all_, names.service_class),
        tags=_tags(all_, names.tags),
    )


def known_roles(names: tuple[str, ...]) -> frozenset[Role]:
    """Roles that we know; the rest grant nothing, so they are ignored."""
    return frozenset(role for role in Role if role.value in names)


def check_tenancy(tenant: str | None, roles: frozenset[Role]) -> None:
    """Operators belong to no tenant, and everybody else to one."""
    if tenant is None and not roles & _OPERATORS:
        raise AuthDenied(Denied.NO_TENANT)
    if tenant is not None and roles & _OPERATORS:
        raise AuthDenied(Denied.OPERATOR_WITH_TENANT)


def is_id(value: object) -> bool:
    """A name that can be stored and shown: 1–128 printable characters, no space at either end."""
    return (
        isinstance(value, str)
        and 0 < len(value) <= ID_CHARS_MAX
        and value.isprintable()
        and value == value.strip()
    )


def _time(claims: Mapping[str, object], name: str) -> int | None:
    value = claims.get(name)
    if name not in claims:
        return None
    if type(value) is not int or not 0 < value <= _TIME_S_MAX:  # a bool is an int elsewhere
        raise AuthDenied(Denied.TIMES)
    return value


def _id(claims: Mapping[str, object], name: str | None) -> str | None:
    value = claims.get(name) if name is not None else None
    if value is None:
        return None
    if not is_id(value):
        raise AuthDenied(Denied.CLAIM)
    assert isinstance(value, str)
    return value


def _tags(claims: Mapping[str, object], name: str | None) -> tuple[tuple[str, str], ...]:
    """An object of names and values.  One that is none refuses the token: without its tags it would be
    under none of the budgets that hang on them."""
    value = claims.get(name) if name is not None else None
    if value is None:
        return ()
    if not isinstance(value, dict) or len(value) > tags.TAGS_MAX:
        raise AuthDenied(Denied.CLAIM)
    found: list[tuple[str, str]] = []
    for key, text in value.items():
        if not isinstance(text, str) or tags.fault(key, text):
            raise AuthDenied(Denied.CLAIM)
        found.append((key, text))
    return tuple(sorted(found))


def _strings(claims: Mapping[str, object], name: str | None, count_max: int) -> tuple[str, ...]:
    """A list of ids, or one.  A wrong type or an over-long list refuses the token: dropping part of
    it could drop the very group that a rule forbids."""
    value = claims.get(name) if name is not None else None
    if value is None:
        return ()
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or len(items) > count_max or not all(map(is_id, items)):
        raise AuthDenied(Denied.CLAIM)
    return tuple(items)
