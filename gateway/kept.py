"""An answer as it is kept for whoever comes again by its key: by which right it was given, sealed in its place.

Sealed under its tenant's secret, bound to the key's digest, so that a record put in another's row opens nowhere,
and destroying the secret destroys all of them.  Refuses to know: SQL, who asks, what an answer says.
Source: DESIGN.md, settled 6; SECURITY.md §6 (Keys).
"""

from __future__ import annotations

import zlib

import msgspec

from policies.scope.labels import Label
from security.seal import Place, SealPurpose, Seals, secret_version


class Basis(msgspec.Struct):
    """What an answer was given by, and must still be so when it is told again.  The endpoint writes down what it goes
    by and looks at it again (`Endpoint.check`).  `target`: the id of what was made or changed; `rights`: over it."""

    roles: tuple[str, ...] = ()
    model: str | None = None
    reads: Label | None = None
    target: str | None = None
    rights: tuple[str, ...] = ()


class Kept(msgspec.Struct, frozen=True):
    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    basis: Basis


def sealed(seals: Seals, tenant: str | None, digest: str, kept: Kept) -> tuple[bytes, int]:
    """And the version of the secret that opens it.  SecretGone.  Takes milliseconds for a large one."""
    packed = zlib.compress(msgspec.msgpack.encode(kept), 1)  # a stream is mostly the same words
    record = seals.seal_bytes(_place(tenant, digest), packed)
    return record, secret_version(record)


def opened(seals: Seals, tenant: str | None, digest: str, record: bytes) -> Kept:
    """SecretGone, SealBroken."""
    packed = seals.open_bytes(_place(tenant, digest), record)
    return msgspec.msgpack.decode(zlib.decompress(packed), type=Kept)


def _place(tenant: str | None, digest: str) -> Place:
    return Place(SealPurpose.RESULT, tenant, digest, 1)
