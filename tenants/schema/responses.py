"""The table of stored responses."""

from __future__ import annotations

from sqlalchemy import Boolean, CheckConstraint, Column, Index, Integer, LargeBinary, Table

from tenants.schema.columns import metadata, text, text_or_none, whole

response = Table(
    "response",
    metadata,
    text("id", primary_key=True),
    text("tenant"),
    text("project"),
    text("issuer"),
    text("user"),
    text("model"),
    text("status"),
    Column("background", Boolean, nullable=False),
    text_or_none("previous"),
    whole("created_at_ms"),
    whole("expires_at_ms"),
    text("owner"),
    whole("lease_until_ms"),
    Column("cancelling", Boolean, nullable=False),
    Column("sealed", LargeBinary),
    Column("sealed_bytes", Integer, nullable=False),
    Column("secret_version", Integer, nullable=False),
    CheckConstraint(
        "status IN ('queued','in_progress','completed','incomplete','failed','cancelled')",
        name="known_status_of_a_response",
    ),
    Index("response_tenant", "tenant", "secret_version", "sealed_bytes"),
    Index("response_person", "tenant", "issuer", "user", "project", "sealed_bytes"),
    Index("response_expiry", "expires_at_ms"),
    Index("response_lease", "status", "lease_until_ms"),
)
