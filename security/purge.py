"""That something was purged from the cache: what is recorded, and what an outsider can check of it.

The record is one of the audit log's, its proof the log's own: the record's line, its path to a signed
checkpoint, and the number under which it stands.  It says what was counted, not what the machine may
still hold elsewhere: swap, core dumps and offloaded blocks must be off or sealed, which this cannot see.

Refuses to know: blocks, how they are zeroed, what a label covers (a pseudonym names it: take it before
the tenant's secret is destroyed).  Source: SECURITY.md §2 (Purge proof), C18.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from security.audit import AuditEvent, CacheEvent
from security.audit_chain import read
from security.audit_checkpoint import PublicKey
from security.audit_log import AuditLog
from security.audit_proof import Proof, holds


class PurgeReason(StrEnum):
    TENANT_DELETED = "tenant_deleted"
    SECRET_DESTROYED = "secret_destroyed"  # noqa: S105 — a word for what happened
    ACCESS_REVOKED = "access_revoked"
    SOURCE_DELETED = "source_deleted"  # a document or a template
    ASKED_FOR = "asked_for"  # by somebody with the right


@dataclass(frozen=True, slots=True, kw_only=True)
class Purged:
    """`scope`: the pseudonym of a label or of what covers it.  `blocks`: found under it; of them
    `blocks_zeroed` were zeroed, and `blocks_read_zero` then read back and were zero throughout.
    `key_destroyed`: no key of the scope is left in this process.  `unacknowledged`: executors that were there and
    did not say that they did it; what they have kept is not in the counts."""

    scope: str
    reason: PurgeReason
    blocks: int
    blocks_zeroed: int
    blocks_read_zero: int
    key_destroyed: bool
    unacknowledged: int = 0

    @property
    def is_complete(self) -> bool:
        """Nothing of it is left where we can look.  What was only asked for leaves its key, by which the same
        may be kept again."""
        no_key = self.key_destroyed or self.reason is PurgeReason.ASKED_FOR
        zeroed = self.blocks == self.blocks_zeroed == self.blocks_read_zero
        return no_key and zeroed and not self.unacknowledged


@dataclass(frozen=True, slots=True)
class PurgeRecord:
    """As read from a proof: what, when by our clock, and the log's number of it."""

    purged: Purged
    tenant: str | None
    at_ms: int
    index: int


async def purge_record(
    log: AuditLog,
    purged: Purged,
    *,
    tenant: str | None,
    request_id: str | None = None,
    subject: str | None = None,
    credential_id: str | None = None,
) -> Proof:
    """Durable and under a signed checkpoint when it returns.  Who asked: `subject` and `credential_id`,
    None where the house did it by itself.  Raises AuditUnavailable: then say that the purge is done and
    its record is not."""
    return await log.append_proven(
        AuditEvent(
            kind=CacheEvent.PURGED,
            request_id=request_id,
            tenant=tenant,
            subject=subject,
            credential_id=credential_id,
            target=purged.scope,
            reason=purged.reason,
            outcome="complete" if purged.is_complete else "incomplete",
            count=purged.blocks,
            blocks_zeroed=purged.blocks_zeroed,
            blocks_read_zero=purged.blocks_read_zero,
            key_destroyed=purged.key_destroyed,
            unacknowledged=purged.unacknowledged,
        )
    )


def read_purge(proof: Proof, public: PublicKey) -> PurgeRecord | None:
    """What a proof says was purged; None where it is not signed by `public`, or of something else."""
    value = read(proof.record)
    if value.get("kind") != CacheEvent.PURGED or not holds(proof, public):
        return None
    scope, tenant, at_ms, key = (
        value.get(each) for each in ("target", "tenant", "at_ms", "key_destroyed")
    )
    counts = ("count", "blocks_zeroed", "blocks_read_zero", "unacknowledged")
    blocks = [value.get(each) for each in counts]
    counted = [each for each in blocks if type(each) is int and each >= 0]
    reasons = {each.value: each for each in PurgeReason}
    reason = reasons.get(str(value.get("reason")))
    if not isinstance(scope, str) or type(at_ms) is not int or type(key) is not bool:
        return None
    if len(counted) != len(blocks) or reason is None or not isinstance(tenant, str | None):
        return None
    purged = Purged(
        scope=scope,
        reason=reason,
        blocks=counted[0],
        blocks_zeroed=counted[1],
        blocks_read_zero=counted[2],
        key_destroyed=key,
        unacknowledged=counted[3],
    )
    return PurgeRecord(purged, tenant, at_ms, proof.index)
