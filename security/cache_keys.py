"""A label's key and tag: what an executor gets instead of names.

    K_L     = HKDF-SHA256(secret, "kv/v1" ‖ enc(L) ‖ E)     secret: K_t, or the keyring's for public
    tag     = HMAC(HKDF(secret, "label-tag/v1"), enc(L))     names a label to who may not know it
    cover   = HMAC(HKDF(the keyring's, "cover-tag/v1"), enc(tenant, what a right rests on, its version))

A key dies with the process (E is drawn at its start); a tag is the same in all, so that records of
different days can be compared.  Both end with the tenant's secret.  A cover does not change when that is rotated,
so that a revocation reaches whoever began before.  Pure: secrets and epoch are
arguments.  Refuses to know: what a request is, where secrets are kept.  Source: SECURITY.md §2 (Keys);
RFC 5869; DESIGN.md, settled question 4.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from policies.scope.chain import ScopeKey
from policies.scope.encoding import enc
from policies.scope.labels import Document, Label, Template
from security.keyring_tenants import TenantSecret

EPOCH_BYTES: Final = 16


def derive(secret: bytes, encoded: bytes, epoch: bytes) -> bytes:
    """K_L, 32 bytes.  `encoded`: the label."""
    assert len(epoch) == EPOCH_BYTES
    return _hkdf(secret, b"kv/v1" + encoded + epoch)


def tag(secret: bytes, encoded: bytes) -> bytes:
    return hmac.digest(_hkdf(secret, b"label-tag/v1"), encoded, "sha256")


def narrowing(
    secret: bytes,
    *,
    safety_identifier: str | None,
    user: str | None,
    prompt_cache_key: str | None,
) -> bytes | None:
    """What a client calls its own users, as a part of a label: it can only divide the client's own
    scope.  None where it named nobody, which is another scope than that of an empty name."""
    named = (safety_identifier, user, prompt_cache_key)
    if named == (None, None, None):
        return None
    return hmac.digest(_hkdf(secret, b"narrowing/v1"), enc(named), "sha256")


@dataclass(frozen=True, slots=True)
class CacheKeys:
    """`public`: the keyring's secret for public labels.  `secret_of`: `TenantSecrets.current`; what it
    raises passes through."""

    public: bytes = field(repr=False)
    epoch: bytes = field(repr=False)
    secret_of: Callable[[str], TenantSecret] = field(repr=False)
    _covers: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_covers", _hkdf(self.public, b"cover-tag/v1"))

    def scope(self, label: Label) -> ScopeKey:
        secret = self.public if label.tenant is None else self.secret_of(label.tenant).secret
        encoded = label.encoded()
        return ScopeKey(tag(secret, encoded), derive(secret, encoded, self.epoch))

    def covers(self, label: Label) -> tuple[bytes, ...]:
        """Tags of all that the right to read this label rests on, in no telling order: revoking one of
        them ends every entry and reader under it, and nobody need know whose it was."""
        found = [self.of_template(each) for each in label.templates]
        if label.tenant is not None:
            found += [self.of_document(label.tenant, each) for each in label.documents]
            found.append(self.of_secret(label.tenant, self.secret_of(label.tenant).version))
            if label.issuer is not None and label.subject is not None:
                found.append(self.of_person(label.tenant, label.issuer, label.subject))
        return tuple(sorted(found))

    def of_document(self, tenant: str, document: Document) -> bytes:
        """To revoke this document as it stood at these versions."""
        named = ("document", document.id, document.acl_version, document.content_version)
        return self._cover(tenant, named)

    def of_template(self, template: Template) -> bytes:
        """To revoke this version.  The operator's is one tag for all tenants."""
        return self._cover(template.owner, ("template", template.id, template.version))

    def of_secret(self, tenant: str, version: int) -> bytes:
        """To revoke whatever was made under this version of a tenant's secret."""
        return self._cover(tenant, ("secret", version))

    def of_person(self, tenant: str, issuer: str, subject: str) -> bytes:
        """Whatever this person's requests left, for whichever of its own users."""
        return self._cover(tenant, ("person", issuer, subject))

    def _cover(self, tenant: str | None, named: tuple[str | int, ...]) -> bytes:
        return hmac.digest(self._covers, enc((tenant, named)), "sha256")


def _hkdf(secret: bytes, info: bytes) -> bytes:
    return HKDF(SHA256(), 32, salt=None, info=info).derive(secret)
