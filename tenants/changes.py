"""Kinds of what operators change while running: each is noted for good, with who did it and why.

Refuses to know: what a change does.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ChangeKind(StrEnum):
    KEY_ADDED = "key_added"
    KEY_ROTATED = "key_rotated"
    KEY_REVOKED = "key_revoked"
    TOKEN_REVOKED = "token_revoked"  # noqa: S105 — the name of a kind, no secret
    SUBJECT_REVOKED = "subject_revoked"
    TENANT_SUSPENDED = "tenant_suspended"
    TENANT_RESUMED = "tenant_resumed"
    BUDGET_SET = "budget_set"
    CACHE_PURGED = "cache_purged"
    CONFIGURED = "configured"


@dataclass(frozen=True, slots=True)
class Change:
    """What just became visible.  After one, ask `is_revoked` of every running request."""

    kind: ChangeKind
    tenant: str
    subject: str = ""
