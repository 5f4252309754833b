"""What an audit record may hold: numbers, short names of our own, pseudonyms; and nothing else.

Pure: no files, no clock.  `audit_chain` binds records to each other, `audit_log` writes them,
`audit_verify` reads them.  Refuses to hold text: every field is a number or a short name from our own
code or configuration, a person is a pseudonym (`pseudonyms`).
Source: SECURITY.md §1 (P10, P11), §2 (Audit-safe metadata), §4 (L3).
"""

from __future__ import annotations

import json
import re
from enum import StrEnum

import msgspec

from security.audit_chain import Link, seal

TEXT_CHARS_MAX = 256
_KIND = re.compile(r"[a-z][a-z_]*(?:\.[a-z][a-z_]*)+", re.ASCII)


class CacheEvent(StrEnum):
    """Kinds of what is done to the cache by people and by ourselves.  Closed."""

    LISTED = "cache.listed"
    PURGED = "cache.purged"
    SHARING_CHANGED = "cache.sharing_changed"  # a tenant opted into opportunistic sharing, or out
    METADATA_INVALID = "cache.metadata_invalid"  # a hit that the second comparison refused


class RegisteredEvent(StrEnum):
    """Kinds of what is done to registered documents and templates.  Closed."""

    DOCUMENT_CREATED = "document.created"
    DOCUMENT_CHANGED = "document.changed"
    DOCUMENT_GRANTED = "document.granted"
    DOCUMENT_REVOKED = "document.revoked"  # its list of readers was narrowed
    DOCUMENT_DELETED = "document.deleted"
    DOCUMENT_EXPIRED = "document.expired"
    DOCUMENT_READ = "document.read"  # by a request, or back by its owner
    TEMPLATE_CREATED = "template.created"
    TEMPLATE_CHANGED = "template.changed"
    TEMPLATE_DELETED = "template.deleted"
    TEMPLATE_READ = "template.read"  # by a request, or back by who administers it
    REVOCATION_CONFIRMED = "revocation.confirmed"  # of what was taken away before, nothing is kept


class AuditUnavailable(Exception):
    """The record was not made durable in time: what it would have recorded must not happen."""


class AuditEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may be recorded, and nothing else.  `kind` is dotted, widest first (`auth.denied`,
    `request.completed`, `key.revoked`).  `subject` is a pseudonym, never a user's name; `target`
    names what an administrative act was done to (a key's id, a tenant); `reason` is one of our
    words.  None is left out of the record."""

    kind: str
    request_id: str | None = None
    tenant: str | None = None
    subject: str | None = None
    credential_id: str | None = None
    route: str | None = None
    model: str | None = None
    outcome: str | None = None
    reason: str | None = None
    target: str | None = None
    status: int | None = None
    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    nano_usd: int | None = None
    count: int | None = None
    blocks_zeroed: int | None = None
    blocks_read_zero: int | None = None
    key_destroyed: bool | None = None
    unacknowledged: int | None = None


def encode(event: AuditEvent, at_ms: int, link: Link, key: bytes) -> tuple[bytes, Link]:
    """The line of one record, and the place after it."""
    return seal({**fields(event), "at_ms": at_ms}, link, key)


def fields(event: AuditEvent) -> dict[str, object]:
    """Bounded here rather than trusted: over-long text is cut with a mark, since a record that
    cannot be written would stop the service.  Control and non-ASCII characters are escaped by the
    encoding, so a record is one line whatever a name holds (L3)."""
    assert _KIND.fullmatch(event.kind), event.kind
    kept: dict[str, object] = {}
    for name, value in msgspec.structs.asdict(event).items():
        if isinstance(value, str):
            kept[name] = _bounded(value)
        elif value is not None:
            kept[name] = value
    return kept


def _bounded(text: str) -> str:
    """By length, and by what escaping makes of it: one character can become twelve."""
    if len(text) > TEXT_CHARS_MAX:
        text = text[: TEXT_CHARS_MAX - 1] + "…"
    return text if len(json.dumps(text)) <= 600 else text[:40] + "…"
