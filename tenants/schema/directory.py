"""The directory's tables: keys, revocations, suspensions, budgets set by operators, who did what, secrets."""

from __future__ import annotations

from sqlalchemy import Column, Index, Integer, LargeBinary, Table, UniqueConstraint

from tenants.schema.columns import metadata, text, text_or_none, whole, whole_or_none

api_key = Table(
    "api_key",
    metadata,
    text("id", primary_key=True),
    Column("digest", LargeBinary, nullable=False),
    text("tenant"),
    text_or_none("project"),
    text("user"),
    text("name"),
    text("roles"),
    text("groups"),
    text_or_none("service_class"),
    text("limits"),
    whole("created_at_s"),
    whole_or_none("expires_at_s"),
    whole_or_none("revoked_at_s"),
    text_or_none("replaced_by"),
    text("tags"),
    UniqueConstraint("digest", name="one_key_a_digest"),
    Index("api_key_tenant", "tenant"),
)

revocation = Table(
    "revocation",
    metadata,
    text("kind", primary_key=True),
    text("tenant", primary_key=True),
    text("issuer", primary_key=True),
    text("value", primary_key=True),
    whole("at_s"),
    whole("until_s"),
    text("actor"),
    text("reason"),
)

suspension = Table(
    "suspension",
    metadata,
    text("tenant", primary_key=True),
    whole("at_s"),
    text("actor"),
    text("reason"),
)

budget_override = Table(
    "budget_override",
    metadata,
    text("tenant", primary_key=True),
    text("scope", primary_key=True),
    text("issuer", primary_key=True),
    text("name", primary_key=True),
    text("budget"),
)

change = Table(
    "change",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    whole("at_s"),
    text("tenant"),
    text("kind"),
    text("subject"),
    text("detail"),
    text("actor"),
    text("reason"),
    Index("change_tenant", "tenant", "at_s"),
)

tenant_secret = Table(
    "tenant_secret",
    metadata,
    text("tenant", primary_key=True),
    Column("version", Integer, primary_key=True),
    text("root"),
    Column("wrapped", LargeBinary, nullable=False),
)
