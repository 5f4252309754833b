"""The table of idempotency keys."""

from __future__ import annotations

from sqlalchemy import Boolean, CheckConstraint, Column, Index, Integer, LargeBinary, Table

from tenants.schema.columns import metadata, text, text_or_none, whole

idempotency = Table(
    "idempotency",
    metadata,
    text("digest", primary_key=True),
    text("tenant"),
    Column("body", LargeBinary, nullable=False),
    text("request_id"),
    Column("metered", Boolean, nullable=False),
    text("state"),
    text("owner"),
    whole("lease_until_ms"),
    whole("expires_at_ms"),
    Column("sealed", LargeBinary),
    Column("sealed_bytes", Integer, nullable=False),
    Column("secret_version", Integer, nullable=False),
    text_or_none("why"),
    CheckConstraint("state IN ('RUNNING','DONE')", name="known_state_of_a_key"),
    Index("idempotency_tenant", "tenant", "secret_version", "sealed_bytes"),
    Index("idempotency_expiry", "expires_at_ms"),
)
