"""From a request's headers to a `Principal`, or to one of four refusals (`failures`).

Refuses to know HTTP answers, and how keys and revocations are stored: two small protocols ask.
Everything before a signature or a digest has been checked is bounded: 8 KiB of token and 8 of proof, no
look-up on raw text, no fetch that a caller can steer.

A proof of possession (`DPoP`, RFC 9449) is judged before its token is looked at, and spent after all else:
what is told of a bad proof says nothing about the token, and what strangers send is not remembered.

There is no cache of verified tokens.  ES256 takes 0.09 ms, RS256 0.05 ms (measured, PyJWT included);
a cache would save that and be one more place for a revoked token to live (SECURITY.md §5, LiteLLM
CVE-2026-35030).  Source: RFC 6750, RFC 9110 §11, SECURITY.md §4 (J19, J20).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import unquote_to_bytes

from policies.facts import Credential, CredentialKind, Principal
from security import api_keys, dpop, tokens
from security.dpop import Asked, Proof
from security.failures import (
    AuthDenied,
    AuthFailure,
    AuthMalformed,
    AuthUnavailable,
    Denied,
    Malformed,
    Suspended,
    Unavailable,
)
from security.jwks_source import JwksSource
from security.proving import Proving
from security.tokens import IssuerRule

KEY_ISSUER = "lockgate:keys"
TENANT_SUSPENDED = "tenant_suspended"
_HEADER_BYTES_MAX = tokens.TOKEN_BYTES_MAX + 16
_SCHEMES = re.compile(r"(bearer|dpop) +([A-Za-z0-9._~+/=-]+)", re.ASCII | re.IGNORECASE)
_QUERY_NAMES = frozenset(
    {
        *(b"access_token", b"token", b"api_key", b"apikey", b"api-key", b"x-api-key"),
        *(b"authorization", b"bearer", b"id_token", b"jwt"),
    }
)
_QUERY_SECRET = re.compile(
    rb"(?:bearer[ +]+)?(?:lg_[a-z2-7]{16}_|eyJ[A-Za-z0-9_-]++\.[A-Za-z0-9_-]++\.)", re.IGNORECASE
)


class KeyRecord(Protocol):
    """What a store knows of one API key.  Read-only, so that a frozen dataclass satisfies it."""

    @property
    def id(self) -> str: ...
    @property
    def tenant(self) -> str | None: ...
    @property
    def project(self) -> str | None: ...
    @property
    def user(self) -> str: ...
    @property
    def roles(self) -> Collection[str]: ...
    @property
    def groups(self) -> Collection[str]: ...
    @property
    def service_class(self) -> str | None: ...
    @property
    def tags(self) -> Sequence[tuple[str, str]]: ...
    @property
    def digest(self) -> bytes: ...
    @property
    def expires_at_s(self) -> int | None: ...
    @property
    def revoked(self) -> bool: ...


class KeyLookup(Protocol):
    async def find(self, digest: bytes) -> KeyRecord | None:
        """The key of exactly this 32-byte digest.  May raise: that is `AuthUnavailable`."""


class Revocations(Protocol):
    def is_revoked(
        self,
        *,
        key_id: str | None,
        token_id: str | None,
        issuer: str,
        subject: str,
        tenant: str | None,
        issued_at_s: int | None,
    ) -> str | None:
        """From memory: None where the credential stands, `tenant_suspended` where its tenant is
        suspended, else a word for what was revoked.  Raises where it cannot know."""


class Authenticator:
    """`rules` pairs each issuer's rule with its keys.  `clock_s` is wall time in seconds."""

    def __init__(
        self,
        rules: Sequence[tuple[IssuerRule, JwksSource]],
        *,
        keys: KeyLookup,
        revocations: Revocations,
        pepper: bytes,
        clock_s: Callable[[], float],
        proving: Proving,
    ) -> None:
        self._rules: Mapping[str, tuple[IssuerRule, JwksSource]] = {}
        self.configure(rules)
        self._keys = keys
        self._revocations = revocations
        self._pepper = pepper
        self._clock_s = clock_s
        self._proving = proving

    def configure(self, rules: Sequence[tuple[IssuerRule, JwksSource]]) -> None:
        """In place of the rules so far, all at once.  ValueError, all faults named, changes nothing."""
        wrong = [f"{rule.issuer}: {fault}" for rule, _ in rules for fault in tokens.faults(rule)]
        if len({rule.issuer for rule, _ in rules}) != len(rules):
            wrong.append("two rules name one issuer")
        if any(rule.issuer == KEY_ISSUER for rule, _ in rules):
            wrong.append(
                f"{KEY_ISSUER} is the name under which API keys act; no issuer may have it"
            )
        if wrong:
            raise ValueError("; ".join(wrong))
        self._rules = {rule.issuer: (rule, source) for rule, source in rules}

    @property
    def issuers(self) -> tuple[str, ...]:
        """Those that are configured."""
        return tuple(self._rules)

    async def authenticate(
        self, headers: Sequence[tuple[bytes, bytes]], query_string: bytes, asked: Asked
    ) -> Principal:
        """Who asks `asked`.  Raises AuthDenied, AuthMalformed, AuthUnavailable or Suspended."""
        shown = credential(headers, query_string)
        if shown.text.startswith(api_keys.PREFIX):
            if shown.proven or shown.proof is not None:
                raise AuthDenied(Denied.PROOF_STRAY)  # a key is bound to nothing
            principal = await self._by_key(shown.text)
            self.check_standing(principal)
            return principal
        proof = self._judged(shown, asked)
        rule, principal = await self._by_token(shown.text, proof)
        self.check_standing(principal)
        if proof is not None:
            await self._proving.spend(
                proof,
                self._now_s(),
                tenant=principal.tenant,
                credential_id=principal.credential.id,
                with_nonce=rule.nonce,
            )
        return principal

    def check_standing(self, principal: Principal) -> None:
        """Whether what was accepted is still accepted: revocation, suspension.  Synchronous and
        from memory, so that a running stream can ask at every step.  Expiry is the caller's to
        watch (`principal.credential.expires_at_s`), since a stream has a grace (J22)."""
        made = principal.credential
        is_key = made.kind is CredentialKind.KEY
        try:
            revoked = self._revocations.is_revoked(
                key_id=made.id if is_key else None,
                token_id=None if is_key else made.id,
                issuer=principal.issuer,
                subject=principal.user,
                tenant=principal.tenant,
                issued_at_s=made.issued_at_s,
            )
        except Exception as error:
            raise AuthUnavailable(Unavailable.REVOCATIONS) from error
        if revoked is None:
            return
        if revoked == TENANT_SUSPENDED and principal.tenant is not None:
            raise Suspended(principal.tenant, credential_id=made.id)
        raise AuthDenied(Denied.REVOKED, tenant=principal.tenant, credential_id=made.id)

    def _judged(self, shown: Shown, asked: Asked) -> Proof | None:
        """None where the token is to be taken as it is."""
        if not shown.proven:
            if shown.proof is not None:  # whoever believes to prove, and does not, is told
                raise AuthDenied(Denied.PROOF_STRAY)
            return None
        if shown.proof is None:
            raise AuthDenied(Denied.PROOF_MISSING)
        return self._proving.judge(shown.proof, shown.text, asked, self._now_s())

    async def _by_token(self, raw: str, proof: Proof | None) -> tuple[IssuerRule, Principal]:
        key_shown = None if proof is None else proof.thumbprint
        unverified = tokens.preparse(raw)
        known = self._rules.get(unverified.issuer or "")
        if known is None:
            raise AuthDenied(Denied.ISSUER)
        rule, source = known
        tokens.check(unverified, rule, self._now_s(), key_shown)  # before any key is looked for
        key = await source.key(unverified.kid, unverified.alg)
        if key is None:
            raise AuthDenied(Denied.KEY_ID)
        claims = tokens.verify(unverified, rule, key, self._now_s(), key_shown)
        return rule, tokens.to_principal(claims, rule)

    async def _by_key(self, raw: str) -> Principal:
        parsed = api_keys.parse(raw)
        digest = api_keys.digest(parsed.secret, self._pepper)
        try:
            record = await self._keys.find(digest)
        except AuthFailure:
            raise
        except Exception as error:
            raise AuthUnavailable(Unavailable.KEY_LOOKUP) from error
        if record is None or not api_keys.same(record.digest, digest) or record.id != parsed.id:
            raise AuthDenied(Denied.KEY_UNKNOWN)
        if record.revoked:
            raise AuthDenied(Denied.KEY_REVOKED, tenant=record.tenant, credential_id=record.id)
        if record.expires_at_s is not None and self._now_s() >= record.expires_at_s:
            raise AuthDenied(Denied.KEY_EXPIRED, tenant=record.tenant, credential_id=record.id)
        roles = tokens.known_roles(tuple(record.roles))
        tokens.check_tenancy(record.tenant, roles)
        return Principal(
            tenant=record.tenant,
            project=record.project,
            user=record.user,
            issuer=KEY_ISSUER,
            credential=Credential(CredentialKind.KEY, record.id, expires_at_s=record.expires_at_s),
            groups=frozenset(record.groups),
            roles=roles,
            service_class=record.service_class,
            tags=tuple(record.tags),
        )

    def _now_s(self) -> int:
        return int(self._clock_s())  # whole seconds: every bound is one, and floor(t) < n iff t < n


@dataclass(frozen=True, slots=True)
class Shown:
    """The credential of a request as it came.  `proven`: by the scheme that says so (RFC 9449 §7.1)."""

    text: str = field(repr=False)
    proven: bool = False
    proof: bytes | None = field(default=None, repr=False)


def credential(headers: Sequence[tuple[bytes, bytes]], query_string: bytes) -> Shown:
    """The one credential of a request.  Two of them, two proofs, or one in the query (where logs and
    histories keep it), are refused as malformed rather than chosen between."""
    if _names_credential(query_string):
        raise AuthMalformed(Malformed.CREDENTIAL_IN_QUERY)
    found: dict[bytes, list[bytes]] = {b"authorization": [], b"x-api-key": [], b"dpop": []}
    for name, value in headers:
        if (values := found.get(name.lower())) is not None:
            values.append(value)
    scheme, plain, proofs = found.values()
    if len(scheme) + len(plain) > 1:
        raise AuthMalformed(Malformed.TWO_CREDENTIALS)
    if len(proofs) > 1:
        raise AuthMalformed(Malformed.TWO_PROOFS)
    if not scheme and not plain:
        raise AuthDenied(Denied.MISSING)
    proof = proofs[0] if proofs else None
    if proof is not None and len(proof) > dpop.PROOF_BYTES_MAX:
        raise AuthDenied(Denied.PROOF_SHAPE)
    value = (scheme or plain)[0]
    if len(value) > _HEADER_BYTES_MAX:
        raise AuthDenied(Denied.TOKEN_TOO_LONG)
    text = value.decode("latin-1")
    if plain:
        if not text.startswith(api_keys.PREFIX):
            raise AuthDenied(Denied.KEY_MALFORMED)
        return Shown(text, proof=proof)
    form = _SCHEMES.fullmatch(text)
    if form is None:
        raise AuthDenied(Denied.SCHEME)
    return Shown(form[2], proven=form[1].lower() == "dpop", proof=proof)


def offers_proof(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether the request speaks the scheme of bound tokens, and is to be answered in it."""
    return any(
        name.lower() == b"authorization" and value[:5].lower() == b"dpop "
        for name, value in headers
    )


def _names_credential(query_string: bytes) -> bool:
    """By name however it is spelled (case, percent-encoding, `;` for `&`), or by a value that looks
    like one under any name."""
    if not query_string:
        return False
    for part in re.split(rb"[&;]", query_string):
        name, _, value = part.partition(b"=")
        if unquote_to_bytes(name.replace(b"+", b" ")).strip().lower() in _QUERY_NAMES:
            return True
        if _QUERY_SECRET.match(unquote_to_bytes(value)):
            return True
    return False
