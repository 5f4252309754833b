"""What persons, labels and documents are called in the audit log: names that mean nothing without the
tenant's secret, and nothing at all once that is destroyed.

    pseudonym = v ‖ "." ‖ HMAC-SHA-256(HKDF(K_t of version v, "audit-name/v1"), enc(kind, what)), 16 bytes

It is a commitment with the tenant's key as its salt: equal for equal, hidden from whoever lacks the key,
and its holder can show what it stands for.  It is part of the record like any word, so that destroying
the secret changes no hash and no proof; afterwards no guess can be confirmed.  The version says by which
secret to compute it again.  An operator belongs to no tenant and is named by the house's own key.
Refuses to know: who asks.  Source: SECURITY.md §1 (P12), §2 (Audit-safe metadata), §6 (crypto-shred).
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from policies.scope.encoding import enc
from policies.scope.labels import Label
from security.keyring_tenants import SecretGone, TenantSecret


@dataclass(frozen=True, slots=True)
class Pseudonyms:
    """`secret_of`: `TenantSecrets.current`.  `of_house`: the keyring's pseudonymiser.  None is answered
    where the tenant has no secret: nothing may be said of its people then."""

    secret_of: Callable[[str], TenantSecret] = field(repr=False)
    of_house: Callable[[str], str] = field(repr=False)

    def person(self, tenant: str | None, issuer: str, user: str) -> str | None:
        if tenant is None:
            return self.of_house(f"{issuer}\0{user}")
        return self._current(tenant, ("person", issuer, user))

    def label(self, label: Label) -> str | None:
        if label.tenant is None:
            return self.of_house(label.encoded().hex())
        return self._current(label.tenant, ("label", label.encoded()))

    def document(self, tenant: str, document_id: str) -> str | None:
        return self._current(tenant, ("document", document_id))

    def _current(self, tenant: str, what: tuple[str | bytes, ...]) -> str | None:
        try:
            return pseudonym(self.secret_of(tenant), what)
        except SecretGone:
            return None


def pseudonym(secret: TenantSecret, what: tuple[str | bytes, ...]) -> str:
    """By one version of a secret: to find somebody's records, over all versions that are kept."""
    key = HKDF(SHA256(), 32, salt=None, info=b"audit-name/v1").derive(secret.secret)
    return f"{secret.version}.{hmac.digest(key, enc(what), 'sha256')[:16].hex()}"
