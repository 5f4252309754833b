"""Where proofs of possession are judged: read by `dpop`, then spent, so that each counts once.

Refuses to know tokens and issuers' rules (`tokens`), and where it is kept which proofs have been used: a
small protocol asks.  A proof is spent last, when all else about its request has been found good: what
strangers send fills nothing.

Nonces (RFC 9449 §9) are kept nowhere: one is a keyed digest of the minutes in which it was said, so every
gateway of a deployment knows every other's.  Source: RFC 9449 §4.3, §7, §9, §11.1.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from security import dpop
from security.dpop import Asked, Proof
from security.failures import AuthDenied, AuthUnavailable, Denied, Unavailable
from security.strict import to_base64url

NONCE_S: Final = 300
"""A nonce is good for as long as it is said, and for as long again."""
APART_S: Final = 30
"""By how much the clocks of gateways may differ: a proof is remembered for longer by that."""
REMEMBERED_S: Final = dpop.PAST_S + dpop.FUTURE_S + APART_S


class Spent(Protocol):
    """Which proofs have been used, for `REMEMBERED_S`."""

    async def first(self, tenant: str, digest: str) -> bool:
        """Whether nobody came with it before; from now on somebody has.  Raises where it cannot know, or
        has no room to remember."""


@dataclass(frozen=True, slots=True)
class Nonces:
    """`digest`: keyed, the same in every process of this deployment."""

    digest: Callable[[Sequence[bytes]], bytes]

    def current(self, now_s: int) -> str:
        return self._of(now_s // NONCE_S)

    def accepts(self, nonce: str | None, now_s: int) -> bool:
        if nonce is None:
            return False
        turn, said = now_s // NONCE_S, nonce.encode()
        return any(hmac.compare_digest(said, self._of(each).encode()) for each in (turn, turn - 1))

    def _of(self, turn: int) -> str:
        return to_base64url(self.digest([b"nonce", str(turn).encode()])[:16])


@dataclass(frozen=True, slots=True)
class Proving:
    """`digest`: keyed, as for `Nonces`.  `urls`: bases below which this deployment is reached, see
    `dpop.targets`.  `since_s`: where what was used is forgotten with this process, when it began, so that
    nothing from before passes; else None."""

    spent: Spent
    digest: Callable[[Sequence[bytes]], bytes]
    urls: tuple[str, ...] = ()
    since_s: int | None = None

    def judge(self, raw: bytes, token: str, asked: Asked, now_s: int) -> Proof:
        """The proof that came beside `token`, by itself good.  Raises AuthDenied, `OF_THE_PROOF` always."""
        proof = dpop.read(raw.decode("latin-1"))
        dpop.check(proof, asked, self.urls, token, now_s)
        if self.since_s is not None and proof.issued_at_s < self.since_s:
            raise AuthDenied(Denied.PROOF_TIME)
        dpop.verify(proof)
        return proof

    async def spend(
        self,
        proof: Proof,
        now_s: int,
        *,
        tenant: str | None,
        credential_id: str | None,
        with_nonce: bool,
    ) -> None:
        """The proof of a request that is good in all else.  Raises AuthDenied or AuthUnavailable."""
        nonces = Nonces(self.digest)
        if with_nonce and not nonces.accepts(proof.nonce, now_s):
            raise AuthDenied(
                Denied.PROOF_NONCE,
                tenant=tenant,
                credential_id=credential_id,
                nonce=nonces.current(now_s),
            )
        parts = [b"proof", proof.thumbprint.encode(), proof.id.encode()]
        try:
            first = await self.spent.first(tenant or "", self.digest(parts)[:16].hex())
        except Exception as error:
            raise AuthUnavailable(Unavailable.PROOFS) from error
        if not first:
            raise AuthDenied(Denied.PROOF_REPLAYED, tenant=tenant, credential_id=credential_id)
