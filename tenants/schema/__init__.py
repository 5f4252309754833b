"""The tables of the book, the directory and the registered texts (`versions`: how a database comes to
have them).

Refuses to know: what the rows mean (ledger, directory).
"""

from __future__ import annotations

from tenants.schema.columns import metadata
from tenants.schema.devices import device_minute, device_start
from tenants.schema.directory import (
    api_key,
    budget_override,
    change,
    revocation,
    suspension,
    tenant_secret,
)
from tenants.schema.idempotency import idempotency
from tenants.schema.money import (
    adjustment,
    budget_window,
    ledger_entry,
    price,
    request,
    reservation,
    reservation_tag,
    usage_event,
)
from tenants.schema.outbox import outbox
from tenants.schema.periods import period, period_gate
from tenants.schema.registered import (
    registration,
    registration_reader,
    registration_state,
    registration_text,
)
from tenants.schema.responses import response
from tenants.schema.retention import erasure, period_seal, pseudonym_salt, tenant_deletion

__all__ = [
    "adjustment",
    "api_key",
    "budget_override",
    "budget_window",
    "change",
    "device_minute",
    "device_start",
    "erasure",
    "idempotency",
    "ledger_entry",
    "metadata",
    "outbox",
    "period",
    "period_gate",
    "period_seal",
    "price",
    "pseudonym_salt",
    "registration",
    "registration_reader",
    "registration_state",
    "registration_text",
    "request",
    "reservation",
    "reservation_tag",
    "response",
    "revocation",
    "suspension",
    "tenant_deletion",
    "tenant_secret",
    "usage_event",
]
