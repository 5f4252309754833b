"""Kinds of what operators change while running: each is noted for good, with who did it and why.

Refuses to know: what a change does.
"""

from __future__ import annotations

from collections.abc import Callable
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
    BUDGET_TOPPED_UP = "budget_topped_up"
    CREDITED = "credited"
    REFUNDED = "refunded"
    CACHE_PURGED = "cache_purged"
    SECRET_ROTATED = "secret_rotated"  # noqa: S105 — the name of a kind, no secret
    SECRET_RETIRED = "secret_retired"  # noqa: S105 — likewise
    TENANT_SHREDDED = "tenant_shredded"
    ROOT_REWRAPPED = "root_rewrapped"
    ROOT_RELEASED = "root_released"
    USER_PSEUDONYMISED = "user_pseudonymised"
    TENANT_DELETION_BEGUN = "tenant_deletion_begun"
    TENANT_DELETED = "tenant_deleted"
    CONFIGURED = "configured"
    LEARNED = "learned"  # another gateway changed something


@dataclass(frozen=True, slots=True)
class Change:
    """What just became visible.  After one, ask `is_revoked` of every running request."""

    kind: ChangeKind
    tenant: str
    subject: str = ""


class Listeners:
    """Everybody hears of a change, also when one of them fails."""

    def __init__(self) -> None:
        self._all: list[Callable[[Change], None]] = []

    def subscribe(self, listener: Callable[[Change], None]) -> Callable[[], None]:
        """Returns how to stop."""
        self._all.append(listener)
        return lambda: self._all.remove(listener)

    def publish(self, change: Change) -> None:
        failed: list[Exception] = []
        for listener in tuple(self._all):
            try:
                listener(change)
            except Exception as why:  # noqa: BLE001 — raised below, after the others have heard
                failed.append(why)
        if failed:
            raise ExceptionGroup(f"listeners failed on {change.kind}", failed)
