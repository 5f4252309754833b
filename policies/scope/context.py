"""C0: everything besides the tokens that KV depends on, or that may differ between two answers to them.
Any difference in any field gives zero reuse (P2).

In two parts, since two sides know them: what belongs to the request (`Asked`, the gateway's) and what
computes (`Context`, the engine's, which mixes the other's digest in).  Refuses to know: where the facts
come from.  Every field is required; None says that there is none, which is not the same as an empty
one.  Digests are of content, never of names.  Source: SECURITY.md §2.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from typing import Final

from policies.scope.encoding import enc

DIGEST_BYTES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    tokenizer_digest: bytes
    template_digest: bytes | None
    tools_digest: bytes | None
    locale: str | None
    region: str | None
    safety_policy: str | None
    safety_policy_version: int | None
    flags: frozenset[str]

    def __post_init__(self) -> None:
        _check_digests(self)
        assert (self.safety_policy is None) == (self.safety_policy_version is None)

    def digest(self) -> bytes:
        return _digest("asked", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    asked_digest: bytes
    weights_digest: bytes
    adapter_digest: bytes | None
    dtype: str
    numerics: str
    kernel_config: str
    """Backend, device, layouts: whatever else changes a bit of KV."""
    block_tokens: int

    def __post_init__(self) -> None:
        _check_digests(self)
        assert self.block_tokens > 0

    def digest(self) -> bytes:
        """C0, 32 bytes."""
        return _digest("context", self)


def _check_digests(of: Asked | Context) -> None:
    for each in fields(of):
        value = getattr(of, each.name)
        if each.name.endswith("_digest") and value is not None:
            assert len(value) == DIGEST_BYTES, f"{each.name} is no SHA-256 digest"


def _digest(kind: str, of: Asked | Context) -> bytes:
    named = tuple((each.name, getattr(of, each.name)) for each in fields(of))
    return hashlib.sha256(enc((kind, named))).digest()
